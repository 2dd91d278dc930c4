//! The one list of optimizers.

use super::description::Optimizer;
use super::{
    adadelta, adagrad, adam, adamax, ftrl, lazy_adam, momentum, nadam, proximal, rmsprop, rowwise,
    sgd,
};
use crate::{Error, Result};

/// The optimizers. The place of one in this list is its number in graphs, which never changes.
pub const OPTIMIZERS: [&Optimizer; 21] = [
    &sgd::SGD,
    &momentum::MOMENTUM,
    &momentum::NESTEROV,
    &adagrad::ADAGRAD,
    &lazy_adam::LAZY_ADAM,
    &ftrl::FTRL,
    &rmsprop::RMSPROP,
    &rmsprop::CENTERED_RMSPROP,
    &adam::ADAM,
    &adam::ADAMW,
    &nadam::NADAM,
    &nadam::SCHEDULED_NADAM,
    &adamax::ADAMAX,
    &adagrad::ADAGRAD_V2,
    &rowwise::ROWWISE_ADAGRAD,
    &rowwise::ROWWISE_ADAM,
    &momentum::KERAS_MOMENTUM,
    &momentum::KERAS_NESTEROV,
    &adadelta::ADADELTA,
    &proximal::PROXIMAL_SGD,
    &proximal::PROXIMAL_ADAGRAD,
];

impl Optimizer {
    /// The optimizer of a number in a graph.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none.
    pub fn of(number: i32) -> Result<&'static Optimizer> {
        let found = usize::try_from(number)
            .ok()
            .and_then(|number| OPTIMIZERS.get(number).copied());
        found.ok_or_else(|| {
            Error::invalid("there is no optimizer of this number").with("optimizer", number)
        })
    }
}

/// What a slot starts at if nothing else says it; 0 for slots of other optimizers.
pub(crate) fn usual_start(slot: &str) -> f32 {
    let mut slots = OPTIMIZERS.iter().flat_map(|optimizer| optimizer.slots);
    let found = slots.find(|known| known.name == slot);
    found.map_or(0.0, |slot| slot.initial)
}

#[cfg(test)]
mod tests {
    use super::super::description::{Number, OtherRows};
    use super::*;

    /// Numbers that an optimizer takes.
    fn good(optimizer: &Optimizer) -> Vec<f32> {
        let numbers = optimizer.numbers.iter();
        numbers
            .map(|number| if number.range.has(0.5) { 0.5 } else { -0.5 })
            .collect()
    }

    #[test]
    fn the_table_says_what_steps_check_and_which_slots_they_have() {
        for (at, optimizer) in OPTIMIZERS.iter().enumerate() {
            let (name, numbers) = (optimizer.name, good(optimizer));
            assert!(std::ptr::eq(Optimizer::of(at as i32).unwrap(), *optimizer));
            let step = optimizer.step(&numbers).unwrap();
            assert_eq!(step.slots(), optimizer.slots_from(0.5), "{name}");
            let other_rows = match step.decay() {
                None => OtherRows::Stay,
                Some(decay) if decay.moves => OtherRows::Move,
                Some(_) => OtherRows::Decay,
            };
            assert_eq!(other_rows, optimizer.other_rows, "{name}");
            for number in 0..numbers.len() {
                let Number { name, range, .. } = optimizer.numbers[number];
                let wrong = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
                for value in wrong.into_iter().chain(range.without) {
                    let mut numbers = numbers.clone();
                    numbers[number] = value;
                    let error = optimizer.step(&numbers).err().expect("refused").to_string();
                    let text = format!("{}: {name} {}", optimizer.name, range.rule);
                    assert!(error.contains(&text), "{error}");
                }
            }
            for wrong in [&numbers[1..], &[&numbers[..], &[0.5]].concat()] {
                let error = optimizer.step(wrong).err().expect("refused").to_string();
                assert!(error.contains(optimizer.numbers[1].name), "{error}");
            }
        }
        for wrong in [-1, OPTIMIZERS.len() as i32] {
            assert!(Optimizer::of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_those_of_one_optimizer_and_slots_start_in_one_way() {
        for (at, optimizer) in OPTIMIZERS.iter().enumerate() {
            for other in &OPTIMIZERS[..at] {
                assert_ne!(optimizer.name, other.name);
            }
            for slot in optimizer.slots {
                assert_eq!(usual_start(slot.name), slot.initial, "{}", slot.name);
                let number = optimizer.numbers.iter();
                let number = number.filter(|number| Some(number.name) == slot.starts_at);
                assert_eq!(number.count(), usize::from(slot.starts_at.is_some()));
            }
        }
    }

    #[test]
    fn a_gradient_of_zeros_changes_nothing_where_the_table_says_so() {
        for optimizer in OPTIMIZERS {
            let step = optimizer.step(&good(optimizer)).unwrap();
            let (mut row, mut places) = (vec![2.0, -3.0], Vec::new());
            for slot in step.slots() {
                places.push(row.len());
                // As after a step, not as a new row.
                row.resize(row.len() + slot.floats(2), slot.initial + 0.25);
            }
            let before = row.clone();
            step.update(&mut row, &places, &[0.0, -0.0]);
            assert_eq!(row == before, optimizer.ignores_zeros, "{}", optimizer.name);
        }
    }
}
