//! Changing rows: one step of an optimizer, and assignment.

use crate::batch::by_key::ByKey;
use crate::batch::occurrences::Occurrences;
use crate::batch::summed::{Spread, Summed};
use crate::batch::sums::add_row;
use crate::halves::Place;
use crate::mem::{each_asked, NONE};
use crate::optim::{Room, StoredSlot};
use crate::pool::{ranges, Parts};
use crate::stores::{HalfRows, Part, RowPart, Waiting};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::table::disk::expect_all;
use crate::table::engine::LockedIndex;
use crate::table::rows::content::{Content, Places};
use crate::table::rows::offset::Unfit;
use crate::table::{LookupGradients, SlotValues, Table};
use crate::{Error, Ids, Pool, Result, Rounding, RowDtype, RowOptimizer, RowStorage, SlotSpec};
use smallvec::{smallvec, SmallVec};
use std::iter::once;
use std::ops::Range;
use std::sync::Arc;

/// A thread should have at least so many gradients: to wake another one takes as long as several
/// hundred.
const LEAST: usize = 2048;

/// One owner should have at most about so many gradients, so that its lists stay in the second
/// cache.
const MOST: usize = 128 << 10;

impl Table {
    /// Creates or overwrites embeddings, `(n)` ids and `(n, dim)` rows, and some slots, which are
    /// added if rows lack them; the last occurrence of a key wins and its other slots start again
    /// at their initial values. Padding is skipped. Values that are `saved` are those of variables
    /// of a checkpoint: where the table has 2 bytes a value they are rounded as its conversion
    /// says, as those of another table would be; others are rounded to the nearest.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length, for slots of another length or form than the table's
    /// and, of values that are saved, if a table of 2 bytes a value has no conversion;
    /// `ResourceExhausted` over the budget; a failed call changes nothing.
    pub fn fill(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        rows: &[f32],
        slots: &[SlotValues<'_>],
        saved: bool,
    ) -> Result<()> {
        self.floats("rows", rows.len(), ids.len())?;
        let mut specs = Vec::with_capacity(slots.len());
        for SlotValues { slot, values } in slots {
            let expected = ids.len().saturating_mul(slot.floats(self.dim()));
            self.length("slot", values.len(), expected)?;
            specs.push(slot.clone());
        }
        let rounding = match self.config().row_storage.dtype {
            RowDtype::Float32 => Rounding::Nearest,
            _ if !saved => Rounding::Nearest,
            _ => self.conversion_of(RowStorage::default(), None)?,
        };
        // Before new keys get rows.
        self.expect_slots(&self.content().read(), &specs)?;
        let verb = |index: LockedIndex<'_>, offsets: &[i64], inverse: &[i32]| {
            let mut content = self.content().write();
            drop(index);
            expect_all(&content, offsets)?;
            let places = self.named(content.slots_for(&specs))?;
            let slots = places.into_iter().zip(slots.iter().map(|slot| slot.values));
            let values: Vec<(Place, &[f32])> = once((content.layout.embedding(), rows))
                .chain(slots)
                .collect();
            self.overwrite(
                pool,
                &mut content,
                (ids, offsets, inverse),
                (&values, rounding),
            )
        };
        self.with_rows_of(pool, ids, None, &mut vec![0; ids.len()], verb)
    }

    /// How values of a checkpoint are rounded whose types, as which they are `saved`, are not the
    /// table's; `slot` is a slot of which that is so, if there is one.
    pub(crate) fn conversion_of(
        &self,
        saved: RowStorage,
        slot: Option<&SlotSpec>,
    ) -> Result<Rounding> {
        let storage = self.config().row_storage;
        storage.conversion.ok_or_else(|| {
            let what = match saved.dtype == storage.dtype {
                true => "slots",
                false => "rows",
            };
            let error = Error::invalid(format!(
                "the checkpoint has {what} of another type than the table: \
                 row_conversion=\"nearest\" or \"stochastic\" of create_table or StockTables \
                 converts them"
            ));
            let error = error
                .with("table", &self.config().name)
                .with("checkpoint_row_dtype", saved.dtype)
                .with("row_dtype", storage.dtype);
            match slot {
                None => error,
                Some(slot) => error
                    .with("slot", &slot.name)
                    .with("checkpoint_slot_dtype", saved.slot_dtype)
                    .with("slot_dtype", storage.slot_dtype),
            }
        })
    }

