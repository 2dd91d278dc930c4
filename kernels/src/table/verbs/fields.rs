//! Updates that are computed outside of the table: reads fields of the rows of a batch, and writes
//! them back.

use crate::halves::Place;
use crate::mem::NONE;
use crate::simd::Level;
use crate::stores::RowPart;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{RwLock, RwLockReadGuard};
use crate::table::rows::content::{other_width, Content};
use crate::table::rows::key_map::KeyMap;
use crate::table::rows::offset::Unfit;
use crate::table::verbs::apply::distinct;
use crate::table::Table;
use crate::{Ids, Kind, Pool, Result, RowDtype, SlotSpec};
use std::ops::RangeInclusive;

/// Fields of so many rows start afresh at once.
const STARTED: usize = 1 << 12;

/// A part of a row that an update reads and writes: `dim` floats.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// The embedding.
    Embedding,
    /// A slot; rows that lack it have its initial value. Its name must be that of a directory, see
    /// [`check_slot`](crate::checkpoint::check_slot).
    Slot(SlotSpec),
}

/// New values of one field, `(n, dim)`.
#[derive(Clone, Debug)]
pub struct FieldUpdate<'a> {
    /// Which field.
    pub field: Field,
    /// What the update was computed from.
    pub old: &'a [f32],
    /// What the update has made of it.
    pub new: &'a [f32],
}

/// The distinct rows of a batch of gradients. The table's rows stay as they are while it lives.
pub struct BatchRows<'t> {
    table: &'t Table,
    content: RwLockReadGuard<'t, Content>,
    /// Row numbers of `offsets`.
    rows: Vec<u32>,
    offsets: Vec<i64>,
    places: Vec<i64>,
    kept: Option<Vec<usize>>,
}

impl BatchRows<'_> {
    /// The offsets of the distinct rows `(u)`, in order of first occurrence.
    pub fn offsets(&self) -> &[i64] {
        &self.offsets
    }

    /// For each gradient that is kept, the place of its row in [`BatchRows::offsets`].
    pub fn places(&self) -> &[i64] {
        &self.places
    }

    /// The positions of the gradients that are kept, ascending. `None`: all of them.
    pub fn kept(&self) -> Option<&[usize]> {
        self.kept.as_deref()
    }

    /// Copies a field of the distinct rows, `(u, dim)`.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length, and for a slot with one float for the row.
    pub fn read(&self, pool: &Pool, field: &Field, out: &mut [f32]) -> Result<()> {
        let dim = self.table.dim();
        self.table.floats("out", out.len(), self.rows.len())?;
        let (layout, level) = (self.content.layout, Level::detect());
        let place = match field {
            Field::Embedding => layout.embedding(),
            Field::Slot(spec) => {
                let slots = &self.content.slots;
                let found = slots.iter().zip(layout.slots(slots));
                match { found }.find(|(slot, _)| slot.name == spec.name) {
                    Some((slot, _)) if slot.per_row != spec.per_row => {
                        return Err(other_width(slot).with("table", &self.table.config().name));
                    }
                    Some((_, place)) => place,
                    None => {
                        out.fill(layout.initial(spec));
                        return Ok(());
                    }
                }
            }
        };
        self.table.parts(pool, self.rows.len(), out, |range, out| {
            let mut now = [Vec::new(), Vec::new()];
            for (&number, out) in self.rows[range].iter().zip(out.chunks_exact_mut(dim)) {
                let Some(mut row) = self.content.store.row(number) else {
                    continue;
                };
                if let Some(waiting) = &self.content.waiting {
                    let halves = self.content.halves.as_deref();
                    row = waiting.caught_up(number, row, halves, &mut now);
                }
                place.read(level, row, out);
            }
            Ok(())
        })
    }
}

