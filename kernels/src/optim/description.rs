//! What each optimizer is, as data: its numbers with their ranges and order, and its slots.

use super::row::{RowOptimizer, SlotSpec};
use crate::{Error, Kind, Result};
use serde::Serialize;

/// An optimizer.
#[derive(Debug, Serialize)]
pub struct Optimizer {
    /// Its name, also in errors.
    pub name: &'static str,
    /// What a step computes.
    pub doc: &'static str,
    /// Its numbers (hyperparameters), in the order in which a step takes them.
    pub numbers: &'static [Number],
    /// Its slots, in the order in which a step takes their places.
    pub slots: &'static [Slot],
    /// Whether a gradient of zeros changes no row and no slot, whatever the numbers are.
    pub ignores_zeros: bool,
    /// What a step does to rows without a gradient.
    pub other_rows: OtherRows,
    /// Makes a step of its numbers, which are as many as it has.
    #[serde(skip)]
    pub(super) make: fn(&[f32]) -> Result<Box<dyn RowOptimizer>>,
}

/// What a step does to rows without a gradient; see [`RowOptimizer::decay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherRows {
    /// Nothing.
    Stay,
    /// Their moments decay, and they stay.
    Decay,
    /// Their moments decay, and they move by these.
    Move,
}

/// A number of an optimizer.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Number {
    /// Its name, also in errors.
    pub name: &'static str,
    /// What it may be.
    pub range: Range,
    /// What it is.
    pub doc: &'static str,
}

/// What a number may be: finite in any case.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Range {
    /// The same for people, behind the number's name.
    pub rule: &'static str,
    /// The least.
    pub least: f32,
    /// The most.
    pub most: f32,
    /// The one of the two ends that it may not be.
    pub without: Option<f32>,
}

/// A slot of an optimizer.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Slot {
    /// Its name, also of its directory in a checkpoint.
    pub name: &'static str,
    /// What it starts at; where a number of the optimizer says it, what that is by default in the
    /// Python package.
    pub initial: f32,
    /// The number that says what it starts at.
    pub starts_at: Option<&'static str>,
    /// Whether it is one float for a row. Else it has one for each column.
    pub per_row: bool,
}

impl Optimizer {
    /// One step by its numbers.
    ///
    /// # Errors
    /// `InvalidArgument` for another count of numbers, or for one that is out of its range; the
    /// error names it.
    pub fn step(&self, numbers: &[f32]) -> Result<Box<dyn RowOptimizer>> {
        if numbers.len() != self.numbers.len() {
            let expected: Vec<_> = self.numbers.iter().map(|number| number.name).collect();
            return Err(Error::invalid("hyper must have the optimizer's numbers")
                .with("hyper", numbers.len())
                .with("optimizer", self.name)
                .with("expected", expected.join(", ")));
        }
        (self.make)(numbers)
    }

    /// Refuses numbers, in their order, of which one is out of its range.
    pub(super) fn check(&self, numbers: &[f32]) -> Result<()> {
        for (number, &value) in self.numbers.iter().zip(numbers) {
            if !number.range.has(value) {
                let (name, rule) = (number.name, number.range.rule);
                return Err(
                    Error::invalid(format!("{}: {name} {rule}", self.name)).with(name, value)
                );
            }
        }
        Ok(())
    }

    /// Its slots; `start` is what those start at for which a number says it.
    pub(super) fn slots_from(&self, start: f32) -> Vec<SlotSpec> {
        let initial = |slot: &Slot| slot.starts_at.map_or(slot.initial, |_| start);
        let slots = self.slots.iter();
        slots
            .map(|slot| SlotSpec::new(slot.name, initial(slot), slot.per_row))
            .collect()
    }
}

/// The numbers of a step as an array.
pub(super) fn exactly<const N: usize>(numbers: &[f32]) -> Result<[f32; N]> {
    let found = numbers.try_into();
    found.map_err(|_| {
        Error::new(
            Kind::Internal,
            "an optimizer takes another count of numbers",
        )
    })
}

impl Number {
    pub(super) const fn new(name: &'static str, range: Range, doc: &'static str) -> Number {
        Number { name, range, doc }
    }
}

impl Slot {
    /// A slot that starts at zeros.
    pub(super) const fn zeros(name: &'static str) -> Slot {
        Slot {
            name,
            initial: 0.0,
            starts_at: None,
            per_row: false,
        }
    }

    /// A slot that starts at a number of the optimizer, which is usually `initial`.
    pub(super) const fn at(name: &'static str, number: &'static str, initial: f32) -> Slot {
        Slot {
            name,
            initial,
            starts_at: Some(number),
            per_row: false,
        }
    }

    /// The slot with one float for a row.
    pub(super) const fn per_row(self) -> Slot {
        Slot {
            per_row: true,
            ..self
        }
    }
}

impl Range {
    const fn new(rule: &'static str, least: f32, most: f32, without: Option<f32>) -> Range {
        Range {
            rule,
            least,
            most,
            without,
        }
    }

    /// Whether it has a value; it has no not-a-number.
    pub fn has(&self, value: f32) -> bool {
        (self.least..=self.most).contains(&value) && self.without != Some(value)
    }
}

pub(super) const FINITE: Range = Range::new("must be finite", f32::MIN, f32::MAX, None);
pub(super) const NOT_NEGATIVE: Range =
    Range::new("must be finite and not negative", 0.0, f32::MAX, None);
pub(super) const POSITIVE: Range =
    Range::new("must be finite and above 0", 0.0, f32::MAX, Some(0.0));
pub(super) const NOT_POSITIVE: Range =
    Range::new("must be finite and not positive", f32::MIN, 0.0, None);
pub(super) const FRACTION: Range = Range::new("must lie in [0, 1]", 0.0, 1.0, None);
pub(super) const BELOW_ONE: Range = Range::new("must lie in [0, 1)", 0.0, 1.0, Some(1.0));

pub(super) const LR: Number = Number::new("lr", NOT_NEGATIVE, "Learning rate.");