    /// [`Table::fill`] of keys whose rows are in memory.
    fn overwrite(
        &self,
        pool: &Pool,
        content: &mut Content,
        (ids, offsets, inverse): (Ids<'_>, &[i64], &[i32]),
        (values, rounding): (&[(Place, &[f32])], Rounding),
    ) -> Result<()> {
        let offset = |at: usize| offsets.get(inverse[at] as usize).copied().unwrap_or(-1);
        let dealt = self.deal(pool, content, ids.len(), offset)?;
        self.named(content.begin_step(pool, None, &[]))?;
        let (reset_slots, frozen) = (content.reset_slots(), content.frozen().to_vec());
        let (halves, waiting) = (content.halves.as_deref(), content.waiting.as_deref());
        let parts = content.store.split(dealt.owners);
        pool.each(parts.into_iter().enumerate(), |(owner, mut part)| {
            for (number, position) in dealt.of(owner) {
                let Some(row) = part.row_mut(number) else {
                    continue;
                };
                let at = position as usize;
                reset_slots(row);
                for &(place, values) in values {
                    let values = &values[at * place.count..(at + 1) * place.count];
                    match halves {
                        None => row[place.start..][..place.count].copy_from_slice(values),
                        Some(halves) => halves.set(rounding, (place, ids.get(at)), values, row),
                    }
                }
                if let Some(waiting) = waiting.filter(|_| frozen.binary_search(&number).is_err()) {
                    waiting.note(number, 0);
                }
            }
        });
        dealt.note(content);
        Ok(())
    }

    /// Refuses more gradients than positions can number.
    pub(in crate::table) fn expect_numbers(&self, n: usize) -> Result<()> {
        if i32::try_from(n).is_ok() {
            return Ok(());
        }
        Err(self
            .refuse("a batch must have fewer than 2^31 gradients")
            .with("n", n))
    }

    /// Sums the gradients of every distinct key of every lookup.
    pub(in crate::table) fn keyed<'a>(
        &self,
        pool: &Pool,
        lookups: &[LookupGradients<'a>],
    ) -> Result<Keyed<'a>> {
        let plain = lookups.iter().filter(|lookup| lookup.bags.is_none());
        let spread: Vec<Spread<'a>> = plain
            .map(|lookup| (lookup.inverse, lookup.grads, lookup.offsets.len()))
            .collect();
        let mut plain = self.named(Summed::all(pool, &spread))?.into_iter();
        let mut found = Vec::with_capacity(lookups.len());
        let mut ends = Vec::with_capacity(lookups.len());
        let mut end = 0;
        for lookup in lookups {
            let (inverse, grads, distinct) = (lookup.inverse, lookup.grads, lookup.offsets.len());
            found.extend(match &lookup.bags {
                None => plain.next().map(OfLookup::Plain),
                Some(bags) => {
                    let by_key = ByKey::new(pool, grads, inverse, bags, distinct);
                    Some(OfLookup::Pooled(self.named(by_key)?))
                }
            });
            end += distinct;
            ends.push(end);
        }
        let lookups = found;
        Ok(Keyed { lookups, ends })
    }

    /// Deals the entries of a batch to owners of rows; padding is dropped, and what is stale is
    /// dropped and counted.
    pub(in crate::table) fn deal(
        &self,
        pool: &Pool,
        content: &Content,
        n: usize,
        offset: impl Fn(usize) -> i64 + Sync,
    ) -> Result<Dealt> {
        let threads = pool.parts(n, LEAST);
        let owners = threads * n.div_ceil(threads * MOST).max(1);
        let mut lists: Parts<Parts<Vec<(u32, u32)>>> = smallvec![Parts::new(); threads];
        let mut stale: Parts<Vec<i64>> = smallvec![Vec::new(); threads];
        let rows = content.offsets();
        let owner_of = content.store.owners(owners);
        let work = ranges(n, threads)
            .into_iter()
            .zip(lists.iter_mut().zip(&mut stale));
        pool.try_each(work, |(range, (lists, stale)): (Range<usize>, _)| {
            let size = range.len() / owners;
            let list = || Vec::with_capacity(size + size / 8 + 16);
            *lists = std::iter::repeat_with(list).take(owners).collect();
            for at in range {
                let offset = offset(at);
                match rows.row(offset) {
                    Ok(NONE) => {}
                    Ok(row) => {
                        lists[owner_of.of(row)].push((row, at as u32));
                    }
                    Err(Unfit::Stale | Unfit::Retired(_)) => stale.push(offset),
                    Err(why) => return Err(self.bad_offset("offsets", offset, why)),
                }
            }
            Ok(())
        })?;
        Ok(Dealt {
            lists,
            owners,
            distinct: false,
            folded: None,
            stale: distinct(stale.concat()),
        })
    }

    /// Refuses slots that the rows, or others of them, have in another form.
    ///
    /// # Errors
    /// As [`Content::expect_slots`], with the table's name.
    pub(in crate::table) fn expect_slots(
        &self,
        content: &Content,
        slots: &[SlotSpec],
    ) -> Result<()> {
        self.named(content.expect_slots(slots))
    }

