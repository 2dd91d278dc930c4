//! One step of an optimizer by key, in many tables: what another process has summed.

use super::group::{by_address, each};
use super::tiered::Held;
use super::{LookupGradients, Table};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::Mutex;
use crate::{Error, Ids, Pool, Result, RowOptimizer, SlotSpec};

/// Gradients by key.
#[derive(Clone, Copy, Debug)]
pub struct KeyGradients<'a> {
    /// Keys `(n)`; they may repeat, padding is skipped.
    pub keys: &'a [i64],
    /// Their gradients `(n, dim)`.
    pub grads: &'a [f32],
}

/// The update of one table.
pub struct Push<'a> {
    /// The table.
    pub table: &'a Table,
    /// Its gradients. Those of one key are summed within each entry, then over the entries in
    /// order.
    pub grads: Vec<KeyGradients<'a>>,
    /// The optimizer.
    pub optimizer: &'a dyn RowOptimizer,
}

impl std::fmt::Debug for Push<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Push")
            .field("table", &self.table)
            .field("grads", &self.grads.len())
            .finish_non_exhaustive()
    }
}

/// What pushes have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Distinct rows that were updated.
    pub updated: u64,
    /// Gradients that were dropped because their keys have no row, each key once an entry.
    pub dropped: u64,
}

/// Brings the rows of all pushes into memory, so that no table is changed if that fails for
/// another.
fn hold(pool: &Pool, pushes: &[Push<'_>]) -> Result<Held> {
    let mut held = Held::new();
    let tables = by_address(pushes.iter().map(|push| push.table));
    for one in tables.iter().filter(|one| one.table.has_tier()) {
        let mut offsets = Vec::new();
        for grads in one.members.iter().flat_map(|&at| &pushes[at].grads) {
            let (ids, mut inverse) = (Ids::I64(grads.keys), vec![0; grads.keys.len()]);
            offsets.push(one.table.id_offset(pool, ids, false, None, &mut inverse)?);
        }
        let offsets = offsets.iter().map(|offsets| &offsets[..]);
        held.push(one.table.hold(pool, offsets)?);
    }
    Ok(held)
}

impl Table {
    /// One step of an optimizer in each of several tables, by key. No key gets a row: gradients of
    /// keys without one are dropped and counted, as [`Table::apply`] counts stale ones.
    ///
    /// Each table is locked by itself, for as long as its own update takes, so that pushes of
    /// several callers overlap in different tables. Each row is updated whole.
    ///
    /// # Errors
    /// `InvalidArgument` for gradients of the wrong length, and `ResourceExhausted` without memory
    /// for slots; with a tier what its files refuse. Then no row of any table changed.
    pub fn push_many(pool: &Pool, pushes: &[Push<'_>]) -> Result<Pushed> {
        for push in pushes {
            for one in &push.grads {
                push.table
                    .floats("grads", one.grads.len(), one.keys.len())?;
                push.table.expect_numbers(one.keys.len())?;
            }
        }
        for push in pushes {
            push.table.expect_slots(&push.optimizer.slots())?;
        }
        let _held = hold(pool, pushes)?;
        let (updated, dropped) = (AtomicU64::new(0), AtomicU64::new(0));
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let cost = |push: &&Push<'_>| push.grads.iter().map(|one| one.keys.len()).sum();
        each(
            pool,
            pushes.iter().collect(),
            cost,
            |pool, push| match push.table.push(pool, push) {
                Ok(done) => {
                    updated.fetch_add(done.updated, Ordering::Relaxed);
                    dropped.fetch_add(done.dropped, Ordering::Relaxed);
                }
                Err(error) => {
                    failed.lock().get_or_insert(error);
                }
            },
        );
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(Pushed {
                updated: updated.into_inner(),
                dropped: dropped.into_inner(),
            }),
        }
    }

    fn push(&self, pool: &Pool, push: &Push<'_>) -> Result<Pushed> {
        let mut found = Vec::with_capacity(push.grads.len());
        let mut dropped = 0;
        for one in &push.grads {
            let mut inverse = vec![0; one.keys.len()];
            let offsets = self.id_offset(pool, Ids::I64(one.keys), false, None, &mut inverse)?;
            let nobody = inverse.iter().zip(one.keys);
            dropped += nobody
                .filter(|(&place, &key)| place < 0 && key != crate::PADDING)
                .count() as u64;
            found.push((offsets, inverse, one.grads));
        }
        let lookups: Vec<LookupGradients<'_>> = found
            .iter()
            .map(|(offsets, inverse, grads)| LookupGradients {
                offsets,
                inverse,
                grads,
                bags: None,
            })
            .collect();
        let updated = self.apply_lookups(pool, &lookups, push.optimizer)?;
        self.keys()
            .counters
            .stale
            .fetch_add(dropped, Ordering::Relaxed);
        Ok(Pushed { updated, dropped })
    }

    /// Adds the slots that rows lack.
    fn expect_slots(&self, wanted: &[SlotSpec]) -> Result<()> {
        let has = |slots: &[SlotSpec]| {
            let mut names = wanted.iter().map(|slot| &slot.name);
            names.all(|name| slots.iter().any(|slot| slot.name == *name))
        };
        if has(&self.content().read().slots) {
            return Ok(());
        }
        let starts = self.content().write().slots_for(wanted).map(drop);
        starts.map_err(|error| error.with("table", &self.config().name))
    }
}
