//! Batches that get their rows ahead of their step, in one table or in many: one list of work for
//! the keys of all of them.

use crate::batch::distinct::{Distinct, Wanted};
use crate::index::Index;
use crate::mem::Lines;
use crate::stores::Pinned;
use crate::table::disk::Held;
use crate::table::group::{by_address, each, each_undivided, places, OneTable, LEAST};
use crate::table::keys::same_ids::SetsOfIds;
use crate::table::keys::Keys;
use crate::table::rows::fingerprint::Fingerprint;
use crate::table::{IdsOf, Lease, Table};
use crate::{Ids, Pool};
use std::sync::Arc;

/// Indexes are held for at most so many ids a thread at once, and for a batch a thread at least: a
/// claim that enters keys waits for them.
const MOST_HELD: usize = 4 * LEAST;

/// Several batches of fewer ids in all stay on the caller's thread: to wake others takes longer
/// than they save, and there is time ahead of the step.
const ALONE: usize = 4 * LEAST;

/// The same ids in one or several tables.
pub(in crate::table) struct SameIds<'a> {
    /// Keys.
    pub(in crate::table) ids: Ids<'a>,
    /// Becomes for each id its place among the offsets, which is the same in all tables.
    pub(in crate::table) inverse: &'a mut [i32],
    /// The tables, each with its place in the group.
    pub(in crate::table) members: Vec<(usize, &'a Arc<Table>)>,
}

impl SameIds<'_> {
    /// How much work they are, in ids: they are made distinct once.
    fn cost(&self) -> usize {
        self.ids.len() * (self.members.len() + 1) / 2
    }

    /// What their tables have to know of their keys.
    fn wanted(&self) -> Wanted {
        match self.members.len() {
            1 => Wanted::Keys,
            _ => Wanted::Occurrences,
        }
    }

    /// Whether they can be looked up at all.
    fn is_sound(&self) -> bool {
        self.inverse.len() == self.ids.len() && i32::try_from(self.ids.len()).is_ok()
    }
}

/// A member of a group, and what its table has for its keys.
struct Member<'a> {
    /// Its place in the group.
    place: usize,
    table: &'a Arc<Table>,
    found: Option<(Distinct<Lines>, Fingerprint)>,
    /// Pins of what was brought in for it.
    pinned: Option<Pinned>,
    /// Whether that are the rows that were found: keys may have lost and got rows meanwhile.
    is_current: bool,
}

/// What a table had for a batch when the version of its index was so, and its pins if there was
/// room for it.
type Brought = (u64, Distinct<Lines>, Option<Pinned>);

impl Member<'_> {
    /// Whether some of its keys have no row.
    fn lacks_rows(&self) -> bool {
        let found = self.found.as_ref();
        found.is_some_and(|(found, _)| !found.missing.is_empty())
    }
}

impl Table {
    /// Does what it can of a lookup of the same ids in several tables ahead of the step, a lease
    /// for each: new keys get rows, initialised, that no verb sees before
    /// [`Table::claim_expected`] enters them. Without a claim they are freed when the last lease
    /// that names them ends. The leases share `inverse`, and the ids are de-duplicated once.
    ///
    /// Where that is not possible (more keys than `limit`, no room in the budget, no memory) the
    /// lease is empty, and if all are, `inverse` is -1: the claim says so, and the step does it
    /// all.
    pub fn prepare_all(
        tables: &[Arc<Table>],
        pool: &Pool,
        ids: Ids<'_>,
        limit: Option<usize>,
        inverse: &mut [i32],
    ) -> Vec<Lease> {
        let mut sets = [SameIds {
            ids,
            inverse,
            members: tables.iter().enumerate().collect(),
        }];
        prepare_sets(pool, &mut sets, limit)
    }

