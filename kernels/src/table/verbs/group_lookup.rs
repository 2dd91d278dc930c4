//! From keys to rows, of one table or of many at once: every batch of a group gets its offsets, or
//! none does.

use crate::batch::distinct::{Distinct, Wanted};
use crate::index::Index;
use crate::mem::Lines;
use crate::table::disk::{until_there, Held};
use crate::table::engine::LockedIndex;
use crate::table::group::{by_address, each_undivided, places, Failure, OneTable};
use crate::table::keys::same_ids::SetsOfIds;
use crate::table::keys::Keys;
use crate::table::rows::flight::Known;
use crate::table::{Lease, Table};
use crate::{Ids, Pool, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// A batch of ids for one table.
#[derive(Debug)]
pub struct IdsOf<'a> {
    /// The table.
    pub table: &'a Arc<Table>,
    /// Keys.
    pub ids: Ids<'a>,
    /// Becomes for each id its place among the offsets; as long as `ids`.
    pub inverse: &'a mut [i32],
}

/// A batch, and what is known of it so far.
struct Batch<'a> {
    table: &'a Table,
    ids: Ids<'a>,
    inverse: &'a mut [i32],
    /// What the index had when its version was so.
    found: Option<(u64, Distinct<Lines>)>,
    /// What the rows of its keys are rounded by.
    folded: Option<Arc<[u32]>>,
}

/// What a table got new rows for.
struct Created {
    keys: Vec<i64>,
    rows: Vec<u32>,
}

impl Table {
    /// De-duplicates `ids` and gives each distinct key its offset.
    ///
    /// Returns the offsets in order of first occurrence; `inverse[i]` is the position in them of
    /// `ids[i]`, or -1 for padding and, with `create == false`, for unknown keys. An offset is
    /// greater than 0. A key has the same offset, good in any number of copies, until its row is
    /// removed or moved or the content is replaced.
    ///
    /// # Errors
    /// `InvalidArgument` if `inverse` is not as long as `ids`, there are 2^31 ids or more, or more
    /// distinct keys than `limit`; `ResourceExhausted` if new rows would exceed the budget. A
    /// failed call leaves the table as it was.
    pub fn id_offset(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        create: bool,
        limit: Option<usize>,
        inverse: &mut [i32],
    ) -> Result<Vec<i64>> {
        if create {
            return self.with_rows_of(pool, ids, limit, inverse, |_, offsets, _| {
                Ok(offsets.to_vec())
            });
        }
        self.length("inverse", inverse.len(), ids.len())?;
        self.expect_ids(ids.len())?;
        let room = |n| vec![0; n];
        let index = self.index().read();
        let mut found = (self.keys()).distinct(pool, &index, ids, Wanted::Rows, inverse, room);
        self.expect_at_most(limit, found.keys)?;
        self.rows().stamp(&mut found.offsets);
        Ok(found.offsets)
    }

    /// [`Table::id_offset`] that creates, of several batches at once, in any number of tables;
    /// `limit` holds for each batch. The offsets come as leases: those that the batches would give
    /// one after the other.
    ///
    /// # Errors
    /// As there, of the first batch that fails; then no key of any batch has got a row.
    pub fn lease_many(
        pool: &Pool,
        group: Vec<IdsOf<'_>>,
        limit: Option<usize>,
    ) -> Result<Vec<Lease>> {
        let arcs: Vec<&Arc<Table>> = group.iter().map(|one| one.table).collect();
        let batches = group.into_iter();
        let batches = batches.map(|one| Batch::new(one.table, one.ids, one.inverse));
        with_rows(pool, batches.collect(), limit, |pinned, held, batches| {
            // Nothing can fail any more, and leases have pins of their own.
            drop(pinned);
            let leases = arcs.iter().zip(batches).map(|(table, batch)| {
                let offsets = Arc::new(batch.take_offsets());
                let known = Known {
                    are_distinct: true,
                    folded: batch.folded.take(),
                };
                table.register(&offsets, known);
                table.leased(offsets)
            });
            let leases = leases.collect();
            drop(held);
            Ok(leases)
        })
    }

