//! What a table should be, one key at a time.

use super::{initializer, Copy, DIM, FROZEN, SEED};
use mx_rec_kernels::{RowOptimizer, SlotSpec};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What a table should be: rows by key, one at a time, with nothing shared with the engine but the
/// row arithmetic.
#[derive(Clone, Default)]
pub(crate) struct Model {
    /// Embedding and slots by key.
    pub(crate) rows: HashMap<i64, Vec<f32>>,
    /// In the order in which they lie in a row.
    pub(crate) slots: Vec<SlotSpec>,
    /// By key: which of all rows that were ever made it has.
    pub(crate) stays: HashMap<i64, u64>,
    made: u64,
    /// How often the content was replaced.
    pub(crate) replaced: u64,
}

impl Model {
    pub(crate) fn create(&mut self, key: i64) -> &mut Vec<f32> {
        let slots = &self.slots;
        if !self.rows.contains_key(&key) {
            self.made += 1;
            self.stays.insert(key, self.made);
        }
        self.rows.entry(key).or_insert_with(|| {
            let mut row = vec![0.0; DIM];
            initializer().fill(SEED, key, &mut row);
            row.iter_mut().for_each(|value| *value *= 0.5);
            slots
                .iter()
                .for_each(|slot| row.extend([slot.initial; DIM]));
            row
        })
    }

    /// Whether the row of a copied offset is still its own.
    pub(crate) fn has(&self, copy: &Copy) -> bool {
        self.rows.contains_key(&copy.key) && self.stays[&copy.key] == copy.stay
    }

    pub(crate) fn missing(&self, ids: &[i64]) -> u64 {
        let new: HashSet<i64> = ids
            .iter()
            .copied()
            .filter(|id| *id != -1 && !self.rows.contains_key(id))
            .collect();
        new.len() as u64
    }

    pub(crate) fn apply(
        &mut self,
        ids: &[i64],
        grads: &[f32],
        optimizer: &dyn RowOptimizer,
    ) -> u64 {
        ids.iter().filter(|&&id| id != -1).for_each(|&id| {
            self.create(id);
        });
        let mut starts = Vec::new();
        for spec in optimizer.slots() {
            let at = self
                .slots
                .iter()
                .position(|slot| slot.name == spec.name)
                .unwrap_or_else(|| {
                    self.rows
                        .values_mut()
                        .for_each(|row| row.extend([spec.initial; DIM]));
                    self.slots.push(spec);
                    self.slots.len() - 1
                });
            starts.push(DIM * (1 + at));
        }
        let mut sums: BTreeMap<i64, Vec<f32>> = BTreeMap::new();
        for (&id, grad) in ids
            .iter()
            .zip(grads.chunks_exact(DIM))
            .filter(|(&id, _)| id != -1)
        {
            sums.entry(id)
                .and_modify(|sum| {
                    sum.iter_mut()
                        .zip(grad)
                        .for_each(|(sum, grad)| *sum += grad)
                })
                .or_insert_with(|| grad.to_vec());
        }
        sums.retain(|key, _| !FROZEN.contains(key));
        for (key, grad) in &sums {
            if let Some(row) = self.rows.get_mut(key) {
                optimizer.update(row, &starts, grad);
            }
        }
        sums.len() as u64
    }
}
