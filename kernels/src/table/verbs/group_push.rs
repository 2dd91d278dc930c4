//! One step of an optimizer by key, in many tables: what another process has summed.

use crate::batch::distinct::Wanted;
use crate::index::Index;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::Mutex;
use crate::table::disk::Held;
use crate::table::group::{by_address, each, places, LEAST};
use crate::table::rows::content::Content;
use crate::table::verbs::apply::Keyed;
use crate::table::{LookupGradients, Table};
use crate::{Columns, Ids, Pool, Result, RowOptimizer, SlotSpec};

/// Gradients by key.
#[derive(Clone, Copy, Debug)]
pub struct KeyGradients<'a> {
    /// Keys `(n)`; they may repeat, padding is skipped.
    pub keys: &'a [i64],
    /// Their gradients `(n, dim)`.
    pub grads: &'a [f32],
    /// The birth `(n)` of each key when its row was read ([`Table::births`]), 0 for a key that was
    /// given none: the row of a key of another birth is not the one that the gradient is of. `None`
    /// if it is not known.
    pub births: Option<&'a [i32]>,
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
    /// Gradients that were dropped because their keys have no row, or another one than they were
    /// read from; each key once an entry.
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

/// What the keys of one entry of [`Push::grads`] are in the table.
struct Found {
    offsets: Vec<i64>,
    inverse: Vec<i32>,
}

/// The update of one table under way.
struct Update<'p, 'a> {
    push: &'p Push<'a>,
    found: Vec<Found>,
    dropped: u64,
}

/// A small update, summed, which waits for its lock.
struct Summed<'p, 'a, 'f> {
    update: &'f Update<'p, 'a>,
    offsets: Vec<i64>,
    keyed: Option<Keyed<'f>>,
}