    /// Gives the distinct keys of a batch offsets, and new ones rows, and runs a verb on them and
    /// on the inverse with the index locked, and with the rows in memory that were there before. It
    /// is run again if others were faster.
    ///
    /// # Errors
    /// Those of [`Table::id_offset`] and of the verb, and what the disk says.
    pub(super) fn with_rows_of<T>(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        limit: Option<usize>,
        inverse: &mut [i32],
        mut verb: impl FnMut(LockedIndex<'_>, &[i64], &[i32]) -> Result<T>,
    ) -> Result<T> {
        let batch = Batch::new(self, ids, inverse);
        with_rows(pool, vec![batch], limit, |_pinned, mut held, batches| {
            let (index, batch) = (held.remove(0), &mut batches[0]);
            let offsets = batch.take_offsets();
            let done = verb(index, &offsets, batch.inverse);
            self.rows().buffers().keep(offsets);
            done
        })
    }
}

/// Gives the distinct keys of batches offsets, and new ones rows, and runs a verb with the indexes
/// of their tables locked, in the order of the tables' addresses. The verb gets the pins of rows
/// that were brought in, takes the offsets, and is run again if it lacks rows in memory.
fn with_rows<'a, T>(
    pool: &Pool,
    mut batches: Vec<Batch<'a>>,
    limit: Option<usize>,
    mut verb: impl FnMut(Held, Vec<LockedIndex<'a>>, &mut [Batch<'a>]) -> Result<T>,
) -> Result<T> {
    for one in &batches {
        let n = one.ids.len();
        one.table.length("inverse", one.inverse.len(), n)?;
        one.table.expect_ids(n)?;
    }
    let tables = by_address(batches.iter().map(|one| one.table));
    until_there(|lacking| {
        let pinned = bring_in(pool, &tables, &mut batches, limit, lacking.is_some())?;
        let mut held = look_up(pool, &tables, &mut batches, limit)?;
        create(pool, &tables, &mut held, &mut batches)?;
        verb(pinned, held, &mut batches)
    })
}