    /// [`Table::prepare_all`] of several batches at once, in any number of tables; `limit` holds
    /// for each batch. Batches with the same ids are made distinct once, and share whether their
    /// inverse is -1. A batch that cannot be prepared does not keep the others from it.
    ///
    /// The leases are those that `prepare_all` would give for the batches one after the other, in
    /// the order in which their ids come first in the group.
    pub fn prepare_many(pool: &Pool, group: Vec<IdsOf<'_>>, limit: Option<usize>) -> Vec<Lease> {
        let mut known = SetsOfIds::default();
        // Of each set of the same ids, its place among those that are prepared.
        let mut places: Vec<usize> = Vec::new();
        let mut sets: Vec<SameIds<'_>> = Vec::with_capacity(group.len());
        let mut copies: Vec<(usize, &mut [i32])> = Vec::new();
        for (place, one) in group.into_iter().enumerate() {
            let at = places.get(known.number_of(one.ids)).copied();
            match at.filter(|&at| sets[at].inverse.len() == one.inverse.len()) {
                Some(at) => {
                    sets[at].members.push((place, one.table));
                    copies.push((at, one.inverse));
                }
                None => {
                    if at.is_none() {
                        places.push(sets.len());
                    }
                    sets.push(SameIds {
                        ids: one.ids,
                        inverse: one.inverse,
                        members: vec![(place, one.table)],
                    });
                }
            }
        }
        let leases = prepare_sets(pool, &mut sets, limit);
        for (at, inverse) in copies {
            inverse.copy_from_slice(sets[at].inverse);
        }
        leases
    }
}