impl Table {
    /// One step of an optimizer in each of several tables, by key. No key gets a row: gradients of
    /// keys without one are dropped and counted, as [`Table::apply_many`] counts stale ones. In a
    /// table with a history of admission they are dropped without a count, and those of keys whose
    /// count is below its threshold as well, as [`Table::admit`] refuses these. Where births are
    /// given they decide: a gradient reaches the row that was read or none, and those of rows that
    /// are gone are counted.
    ///
    /// Each table is locked for as long as its own update takes, so that pushes of several callers
    /// overlap in different tables. Each row is updated whole.
    ///
    /// Only the caller's thread waits for locks: a helper of the pool that waits for a lock would
    /// stop its holder, who waits for the helper.
    ///
    /// # Errors
    /// As [`Table::expect_pushes`], and `ResourceExhausted` without memory for slots; with a tier
    /// what its files refuse. Then no row of any table has changed. Slots that optimizers need may
    /// have been added if memory or a disk is short of room.
    pub fn push_many(pool: &Pool, pushes: &[Push<'_>]) -> Result<Pushed> {
        Table::expect_pushes(pushes)?;
        let _held = hold(pool, pushes)?;
        for push in pushes {
            push.table.make_ready(pool, push.optimizer)?;
        }
        let updates = look_up(pool, pushes);
        let (small, large): (Vec<_>, Vec<_>) = {
            let total: usize = updates.iter().map(Update::cost).sum();
            let threads = pool.parts(total, LEAST);
            let alone = |one: &&Update<'_, '_>| {
                threads == 1
                    || one.cost() > total / (2 * threads)
                    || one.push.table.has_tier()
                    || pushes.iter().filter(|push| push.is_for(one)).count() > 1
            };
            updates.iter().partition(|one| !alone(one))
        };
        let mut updated = 0;
        for one in large {
            let lookups = one.lookups()?;
            updated += one
                .push
                .table
                .apply_lookups(pool, &lookups, one.push.optimizer)?;
        }
        updated += update_small(pool, small)?;
        let mut dropped = 0;
        for one in &updates {
            dropped += one.dropped;
            one.push.table.keys().counters.dropped(one.dropped);
        }
        Ok(Pushed { updated, dropped })
    }

    /// Refuses pushes of which [`Table::push_many`] can tell that one fails.
    ///
    /// # Errors
    /// `InvalidArgument` for gradients or births of the wrong length, for 2^31 gradients of a
    /// table, and for optimizers that cannot step its rows.
    pub fn expect_pushes(pushes: &[Push<'_>]) -> Result<()> {
        for push in pushes {
            for one in &push.grads {
                push.table
                    .floats("grads", one.grads.len(), one.keys.len())?;
                if let Some(births) = one.births {
                    push.table.length("births", births.len(), one.keys.len())?;
                }
            }
            let keys = push.grads.iter().map(|one| one.keys.len());
            push.table.expect_numbers(keys.sum())?;
        }
        for one in by_address(pushes.iter().map(|push| push.table)) {
            let slots = one
                .members
                .iter()
                .flat_map(|&at| pushes[at].optimizer.slots());
            let slots: Vec<SlotSpec> = slots.collect();
            one.table
                .expect_slots(&one.table.content().read(), &slots)?;
        }
        Ok(())
    }

    /// The births of the keys of offsets, 0 for -1: another number whenever a key gets a row anew,
    /// and the same as long as it has one, until the table is cleared or loaded. The offsets are
    /// those of a lease that is alive.
    pub fn births(&self, offsets: &[i64]) -> Vec<i32> {
        self.rows().births(offsets)
    }

    /// Adds the slots that rows lack, and lets rows on disk catch up that cannot wait longer.
    fn make_ready(&self, pool: &Pool, optimizer: &dyn RowOptimizer) -> Result<()> {
        let (wanted, decay) = (optimizer.slots(), optimizer.decay());
        let has = |slots: &[SlotSpec]| {
            let mut names = wanted.iter().map(|slot| &slot.name);
            names.all(|name| slots.iter().any(|slot| slot.name == *name))
        };
        let waits = decay.is_some() && self.has_tier();
        if !waits && has(&self.content().read().slots) {
            return Ok(());
        }
        let mut content = self.content().write();
        self.begin_step(pool, &mut content, optimizer, &wanted)
            .map(drop)
    }
}

impl Push<'_> {
    fn is_for(&self, update: &Update<'_, '_>) -> bool {
        std::ptr::eq(self.table, update.push.table)
    }
}

impl<'a> Update<'_, 'a> {
    /// How many gradients it has.
    fn cost(&self) -> usize {
        self.push.grads.iter().map(|one| one.keys.len()).sum()
    }

    fn lookups(&self) -> Result<Vec<LookupGradients<'_>>> {
        let pairs = self.found.iter().zip(&self.push.grads);
        let lookups = pairs.map(|(found, one)| {
            Ok(LookupGradients {
                offsets: &found.offsets,
                inverse: &found.inverse,
                grads: Columns::all(one.grads, self.push.table.dim())?,
                bags: None,
            })
        });
        lookups.collect()
    }

    /// Finds the rows of the keys in the index of the table.
    fn look_up(&mut self, pool: &Pool, index: &Index) {
        let table = self.push.table;
        for one in &self.push.grads {
            let mut inverse = vec![0; one.keys.len()];
            let ids = Ids::I64(one.keys);
            let keys = table.keys();
            let room = |n| vec![0; n];
            let found = keys.distinct(pool, index, ids, Wanted::Rows, &mut inverse, room);
            let mut offsets = found.offsets;
            match table.history().read().as_deref() {
                _ if one.births.is_some() => {}
                Some(history) if history.may_refuse() => {
                    let access = history.access();
                    for row in offsets.iter_mut().filter(|row| **row >= 0) {
                        if history.of_row(*row as u32).count < access {
                            *row = -1;
                        }
                    }
                }
                Some(_) => {}
                None => {
                    let nobody = inverse.iter().zip(one.keys);
                    self.dropped += nobody
                        .filter(|(&place, &key)| place < 0 && key != crate::PADDING)
                        .count() as u64;
                }
            }
            if let Some(births) = one.births {
                let now = table.rows().births(&offsets);
                self.dropped += drop_others((one.keys, births), &now, &inverse, &mut offsets);
            }
            table.rows().stamp(&mut offsets);
            self.found.push(Found { offsets, inverse });
        }
    }
}