/// Brings the rows of batches into memory that may be on disk, and makes room for new ones.
fn bring_in(
    pool: &Pool,
    tables: &[OneTable<'_>],
    batches: &mut [Batch<'_>],
    limit: Option<usize>,
    lacks: bool,
) -> Result<Held> {
    let mut rows = Held::new();
    if !tables
        .iter()
        .any(|one| one.table.has_rows_to_bring_in(lacks))
    {
        return Ok(rows);
    }
    let held: Vec<LockedIndex<'_>> = tables
        .iter()
        .map(|one| LockedIndex::Shared(one.table.index().read()))
        .collect();
    look_up_stale(pool, tables, &held, batches, limit)?;
    drop(held);
    for one in tables {
        let found = one.members.iter().filter_map(|&member| {
            let (_, found) = batches[member].found.as_ref()?;
            Some(found)
        });
        let found: Vec<&Distinct<Lines>> = found.collect();
        rows.push(one.table.bring_in_batches(pool, &found, lacks)?);
    }
    Ok(rows)
}

/// Makes every batch distinct and looks its keys up. The index of each table is held, for writing
/// if keys of its batches have no row.
fn look_up<'t>(
    pool: &Pool,
    tables: &[OneTable<'t>],
    batches: &mut [Batch<'_>],
    limit: Option<usize>,
) -> Result<Vec<LockedIndex<'t>>> {
    let mut writes = vec![false; tables.len()];
    // Ends: with each turn there is one table more whose index is held for writing.
    loop {
        let held: Vec<LockedIndex<'t>> = tables
            .iter()
            .zip(&writes)
            .map(|(one, &writes)| match writes {
                true => LockedIndex::Alone(one.table.index().write()),
                false => LockedIndex::Shared(one.table.index().read()),
            })
            .collect();
        look_up_stale(pool, tables, &held, batches, limit)?;
        let mut is_complete = true;
        for (at, one) in tables.iter().enumerate() {
            let lacks = one
                .members
                .iter()
                .any(|&member| batches[member].lacks_rows());
            if lacks && !writes[at] {
                writes[at] = true;
                is_complete = false;
            }
        }
        if is_complete {
            return Ok(held);
        }
    }
}

/// Makes those batches distinct, and looks their keys up, for which that was not done or the index
/// has changed since.
fn look_up_stale(
    pool: &Pool,
    tables: &[OneTable<'_>],
    held: &[LockedIndex<'_>],
    batches: &mut [Batch<'_>],
    limit: Option<usize>,
) -> Result<()> {
    let places = places(tables, batches.len());
    let failure = Failure::default();
    let all = batches.iter_mut().enumerate();
    let all = all.map(|(member, batch)| Asked {
        member,
        index: &held[places[member]],
        batch,
    });
    let stale = all.filter(|one| {
        let version = one.batch.found.as_ref().map(|(version, _)| *version);
        version != Some(one.index.version())
    });
    // All batches use the working memory of one table, which stays in the cache.
    let keys = tables.first().map(|one| one.table.keys());
    each_undivided(
        pool,
        with_the_same_ids(stale),
        |same| same.first().map_or(0, |one| one.batch.ids.len()) * (same.len() + 1) / 2,
        |pool, same| {
            if let Some(keys) = keys {
                look_up_same(pool, keys, same, limit, &failure);
            }
        },
    );
    failure.check()
}

/// Gives the keys that have no row one, in all tables or in none, and counts the batches.
fn create(
    pool: &Pool,
    tables: &[OneTable<'_>],
    held: &mut [LockedIndex<'_>],
    batches: &mut [Batch<'_>],
) -> Result<()> {
    let mut lacking: Vec<(usize, Vec<i64>)> = Vec::new();
    for (at, one) in tables.iter().enumerate() {
        let keys = missing_keys(one.members.iter().map(|&member| &batches[member]));
        if !keys.is_empty() {
            lacking.push((at, keys));
        }
    }
    // What may fail by the tables' own settings comes first, for all of them.
    let failure = Failure::default();
    for (at, keys) in &lacking {
        let one = &tables[*at];
        failure.note(
            one.members[0],
            one.table.budget(held[*at].len(), keys.len() as u64),
        );
    }
    failure.check()?;
    let mut created: Vec<(usize, Created)> = Vec::with_capacity(lacking.len());
    for (at, keys) in lacking {
        let LockedIndex::Alone(index) = &mut held[at] else {
            continue;
        };
        match tables[at].table.create(pool, index, &keys) {
            Ok(rows) => created.push((at, Created { keys, rows })),
            Err(error) => {
                // The system gave no memory. Nobody has seen the rows of the others.
                for (at, created) in created {
                    if let LockedIndex::Alone(index) = &mut held[at] {
                        tables[at].table.take_back(index, created);
                    }
                }
                return Err(error);
            }
        }
    }
    let mut made: HashMap<usize, Created> = created.into_iter().collect();
    for (at, one) in tables.iter().enumerate() {
        let mut new = made.remove(&at).map_or(0, |created| created.keys.len());
        for &member in &one.members {
            let Some((_, found)) = &mut batches[member].found else {
                continue;
            };
            // Of a key that is new in several batches, the first one has made the row.
            let mut own = 0;
            for &(position, key) in &found.missing {
                found.offsets[position as usize] = i64::from(held[at].row(key));
                own += 1;
            }
            let own = new.min(own);
            new -= own;
            one.table.keys().counters.batch(found.keys, own);
            one.table.rows().stamp(&mut found.offsets);
        }
    }
    Ok(())
}

/// The keys of one table's batches that have no row, in order of first occurrence.
fn missing_keys<'b>(batches: impl Iterator<Item = &'b Batch<'b>>) -> Vec<i64> {
    let mut keys: Vec<i64> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for batch in batches {
        let Some((_, found)) = &batch.found else {
            continue;
        };
        let missing = found.missing.iter().map(|&(_, key)| key);
        if keys.is_empty() {
            keys.extend(missing);
            continue;
        }
        if seen.is_empty() {
            seen.extend(keys.iter().copied());
        }
        keys.extend(missing.filter(|&key| seen.insert(key)));
    }
    keys
}

/// A batch that is to be looked up.
struct Asked<'b, 'a> {
    /// Its place in the group.
    member: usize,
    index: &'b Index,
    batch: &'b mut Batch<'a>,
}

/// Puts batches together whose ids are the same: those of several tables that are looked up by one
/// tensor, or by equal ones.
fn with_the_same_ids<'b, 'a>(
    batches: impl Iterator<Item = Asked<'b, 'a>>,
) -> Vec<Vec<Asked<'b, 'a>>> {
    let mut known = SetsOfIds::default();
    let mut sets: Vec<Vec<Asked<'b, 'a>>> = Vec::new();
    for one in batches {
        match sets.get_mut(known.number_of(one.batch.ids)) {
            Some(set) => set.push(one),
            None => sets.push(vec![one]),
        }
    }
    sets
}

/// Makes the ids of some batches, which are the same, distinct once, with the working memory of
/// `keys`, and looks the distinct keys up for each.
fn look_up_same(
    pool: &Pool,
    keys: &Keys,
    same: Vec<Asked<'_, '_>>,
    limit: Option<usize>,
    failure: &Failure,
) {
    let is_shared = same.len() > 1;
    let mut same = same.into_iter();
    let Some(first) = same.next() else { return };
    let wanted = match is_shared {
        true => Wanted::Occurrences,
        false => Wanted::Keys,
    };
    let (own, index) = (&mut *first.batch, first.index);
    let room = |n| own.table.rows().buffers().take(n);
    let mut found = keys.distinct(pool, index, own.ids, wanted, own.inverse, room);
    let (distinct, _) = std::mem::take(&mut found.list);
    let checked = own.table.expect_at_most(limit, found.keys);
    own.folded = own.table.folded_keys(own.ids, own.inverse, found.keys);
    own.found = Some((index.version(), found));
    failure.note(first.member, checked);
    for other in same {
        let one = other.batch;
        let table = one.table;
        one.inverse.copy_from_slice(own.inverse);
        one.folded = table.folded_keys(one.ids, one.inverse, distinct.len());
        let buffer = table.rows().buffers().take(distinct.len());
        let found = Keys::rows_of(pool, other.index, &distinct, buffer);
        let checked = table.expect_at_most(limit, found.keys);
        one.found = Some((other.index.version(), found));
        failure.note(other.member, checked);
    }
}

impl<'a> Batch<'a> {
    fn new(table: &'a Table, ids: Ids<'a>, inverse: &'a mut [i32]) -> Batch<'a> {
        Batch {
            table,
            ids,
            inverse,
            found: None,
            folded: None,
        }
    }

    /// The offsets that were found: afterwards nothing is.
    fn take_offsets(&mut self) -> Lines {
        let found = self.found.take();
        found.map_or_else(|| Lines::new(0), |(_, found)| found.offsets)
    }

    /// Whether some of its keys have no row.
    fn lacks_rows(&self) -> bool {
        let found = self.found.as_ref();
        found.is_some_and(|(_, found)| !found.missing.is_empty())
    }
}

impl Table {
    /// Removes rows that were created under the lock that the caller still holds.
    fn take_back(&self, index: &mut Index, created: Created) {
        let Created { keys, rows } = created;
        keys.iter().for_each(|&key| {
            index.remove(key);
        });
        let told = if self.tracks() { keys } else { Vec::new() };
        self.rows().retire(&rows, told, true);
        self.keys().forget_history(std::iter::empty(), &rows);
        self.keys().count(index);
    }
}
