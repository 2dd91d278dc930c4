//! One step of an optimizer in many tables at once.

use crate::batch::reduce::{expect_rows, sum_rows};
use crate::batch::{reduce_columns, reduce_pooled};
use crate::sync::{RwLock, RwLockWriteGuard};
use crate::table::disk::Held;
use crate::table::group::{by_address, each, Failure};
use crate::table::rows::content::Content;
use crate::table::rows::flight::Known;
use crate::table::verbs::apply::{Dealt, Keyed, Rows, Step};
use crate::table::{LookupGradients, RowGradients, Table};
use crate::{Pool, Result, RowOptimizer};
use std::borrow::Cow;

/// Sums of at most so many floats are made beside each other; where there are more, gradients that
/// are alone are read where they are.
const MOST_SUMS: usize = 1 << 18;

/// One table of the group, and what is known of its update so far.
struct Update<'t, 'g> {
    table: &'t Table,
    /// The place of its first member in the group.
    first: usize,
    /// The offsets of all members, one after the other.
    offsets: Cow<'g, [i64]>,
    /// What is known of their keys.
    known: Known,
    grads: Grads<'g>,
    /// How many gradients it has, before those of a key are summed. Who deals its rows updates
    /// them: rows that one thread has dealt are those of one owner.
    cost: usize,
    dealt: Option<Dealt>,
    updated: u64,
}