/// Takes the rows out whose keys have another birth `now` than when they were read; returns how
/// many of the rows that were read are gone.
fn drop_others(
    (keys, births): (&[i64], &[i32]),
    now: &[i32],
    inverse: &[i32],
    rows: &mut [i64],
) -> u64 {
    let mut gone = 0;
    for ((&place, &birth), &key) in inverse.iter().zip(births).zip(keys) {
        let place = usize::try_from(place).ok();
        if birth != place.map_or(0, |at| now[at]) && key != crate::PADDING {
            gone += u64::from(birth != 0);
            if let Some(at) = place {
                rows[at] = -1;
            }
        }
    }
    gone
}

/// Finds the rows of all keys.
fn look_up<'p, 'a>(pool: &Pool, pushes: &'p [Push<'a>]) -> Vec<Update<'p, 'a>> {
    let tables = by_address(pushes.iter().map(|push| push.table));
    let indexes: Vec<_> = tables.iter().map(|one| one.table.index().read()).collect();
    let places = places(&tables, pushes.len());
    let updates = pushes.iter().map(|push| Update {
        push,
        found: Vec::with_capacity(push.grads.len()),
        dropped: 0,
    });
    let mut updates: Vec<_> = updates.collect();
    let all: Vec<_> = updates.iter_mut().enumerate().collect();
    each(
        pool,
        all,
        |(_, one)| one.cost(),
        |pool, (at, one)| one.look_up(pool, &indexes[places[at]]),
    );
    updates
}

/// Updates tables of which each is one thread's share.
fn update_small(pool: &Pool, updates: Vec<&Update<'_, '_>>) -> Result<u64> {
    let alone = Pool::alone();
    let mut summed: Vec<Summed<'_, '_, '_>> = updates
        .into_iter()
        .map(|update| Summed {
            update,
            offsets: Vec::new(),
            keyed: None,
        })
        .collect();
    pool.try_each(summed.iter_mut(), |one: &mut Summed<'_, '_, '_>| {
        let lookups = one.update.lookups()?;
        let offsets = lookups.iter().flat_map(|lookup| lookup.offsets);
        one.offsets = offsets.copied().collect();
        one.update.push.table.expect_numbers(one.offsets.len())?;
        one.keyed = Some(one.update.push.table.keyed(&alone, &lookups)?);
        Ok(())
    })?;
    // The largest first, so that all threads end at about the same time.
    summed.sort_by_key(|one| std::cmp::Reverse(one.update.cost()));
    let updated = AtomicU64::new(0);
    let run = |one: &Summed<'_, '_, '_>, content: &mut Content| -> Result<()> {
        let (push, n) = (one.update.push, one.offsets.len());
        let Some(keyed) = &one.keyed else {
            return Ok(());
        };
        let (table, optimizer) = (push.table, push.optimizer);
        let dealt = table.deal(&alone, content, n, |at| one.offsets[at])?;
        let step = table.begin_step(&alone, content, optimizer, &optimizer.slots())?;
        let count = table.update(&alone, content, &dealt, keyed, &step);
        updated.fetch_add(count, Ordering::Relaxed);
        Ok(())
    };
    // Those that somebody else has locked are left to the caller, who may wait.
    let busy = Mutex::new(Vec::new());
    pool.try_each(summed.iter(), |one: &Summed<'_, '_, '_>| {
        match one.update.push.table.content().try_write() {
            Some(mut content) => run(one, &mut content)?,
            None => busy.lock().push(one),
        }
        Ok(())
    })?;
    for one in busy.into_inner() {
        run(one, &mut one.update.push.table.content().write())?;
    }
    Ok(updated.into_inner())
}