    /// Makes a content ready for a step of an optimizer with these slots: adds those that its rows
    /// lack, and lets rows catch up that cannot wait longer.
    ///
    /// # Errors
    /// As [`Content::slots_for`] and [`Content::begin_step`], with the table's name.
    pub(in crate::table) fn begin_step<'o>(
        &self,
        pool: &Pool,
        content: &mut Content,
        optimizer: &'o dyn RowOptimizer,
        slots: &[SlotSpec],
    ) -> Result<Step<'o>> {
        let step = content.slots_for(slots).and_then(|slots| {
            content.begin_step(pool, optimizer.decay(), &slots)?;
            Ok(Step { optimizer, slots })
        });
        self.named(step)
    }

    /// Sums the gradients of every row and updates it; returns how many rows changed.
    pub(in crate::table) fn update(
        &self,
        pool: &Pool,
        content: &mut Content,
        dealt: &Dealt,
        grads: &impl Gradients,
        step: &Step<'_>,
    ) -> u64 {
        debug_assert!(dealt.folded.is_none() || content.halves.is_some());
        let Step { optimizer, slots } = step;
        let decay = optimizer.decay();
        self.keys().counters.dropped(dealt.stale);
        if let Some(halves) = &mut content.halves {
            halves.set_updates(halves.updates() + 1);
        }
        let frozen = content.frozen().to_vec();
        let updated = AtomicU64::new(0);
        let halves = content.halves.as_deref();
        let starts: SmallVec<[usize; 4]> = slots.iter().map(|slot| slot.start).collect();
        let slots: SmallVec<[StoredSlot; 4]> = halves.map_or_else(SmallVec::new, |halves| {
            slots.iter().map(|&slot| halves.slot(slot)).collect()
        });
        let waiting = content.waiting.as_deref();
        let parts = content.store.split(dealt.owners);
        pool.each(parts.into_iter().enumerate(), |(owner, part)| {
            let size = dealt.lists.iter().map(|lists| lists[owner].len()).sum();
            let rows = if dealt.distinct {
                Occurrences::distinct(dealt.of(owner), size)
            } else {
                Occurrences::new(dealt.of(owner), size)
            };
            let job = Job {
                dim: self.dim(),
                halves,
                slots: &slots,
                grads,
                optimizer: *optimizer,
                starts: &starts,
                frozen: &frozen,
                folded: dealt.folded.as_deref(),
                waiting,
                steps: usize::from(decay.is_some()),
            };
            let count = match part {
                Part::InMemory(part) => job.run(part, &rows),
                Part::Tiered(part) => job.run(part, &rows),
            };
            updated.fetch_add(count, Ordering::Relaxed);
        });
        if let (Some(waiting), Some(decay)) = (&mut content.waiting, decay) {
            let update = content.halves.as_ref().map_or(0, |halves| halves.updates());
            waiting.push(decay.lr, update);
        }
        dealt.note(content);
        updated.into_inner()
    }
}

/// A step of an optimizer that a content is ready for.
pub(in crate::table) struct Step<'o> {
    optimizer: &'o dyn RowOptimizer,
    /// Where its slots are in a record.
    slots: Places,
}

/// Pairs of a row and its position in the batch, by range of the batch and by owner of the row.
pub(in crate::table) struct Dealt {
    lists: Parts<Parts<Vec<(u32, u32)>>>,
    pub(in crate::table) owners: usize,
    /// Whether no row occurs twice.
    pub(in crate::table) distinct: bool,
    /// By position what the rows are rounded by, if that is known.
    pub(in crate::table) folded: Option<Arc<[u32]>>,
    /// How many distinct offsets are stale.
    pub(in crate::table) stale: u64,
}

/// How many distinct offsets there are.
pub(in crate::table) fn distinct(mut offsets: Vec<i64>) -> u64 {
    offsets.sort_unstable();
    offsets.dedup();
    offsets.len() as u64
}

impl Dealt {
    /// Notes the rows as changed, if anybody wants to know.
    pub(in crate::table) fn note(&self, content: &mut Content) {
        if content.changes.is_on() {
            let rows = (0..self.owners).flat_map(|owner| self.of(owner).map(|(row, _)| row));
            content.changes.touch(rows);
        }
    }

    /// The pairs of one owner, in order of occurrence.
    pub(in crate::table) fn of(
        &self,
        owner: usize,
    ) -> impl Iterator<Item = (u32, u32)> + Clone + '_ {
        self.lists
            .iter()
            .flat_map(move |lists| lists[owner].iter().copied())
    }
}