/// Gives the keys of some sets of ids rows ahead of their step; returns a lease for each member, by
/// its place in the group. The inverse of a set whose leases are all empty becomes -1.
pub(in crate::table) fn prepare_sets(
    pool: &Pool,
    sets: &mut [SameIds<'_>],
    limit: Option<usize>,
) -> Vec<Lease> {
    let mut leases = Vec::new();
    let members = sets.iter().map(|same| same.members.len()).sum();
    leases.resize_with(members, Lease::empty);
    let alone = Pool::alone();
    let all: usize = sets.iter().map(SameIds::cost).sum();
    let pool = match sets.len() > 1 && all < ALONE {
        true => &alone,
        false => pool,
    };
    let most = MOST_HELD * pool.threads();
    let mut rest = &mut *sets;
    while !rest.is_empty() {
        let mut sum = 0;
        let within = rest.iter().take_while(|same| {
            sum += same.cost();
            sum <= most
        });
        let count = within.count().max(pool.threads()).min(rest.len());
        let (some, others) = rest.split_at_mut(count);
        prepare_at_once(pool, some, limit, &mut leases);
        rest = others;
    }
    for same in sets {
        if same.members.iter().all(|&(at, _)| leases[at].is_empty()) {
            same.inverse.fill(-1);
        }
    }
    leases
}

/// Prepares sets with the indexes of all their tables held: no key can be entered or removed
/// before the leases are known.
fn prepare_at_once(
    pool: &Pool,
    sets: &mut [SameIds<'_>],
    limit: Option<usize>,
    leases: &mut [Lease],
) {
    let mut members = Vec::new();
    let mut starts = Vec::with_capacity(sets.len());
    let mut _brought = Held::new();
    // What the first table of each set is known to have.
    let mut ahead = Vec::with_capacity(sets.len());
    for same in sets.iter_mut().filter(|same| same.is_sound()) {
        starts.push(members.len());
        ahead.push(bring_in(pool, same, &mut _brought));
        for &(place, table) in &same.members {
            members.push(Member {
                place,
                table,
                found: None,
                pinned: None,
                is_current: false,
            });
        }
    }
    let arcs: Vec<&Arc<Table>> = members.iter().map(|one| one.table).collect();
    let tables = by_address(arcs.iter().map(|table| &***table));
    let Some(keys) = tables.first().map(|one| one.table.keys()) else {
        return;
    };
    let of = places(&tables, members.len());
    let mut held: Vec<_> = tables
        .iter()
        .map(|one| Some(one.table.index().read()))
        .collect();
    let indexes: Vec<&Index> = held.iter().flatten().map(|index| &**index).collect();
    let firsts = starts.iter().copied().zip(ahead).collect();
    look_up(pool, keys, sets, &mut members, firsts, &|at| {
        indexes[of[at]]
    });
    // Who stages rows may wait for an update of its table; the others go first, and their indexes
    // are free meanwhile.
    let lacks = |one: &OneTable<'_>, members: &[Member<'_>]| {
        one.members.iter().any(|&at| members[at].lacks_rows())
    };
    let (last, first): (Vec<usize>, Vec<usize>) =
        (0..tables.len()).partition(|&at| lacks(&tables[at], &members));
    for at in first.into_iter().chain(last) {
        let Some(index) = held[at].take() else {
            continue;
        };
        for &member in &tables[at].members {
            let one = &mut members[member];
            if let Some((found, source)) = one.found.take() {
                let found = (found, one.pinned.take_if(|_| one.is_current));
                leases[one.place] = one.table.stage(pool, &index, found, limit, source);
            }
        }
    }
}

/// Brings the rows of a set in that are on disk, without a lock on any index; they stay in memory
/// as long as what is added to `brought`, and what is returned: what the first table has, if it had
/// to be asked.
fn bring_in(pool: &Pool, same: &mut SameIds<'_>, brought: &mut Held) -> Option<Brought> {
    let ids = same.ids;
    let has_to = |table: &Table| table.has_to_bring_in(ids.len());
    if !same.members.iter().any(|(_, table)| has_to(table)) {
        return None;
    }
    let wanted = same.wanted();
    let (&(_, first), others) = same.members.split_first()?;
    let room = |n| first.rows().buffers().take(n);
    let index = first.index().read();
    let version = index.version();
    let found = (first.keys()).distinct(pool, &index, ids, wanted, same.inverse, room);
    drop(index);
    let pinned = first.bring_in_ahead(pool, &found);
    let keys = &found.list.0;
    for &(_, table) in others.iter().filter(|(_, table)| has_to(table)) {
        let buffer = table.rows().buffers().take(keys.len());
        let found = Keys::rows_of(pool, &table.index().read(), keys, buffer);
        brought.push(table.bring_in_ahead(pool, &found));
        table.rows().buffers().keep(found.offsets);
    }
    Some((version, found, pinned))
}

/// Makes the ids of each set distinct, with the working memory of `keys`, and looks the distinct
/// keys up in the index of each member. `starts` are the first members of the sets that are sound,
/// with what is known of them already.
fn look_up<'i>(
    pool: &Pool,
    keys: &Keys,
    sets: &mut [SameIds<'_>],
    members: &mut [Member<'_>],
    starts: Vec<(usize, Option<Brought>)>,
    index_of: &(dyn Fn(usize) -> &'i Index + Sync),
) {
    let sound = sets.iter_mut().filter(|same| same.is_sound());
    let mut rest = &mut *members;
    let mut firsts = Vec::with_capacity(starts.len());
    let mut others = Vec::new();
    for (same, (start, ahead)) in sound.zip(starts) {
        let (own, after) = rest.split_at_mut(same.members.len());
        rest = after;
        if let Some((first, shared)) = own.split_first_mut() {
            firsts.push((start, same, first, (ahead, Vec::new())));
            others.push((start, shared));
        }
    }
    each_undivided(
        pool,
        firsts.iter_mut().collect(),
        |(_, same, _, _)| same.ids.len(),
        |pool, (start, same, first, (ahead, distinct))| {
            let (index, ids, wanted) = (index_of(*start), same.ids, same.wanted());
            let mut found = match ahead.take() {
                Some((version, found, pinned)) if version == index.version() => {
                    (first.pinned, first.is_current) = (pinned, true);
                    found
                }
                stale => {
                    first.pinned = stale.and_then(|(.., pinned)| pinned);
                    let room = |n| first.table.rows().buffers().take(n);
                    keys.distinct(pool, index, ids, wanted, same.inverse, room)
                }
            };
            *distinct = std::mem::take(&mut found.list).0;
            first.found = Some((found, Fingerprint::of(ids, same.inverse)));
        },
    );
    let mut again = Vec::new();
    for ((start, shared), (_, _, first, (_, distinct))) in others.into_iter().zip(&firsts) {
        let Some((_, source)) = &first.found else {
            continue;
        };
        let shared = shared.iter_mut().enumerate();
        again.extend(shared.map(|(at, one)| (start + 1 + at, one, distinct, *source)));
    }
    each(
        pool,
        again,
        |(_, _, distinct, _)| distinct.len(),
        |pool, (at, one, distinct, source)| {
            let room = one.table.rows().buffers().take(distinct.len());
            one.found = Some((Keys::rows_of(pool, index_of(at), distinct, room), source));
        },
    );
}