/// The gradients of a table's members, by their places in the joined offsets.
enum Grads<'g> {
    /// One gradient a place.
    Rows(Cow<'g, [f32]>),
    /// Gradients of the ids of lookups, still to be summed.
    Lookups(Vec<LookupGradients<'g>>),
    /// The same, summed where several belong to one key.
    Keyed(Keyed<'g>),
}

impl Table {
    /// One step of `optimizer` in several tables; returns how many rows changed. The members of
    /// one table count as one batch, joined in the order of the group.
    ///
    /// Gradients of one row are summed in order of occurrence and the row is updated once. Slots
    /// that the optimizer needs and rows lack are added first. Rows of frozen keys do not change.
    /// Gradients whose key was removed since its offset was given out are dropped and counted in
    /// [`Stats`](crate::Stats).
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length or an offset that this table has not given out,
    /// `Aborted` for an offset from before the content was replaced, `ResourceExhausted` if the
    /// system gives no memory: of the first member that fails; then no row of any table changed.
    /// Slots that the optimizer needs may have been added if memory or a disk is short of room.
    pub fn apply_many(
        pool: &Pool,
        group: &[(&Table, RowGradients<'_>)],
        optimizer: &dyn RowOptimizer,
    ) -> Result<u64> {
        for (table, rows) in group {
            table.floats("grads", rows.grads.len(), rows.offsets.len())?;
        }
        let tables = by_address(group.iter().map(|(table, _)| *table));
        let updates = tables.iter().map(|one| {
            let members = || one.members.iter().map(|&at| group[at].1);
            let grads = match one.members[..] {
                [only] => group[only].1.grads.into(),
                _ => members().flat_map(|rows| rows.grads).copied().collect(),
            };
            let offsets: Vec<&[i64]> = members().map(|rows| rows.offsets).collect();
            Update::new(one.table, one.members[0], &offsets, Grads::Rows(grads))
        });
        update_all(pool, updates.collect(), optimizer)
    }

    /// One step of `optimizer` with the gradients of lookups in several tables; returns how many
    /// rows changed. The members of one table are its lookups, in the order of the group.
    ///
    /// As if the gradients of each lookup were summed over its ids with
    /// [`reduce_columns`](crate::reduce_columns), those of a pooled one with
    /// [`reduce_pooled`](crate::reduce_pooled), and [`Table::apply_many`] were called with the sums
    /// of all lookups, one after the other: the same bits without the tensors between.
    ///
    /// # Errors
    /// As [`Table::apply_many`], and `InvalidArgument` for an entry of `inverse` that is no place
    /// in its `offsets`, and for bags that are not those of the ids, of the first member that
    /// fails; then no row of any table changed. Slots that the optimizer needs may have been added
    /// if memory or a disk is short of room.
    pub fn apply_lookups_many(
        pool: &Pool,
        group: &[(&Table, LookupGradients<'_>)],
        optimizer: &dyn RowOptimizer,
    ) -> Result<u64> {
        for (table, lookup) in group {
            lookup.check(table)?;
        }
        let tables = by_address(group.iter().map(|(table, _)| *table));
        let updates = tables.iter().map(|one| {
            let lookups = one.members.iter().map(|&at| group[at].1);
            Update::of_lookups(one.table, one.members[0], lookups.collect())
        });
        update_all(pool, updates.collect(), optimizer)
    }

    /// [`Table::apply_lookups_many`] in one table, also without a lookup.
    ///
    /// # Errors
    /// As there.
    pub fn apply_lookups(
        &self,
        pool: &Pool,
        lookups: &[LookupGradients<'_>],
        optimizer: &dyn RowOptimizer,
    ) -> Result<u64> {
        lookups.iter().try_for_each(|lookup| lookup.check(self))?;
        let update = Update::of_lookups(self, 0, lookups.to_vec());
        update_all(pool, vec![update], optimizer)
    }
}

impl LookupGradients<'_> {
    /// Refuses gradients that are not those of the ids or bags.
    fn check(&self, table: &Table) -> Result<()> {
        table.length("dim of grads", self.grads.dim(), table.dim())?;
        let expected = self.bags.map_or(self.inverse.len(), |bags| bags.len());
        table.length("grads", self.grads.len(), expected)?;
        table.expect_numbers(self.inverse.len().max(expected))
    }
}

impl<'t, 'g> Update<'t, 'g> {
    fn of_lookups(table: &'t Table, first: usize, lookups: Vec<LookupGradients<'g>>) -> Self {
        let offsets: Vec<&[i64]> = lookups.iter().map(|one| one.offsets).collect();
        Update::new(table, first, &offsets, Grads::Lookups(lookups))
    }

    fn new(table: &'t Table, first: usize, offsets: &[&'g [i64]], grads: Grads<'g>) -> Self {
        let flight = table.flight().lock();
        let (offsets, known): (Cow<'g, [i64]>, _) = match *offsets {
            [only] => (only.into(), flight.known(only)),
            _ => {
                let each = offsets.iter().map(|offsets| flight.known(offsets).folded);
                let folded = each.collect::<Option<Vec<_>>>();
                let folded = folded.filter(|folded| !folded.is_empty());
                let known = Known {
                    are_distinct: false,
                    folded: folded
                        .map(|folded| folded.iter().flat_map(|one| &**one).copied().collect()),
                };
                (offsets.concat().into(), known)
            }
        };
        drop(flight);
        Update {
            table,
            first,
            known,
            cost: match &grads {
                Grads::Lookups(lookups) => lookups.iter().map(|one| one.inverse.len()).sum(),
                _ => offsets.len(),
            },
            offsets,
            grads,
            dealt: None,
            updated: 0,
        }
    }

    /// Makes gradients ready to be summed by the key of each lookup, `in_place` those that are
    /// alone: both ways give the same bits.
    fn prepare(&mut self, pool: &Pool, in_place: bool) -> Result<()> {
        let Grads::Lookups(lookups) = &self.grads else {
            return Ok(());
        };
        let (table, dim) = (self.table, self.table.dim());
        if in_place || self.offsets.len() * dim > MOST_SUMS {
            self.grads = Grads::Keyed(table.keyed(pool, lookups)?);
            return Ok(());
        }
        if lookups.iter().all(|lookup| lookup.bags.is_none()) {
            let checks = lookups
                .iter()
                .map(|lookup| expect_rows(lookup.inverse, lookup.offsets.len()));
            return table.named(checks.collect());
        }
        let mut sums = vec![0.0; self.offsets.len() * dim];
        for (lookup, own) in each_sum(lookups, dim, &mut sums) {
            let (grads, inverse) = (lookup.grads, lookup.inverse);
            table.named(match &lookup.bags {
                Some(bags) => reduce_pooled(pool, grads, inverse, bags, own),
                None => reduce_columns(pool, grads, inverse, own),
            })?;
        }
        self.grads = Grads::Rows(sums.into());
        Ok(())
    }

    /// Finds the rows of all offsets.
    fn deal(&mut self, pool: &Pool, content: &Content) -> Result<()> {
        let n = self.offsets.len();
        let offset = |at: usize| self.offsets[at];
        let mut dealt = self.table.deal(pool, content, n, offset)?;
        dealt.distinct = self.known.are_distinct;
        dealt.folded = self.known.folded.take();
        self.dealt = Some(dealt);
        Ok(())
    }

    /// Updates the rows. Gradients that are only to be summed are summed now, so that they are
    /// still in the caches.
    fn run(&mut self, pool: &Pool, content: &mut Content, step: &Step<'_>) {
        let Some(dealt) = &self.dealt else {
            return;
        };
        let (table, dim) = (self.table, self.table.dim());
        self.updated = match &self.grads {
            Grads::Rows(grads) => {
                let rows = Rows { dim, grads };
                table.update(pool, content, dealt, &rows, step)
            }
            Grads::Keyed(keyed) => table.update(pool, content, dealt, keyed, step),
            Grads::Lookups(lookups) => {
                let mut sums = vec![0.0; self.offsets.len() * dim];
                for (lookup, own) in each_sum(lookups, dim, &mut sums) {
                    sum_rows(pool, lookup.grads, lookup.inverse, own);
                }
                let rows = Rows { dim, grads: &sums };
                table.update(pool, content, dealt, &rows, step)
            }
        };
    }
}

/// Each lookup with the place of the sums of its keys.
fn each_sum<'s, 'g>(
    lookups: &'s [LookupGradients<'g>],
    dim: usize,
    sums: &'s mut [f32],
) -> impl Iterator<Item = (&'s LookupGradients<'g>, &'s mut [f32])> {
    let mut rest = sums;
    lookups.iter().filter_map(move |lookup| {
        let own = rest.split_off_mut(..lookup.offsets.len() * dim)?;
        Some((lookup, own))
    })
}

/// Sums, checks and updates; `updates` are in the order of their tables' addresses.
fn update_all(
    pool: &Pool,
    updates: Vec<Update<'_, '_>>,
    optimizer: &dyn RowOptimizer,
) -> Result<u64> {
    for update in &updates {
        update.table.expect_numbers(update.offsets.len())?;
    }
    let is_only = updates.len() == 1;
    let mut _held = Held::new();
    let contents: Vec<RwLockWriteGuard<'_, Content>> = match &updates[..] {
        [one] => vec![one.table.content_with(pool, &one.offsets, RwLock::write)?],
        _ => {
            for one in updates.iter().filter(|one| one.table.has_tier()) {
                let offsets = std::iter::once(&one.offsets[..]);
                _held.push(one.table.hold(pool, offsets)?);
            }
            let tables = updates.iter().map(|one| one.table);
            tables.map(|table| table.content().write()).collect()
        }
    };
    // In the order of their members from here on.
    let mut all: Vec<_> = updates.into_iter().zip(contents).collect();
    all.sort_by_key(|(one, _)| one.first);
    let (failure, slots) = (Failure::default(), optimizer.slots());
    each(
        pool,
        all.iter_mut()
            .map(|(one, content)| (one, &**content))
            .collect(),
        |(one, _)| one.cost,
        |pool, (one, content)| {
            let done = one
                .prepare(pool, is_only)
                .and_then(|()| one.deal(pool, content))
                .and_then(|()| one.table.expect_slots(content, &slots));
            failure.note(one.first, done);
        },
    );
    failure.check()?;
    let begun = all.iter_mut().map(|(one, content)| {
        let step = one.table.begin_step(pool, content, optimizer, &slots)?;
        Ok((one, &mut **content, step))
    });
    // No row has changed before all of them are ready.
    let begun: Vec<(&mut Update<'_, '_>, &mut Content, Step<'_>)> = begun.collect::<Result<_>>()?;
    each(
        pool,
        begun,
        |(one, _, _)| one.cost,
        |pool, (one, content, step)| one.run(pool, content, &step),
    );
    Ok(all.iter().map(|(one, _)| one.updated).sum())
}