/// The gradients of a batch by position.
pub(in crate::table) trait Gradients: Sync {
    /// The gradient at `position`, `dim` floats, which may be put into `scratch (dim)`.
    fn at<'s>(&'s self, position: u32, scratch: &'s mut [f32]) -> &'s [f32];
}

/// One gradient a position, `(n, dim)`.
pub(in crate::table) struct Rows<'a> {
    pub(in crate::table) dim: usize,
    pub(in crate::table) grads: &'a [f32],
}

impl Gradients for Rows<'_> {
    #[inline(always)]
    fn at<'s>(&'s self, position: u32, _: &'s mut [f32]) -> &'s [f32] {
        let at = position as usize * self.dim;
        &self.grads[at..at + self.dim]
    }
}

/// The gradients of one lookup by the number of a key.
enum OfLookup<'a> {
    Plain(Summed<'a>),
    Pooled(ByKey<'a>),
}

impl OfLookup<'_> {
    #[inline(always)]
    fn gradient<'s>(&'s self, number: usize, scratch: &'s mut [f32]) -> &'s [f32] {
        match self {
            OfLookup::Plain(summed) => summed.gradient(number),
            OfLookup::Pooled(by_key) => by_key.gradient(number, scratch),
        }
    }
}

/// The gradients of several lookups; a position is a distinct key of one of them, and counts on
/// from lookup to lookup.
pub(in crate::table) struct Keyed<'a> {
    lookups: Vec<OfLookup<'a>>,
    /// Where the positions of each lookup end.
    ends: Vec<usize>,
}

impl Gradients for Keyed<'_> {
    #[inline(always)]
    fn at<'s>(&'s self, position: u32, scratch: &'s mut [f32]) -> &'s [f32] {
        let position = position as usize;
        if let [lookup] = &self.lookups[..] {
            return lookup.gradient(position, scratch);
        }
        let lookup = self.ends.partition_point(|&end| end <= position);
        let start = lookup.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.lookups[lookup].gradient(position - start, scratch)
    }
}

/// What updating rows takes.
struct Job<'a, G> {
    dim: usize,
    /// Of a table whose embeddings have 2 bytes a value.
    halves: Option<&'a HalfRows>,
    /// The slots of such a table.
    slots: &'a [StoredSlot],
    grads: &'a G,
    optimizer: &'a dyn RowOptimizer,
    starts: &'a [usize],
    frozen: &'a [u32],
    /// By position what rows are rounded by, if that is known.
    folded: Option<&'a [u32]>,
    /// Of a table whose rows may have missed steps.
    waiting: Option<&'a Waiting>,
    /// Whether rows wait for this step, too: 1, or 0.
    steps: usize,
}

impl<G: Gradients> Job<'_, G> {
    /// Updates the rows of one owner, which may write all of them, and returns how many changed.
    fn run<P: RowPart>(&self, part: P, found: &Occurrences) -> u64 {
        let (mut sum, mut scratch) = (vec![0.0; self.dim], vec![0.0; self.dim]);
        let mut updated = 0;
        let (mut room, mut caught_up) = (Room::default(), Vec::new());
        // Rows that catch up are rounded by what is noted beside them.
        let is_given = self.folded.is_some() && self.waiting.is_none();
        let named = self.halves.filter(|_| !is_given);
        let ask = |part: &P, (_, &row): (usize, &u32)| {
            part.prefetch(row);
            if let Some(halves) = named {
                halves.prefetch(row);
            }
            if let Some(waiting) = self.waiting {
                waiting.prefetch(row);
            }
        };
        let rows = found.rows().iter().enumerate();
        each_asked(part, rows, ask, |part, (number, &of_row)| {
            if !self.frozen.is_empty() && self.frozen.binary_search(&of_row).is_ok() {
                return;
            }
            let Some(row) = part.row_mut(of_row) else {
                return;
            };
            let (first, later) = found.of(number);
            let mut grad = self.grads.at(first, &mut scratch);
            if !later.is_empty() {
                sum.copy_from_slice(grad);
                for &position in later {
                    add_row(self.grads.at(position, &mut scratch), &mut sum);
                }
                grad = &sum;
            }
            if let Some(waiting) = self.waiting {
                waiting.catch_up(of_row, row, self.halves, &mut caught_up);
                waiting.note(of_row, self.steps);
            }
            match self.halves {
                None => self.optimizer.update(row, self.starts, grad),
                Some(halves) => {
                    let folded = self.folded.map(|folded| folded[first as usize]);
                    halves.update((of_row, folded), (row, self.slots), &mut room, |row| {
                        self.optimizer.update_half(row, grad);
                    });
                }
            }
            updated += 1;
        });
        updated
    }
}