impl Table {
    /// The rows that gradients with `offsets` update. Gradients of padding are dropped; those whose
    /// key was removed since its offset was given out are dropped and counted in
    /// [`Stats`](crate::Stats).
    ///
    /// # Errors
    /// `InvalidArgument` for an offset that this table has not given out, `Aborted` for an offset
    /// from before the content was replaced.
    pub fn batch_rows(&self, offsets: &[i64]) -> Result<BatchRows<'_>> {
        let alone = Pool::alone();
        let content = self.content_with(&alone, offsets, RwLock::read)?;
        let mut found = KeyMap::<u32, i64>::default();
        found.reserve(offsets.len());
        let (mut rows, mut firsts) = (Vec::new(), Vec::new());
        let mut places = Vec::with_capacity(offsets.len());
        let mut kept: Option<Vec<usize>> = None;
        let mut stale = Vec::new();
        let known = content.offsets();
        for (at, &offset) in offsets.iter().enumerate() {
            match known.row(offset) {
                Ok(row) if row != NONE => {
                    let place = *found.entry(row).or_insert_with(|| {
                        rows.push(row);
                        firsts.push(offset);
                        rows.len() as i64 - 1
                    });
                    places.push(place);
                    if let Some(kept) = &mut kept {
                        kept.push(at);
                    }
                    continue;
                }
                Ok(_) => {}
                Err(Unfit::Stale | Unfit::Retired(_)) => stale.push(offset),
                Err(why) => return Err(self.bad_offset("offsets", offset, why)),
            }
            kept.get_or_insert_with(|| (0..at).collect());
        }
        drop(known);
        self.keys().counters.dropped(distinct(stale));
        Ok(BatchRows {
            table: self,
            content,
            rows,
            offsets: firsts,
            places,
            kept,
        })
    }

    /// Writes fields of the rows of `offsets (n)`, which should be distinct; returns how many rows
    /// there were.
    ///
    /// A float that is still the old one becomes the new one. One that somebody changed since it
    /// was read gets the difference between new and old: of two updates at once none is lost.
    /// Slots that rows lack are added first. Rows of frozen keys do not change. Rows whose key was
    /// removed since are left out and counted in [`Stats`](crate::Stats). Values of 2 bytes become
    /// the nearest ones if they `are_given`, and are not what an update makes of a row.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong length or an offset that this table has not given out,
    /// `Aborted` for an offset from before the content was replaced, `ResourceExhausted` if the
    /// system gives no memory for new slots. A failed call changes no row.
    pub fn write_fields(
        &self,
        pool: &Pool,
        offsets: &[i64],
        fields: &[FieldUpdate<'_>],
        are_given: bool,
    ) -> Result<u64> {
        let (n, dim) = (offsets.len(), self.dim());
        for update in fields {
            self.floats("old", update.old.len(), n)?;
            self.floats("new", update.new.len(), n)?;
        }
        self.expect_numbers(n)?;
        let mut content = self.content_with(pool, offsets, RwLock::write)?;
        let dealt = self.deal(pool, &content, n, |at| offsets[at])?;
        let slots: Vec<SlotSpec> = fields
            .iter()
            .filter_map(|update| match &update.field {
                Field::Embedding => None,
                Field::Slot(spec) => Some(spec.clone()),
            })
            .collect();
        let mut slots = self.named(content.slots_for(&slots))?.into_iter();
        let embedding = content.layout.embedding();
        let places: Vec<Place> = fields
            .iter()
            .map(|update| match update.field {
                Field::Embedding => embedding,
                Field::Slot(_) => slots.next().expect("the place of every slot"),
            })
            .collect();
        content.begin_step(pool, None, &[])?;
        if let Some(halves) = content.halves.as_mut().filter(|_| !are_given) {
            halves.set_updates(halves.updates() + 1);
        }
        self.keys().counters.dropped(dealt.stale);
        let frozen = content.frozen().to_vec();
        let updated = AtomicU64::new(0);
        let content = &mut *content;
        let waiting = content.waiting.as_deref();
        let (halves, level) = (content.halves.as_deref(), Level::detect());
        let parts = content.store.split(dealt.owners);
        pool.each(parts.into_iter().enumerate(), |(owner, mut part)| {
            let mut written = 0;
            let mut floats = vec![0.0; halves.map_or(0, |_| dim)];
            let (mut expected, mut caught_up) = (floats.clone(), Vec::new());
            for (number, position) in dealt.of(owner) {
                if frozen.binary_search(&number).is_ok() {
                    continue;
                }
                let Some(row) = part.row_mut(number) else {
                    continue;
                };
                if let Some(waiting) = waiting {
                    waiting.catch_up(number, row, halves, &mut caught_up);
                    waiting.note(number, 0);
                }
                let at = position as usize * dim;
                for (update, &place) in fields.iter().zip(&places) {
                    let (old, new) = (&update.old[at..at + dim], &update.new[at..at + dim]);
                    match halves.filter(|_| place.dtype != RowDtype::Float32) {
                        Some(halves) => {
                            place.read(level, row, &mut floats);
                            // Who has not read what a slot starts at may not know it rounded.
                            expected.copy_from_slice(old);
                            halves.round_nearest(place, &mut expected);
                            merge(&mut floats, &expected, new);
                            if are_given {
                                halves.set_nearest(place, &floats, row);
                            } else {
                                halves.write(place, number, &floats, row);
                            }
                        }
                        None => merge(&mut row[place.start..place.start + dim], old, new),
                    }
                }
                written += 1;
            }
            updated.fetch_add(written, Ordering::Relaxed);
        });
        dealt.note(content);
        Ok(updated.into_inner())
    }

    /// Sets fields of the rows of `keys` to what those of new rows are, some rows at a time;
    /// returns of how many rows. Slots that rows lack are added, rows of frozen keys do not change.
    /// Rows that are removed meanwhile are left out, and all that are still to come if a restore or
    /// [`Table::clear`] replaces the content: what it brings has fields of its own.
    ///
    /// # Errors
    /// `InvalidArgument` for a slot that the table has with another width, `ResourceExhausted` if
    /// the system gives no memory, and with a tier what its files refuse; fields of some rows may
    /// have been set.
    pub fn start_fields(
        &self,
        pool: &Pool,
        fields: &[Field],
        keys: RangeInclusive<i64>,
    ) -> Result<u64> {
        let snapshot = self.snapshot();
        let mut started = self.reserved(snapshot.rows() as usize, "rows")?;
        snapshot.windows(pool, &|_| true, &mut |window| {
            let entries = (0..window.len()).filter_map(|at| window.entry(at));
            started.extend(entries.map(|(key, _)| key).filter(|key| keys.contains(key)));
            Ok(())
        })?;
        drop(snapshot);
        // Those of one turn are in memory together.
        let in_memory = self.tier().map(|tier| tier.setup.ram_rows as usize);
        let most = STARTED.min(in_memory.unwrap_or(STARTED));
        let mut count = 0;
        for keys in started.chunks(most) {
            match self.start_fields_of(pool, keys, fields) {
                Ok(rows) => count += rows,
                Err(error) if error.kind() == Kind::Aborted => break,
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn start_fields_of(&self, pool: &Pool, keys: &[i64], fields: &[Field]) -> Result<u64> {
        let mut places = vec![0; keys.len()];
        let found = self.id_offset(pool, Ids::I64(keys), false, None, &mut places)?;
        let rows = self.batch_rows(&found)?;
        let there = keys.iter().zip(&places).filter(|(_, &place)| place >= 0);
        let mut keys: Vec<i64> = there.map(|(&key, _)| key).collect();
        if let Some(kept) = rows.kept() {
            keys = kept.iter().map(|&at| keys[at]).collect();
        }
        let floats = keys.len() * self.dim();
        let mut values = Vec::with_capacity(fields.len());
        for field in fields {
            let mut old = vec![0.0; floats];
            rows.read(pool, field, &mut old)?;
            let mut new = vec![0.0; floats];
            match field {
                Field::Slot(slot) => new.fill(slot.initial),
                Field::Embedding => {
                    let rows = new.chunks_exact_mut(self.dim());
                    for (&key, row) in keys.iter().zip(rows) {
                        self.config().fill_initial(key, row);
                    }
                }
            }
            values.push((field, old, new));
        }
        let offsets = rows.offsets().to_vec();
        drop(rows);
        let updates = values.iter().map(|(field, old, new)| FieldUpdate {
            field: (*field).clone(),
            old,
            new,
        });
        self.write_fields(pool, &offsets, &updates.collect::<Vec<_>>(), true)
    }
}

/// Puts `new` in the place of `old`, or adds the difference to what is there now.
fn merge(now: &mut [f32], old: &[f32], new: &[f32]) {
    for ((now, &old), &new) in now.iter_mut().zip(old).zip(new) {
        if now.to_bits() == old.to_bits() {
            *now = new;
        } else {
            *now += new - old;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::singles::{Singles as _, Target};
    use crate::{Ids, Kind, Sgd, TableConfig};

    const DIM: usize = 2;

    fn table(frozen: Vec<i64>) -> (Table, Pool, Vec<i64>) {
        let config = TableConfig {
            seed: 1,
            frozen_keys: frozen,
            ..TableConfig::new("fields", DIM, 100)
        };
        let table = Table::new(config).unwrap();
        let pool = Pool::new(2).unwrap();
        let mut inverse = [0; 4];
        let ids = Ids::I64(&[5, 6, 7, 8]);
        let offsets = table
            .id_offset(&pool, ids, true, None, &mut inverse)
            .unwrap();
        (table, pool, offsets)
    }

    fn slot(initial: f32) -> Field {
        Field::Slot(SlotSpec {
            name: "Own_m".into(),
            initial,
            per_row: false,
        })
    }

    fn update<'a>(field: &Field, old: &'a [f32], new: &'a [f32]) -> FieldUpdate<'a> {
        FieldUpdate {
            field: field.clone(),
            old,
            new,
        }
    }

    fn read(table: &Table, pool: &Pool, offsets: &[i64], field: &Field) -> Vec<f32> {
        let rows = table.batch_rows(offsets).unwrap();
        let mut out = vec![f32::NAN; rows.offsets().len() * DIM];
        rows.read(pool, field, &mut out).unwrap();
        out
    }

    #[test]
    fn what_was_written_is_read_and_a_slot_starts_at_its_initial_value_in_all_rows() {
        let (table, pool, offsets) = table(vec![]);
        let field = slot(0.5);
        let before = read(&table, &pool, &offsets[..2], &field);
        assert_eq!(before, [0.5; 4]);
        assert!(table.slots().is_empty(), "a read adds no slot");
        let fields = [
            update(&Field::Embedding, &[0.0; 4], &[1.0, 2.0, 3.0, 4.0]),
            update(&field, &before, &[5.0, 6.0, 7.0, 8.0]),
        ];
        let written = table.write_fields(&pool, &offsets[..2], &fields, false);
        assert_eq!(written.unwrap(), 2);
        let back = [offsets[1], offsets[2], offsets[0]];
        let embedding = read(&table, &pool, &back, &Field::Embedding);
        assert_eq!(embedding, [3.0, 4.0, 0.0, 0.0, 1.0, 2.0]);
        let slots = read(&table, &pool, &back, &field);
        assert_eq!(slots, [7.0, 8.0, 0.5, 0.5, 5.0, 6.0]);
    }

    #[test]
    fn fields_start_afresh_and_a_table_that_is_emptied_meanwhile_is_no_error() {
        let (table, pool, offsets) = table(vec![6]);
        let field = slot(0.5);
        let all = i64::MIN..=i64::MAX;
        let first = read(&table, &pool, &offsets, &Field::Embedding);
        let fields = [
            update(&Field::Embedding, &first, &[3.0; 8]),
            update(&field, &[0.5; 8], &[7.0; 8]),
        ];
        let start = |field: &Field, keys: &RangeInclusive<i64>| {
            table.start_fields(&pool, std::slice::from_ref(field), keys.clone())
        };
        let written = table.write_fields(&pool, &offsets, &fields, true);
        assert_eq!(written.unwrap(), 3);
        assert_eq!(start(&field, &all).unwrap(), 3, "all but 6");
        assert_eq!(read(&table, &pool, &offsets, &field), [0.5; 8]);
        let rows = read(&table, &pool, &offsets, &Field::Embedding);
        assert_eq!((rows[0], rows[7]), (3.0, 3.0));
        let written = table.write_fields(&pool, &offsets, &fields[1..], true);
        assert_eq!(written.unwrap(), 3);
        assert_eq!(start(&Field::Embedding, &(7..=9)).unwrap(), 2);
        let rows = read(&table, &pool, &offsets, &Field::Embedding);
        assert_eq!(
            (rows[0], &rows[2..4], &rows[4..]),
            (3.0, &first[2..4], &first[4..])
        );
        let slots = read(&table, &pool, &offsets, &field);
        assert_eq!((slots[0], slots[2], slots[7]), (7.0, 0.5, 7.0), "they stay");
        assert_eq!(start(&Field::Embedding, &all).unwrap(), 3);
        assert_eq!(read(&table, &pool, &offsets, &Field::Embedding), first);
        let begun = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                for _ in 0..200 {
                    table.clear();
                    let ids = Ids::I64(&[5, 6, 7, 8]);
                    let made = table.id_offset(&pool, ids, true, None, &mut [0; 4]);
                    assert!(made.is_ok());
                }
            });
            begun.wait();
            for _ in 0..200 {
                assert!(start(&field, &all).is_ok());
            }
        });
        table.clear();
        assert_eq!(start(&Field::Embedding, &all).unwrap(), 0);
    }

    #[test]
    fn rows_are_distinct_and_padding_is_dropped() {
        let (table, _, offsets) = table(vec![]);
        let batch = [offsets[2], -1, offsets[0], offsets[2], 0, offsets[3]];
        let rows = table.batch_rows(&batch).unwrap();
        assert_eq!(rows.offsets(), [offsets[2], offsets[0], offsets[3]]);
        assert_eq!(rows.places(), [0, 1, 0, 2]);
        assert_eq!(rows.kept(), Some(&[0, 2, 3, 5][..]));
        assert_eq!(table.batch_rows(&offsets).unwrap().kept(), None);
        assert_eq!(table.batch_rows(&[]).unwrap().offsets(), [0_i64; 0]);
    }

    #[test]
    fn keys_that_were_removed_are_dropped_and_counted_by_either_verb() {
        let (table, pool, offsets) = table(vec![]);
        table.remove(Ids::I64(&[6])).unwrap();
        let rows = table.batch_rows(&[offsets[1], offsets[0], offsets[1]]);
        let rows = rows.unwrap();
        assert_eq!((rows.offsets(), rows.places()), (&offsets[..1], &[0][..]));
        assert_eq!(rows.kept(), Some(&[1][..]));
        drop(rows);
        assert_eq!(table.stats().stale, 1);
        table.remove(Ids::I64(&[7])).unwrap();
        let ones = [1.0; 4];
        let fields = [update(&Field::Embedding, &[0.0; 4], &ones)];
        let written = table.write_fields(&pool, &[offsets[0], offsets[2]], &fields, false);
        assert_eq!(written.unwrap(), 1);
        assert_eq!(table.stats().stale, 2);
        assert_eq!(
            read(&table, &pool, &offsets[..1], &Field::Embedding),
            [1.0; 2]
        );
    }

    #[test]
    fn an_update_between_reading_and_writing_is_not_lost() {
        let (table, pool, offsets) = table(vec![]);
        let old = read(&table, &pool, &offsets, &Field::Embedding);
        let sgd = Sgd::new(1.0).unwrap();
        let target = Target::Offsets(&offsets[..1]);
        table.apply(&pool, target, &[-8.0, 0.0], &sgd).unwrap();
        let new: Vec<f32> = old.iter().map(|old| old + 1.0).collect();
        let fields = [update(&Field::Embedding, &old, &new)];
        table.write_fields(&pool, &offsets, &fields, false).unwrap();
        let now = read(&table, &pool, &offsets[..2], &Field::Embedding);
        assert_eq!(now, [9.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn frozen_keys_stay_and_a_replaced_content_is_refused() {
        let (table, pool, offsets) = table(vec![7]);
        let field = slot(0.0);
        let ones = [1.0; 8];
        let fields = [
            update(&Field::Embedding, &[0.0; 8], &ones),
            update(&field, &[0.0; 8], &ones),
        ];
        assert_eq!(
            table.write_fields(&pool, &offsets, &fields, false).unwrap(),
            3
        );
        for field in [&Field::Embedding, &field] {
            let values = read(&table, &pool, &offsets, field);
            assert_eq!(values, [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
        }
        table.clear();
        let kind = |result: Result<u64>| result.unwrap_err().kind();
        assert_eq!(
            kind(table.write_fields(&pool, &offsets, &fields, false)),
            Kind::Aborted
        );
        let again = table.batch_rows(&offsets).map(|_| 0);
        assert_eq!(kind(again), Kind::Aborted);
        let short = [update(&Field::Embedding, &[0.0; 3], &ones)];
        assert_eq!(
            kind(table.write_fields(&pool, &offsets, &short, false)),
            Kind::InvalidArgument
        );
    }
}
