//! Compares two tables by key: the order of rows does not matter.

use super::super::block::Column;
use super::super::format::damaged;
use super::describe::layout;
use super::history::{compare, HistoryDifference};
use super::keys::{room, sort, Keys};
use super::progress::{keys, values_of, Progress};
use crate::{Error, Kind, Result, RowDtype};
use serde::Serialize;
use std::path::Path;

/// Bytes of each part of the first table that are compared at a time.
const WINDOW_BYTES: u64 = 8 << 20;
/// Rows that are compared at a time at most.
const WINDOW_ROWS: u64 = 1 << 18;
/// Bytes of the second table that are read at a time.
const RUN_BYTES: u64 = 4 << 20;
/// Bytes between two wanted rows that are rather read than skipped.
const GAP_BYTES: u64 = 64 << 10;
/// Marks a row of the second table whose key the first has, too.
const SEEN: u64 = 1 << 63;

/// A part that both tables have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartDifference {
    /// `embedding` or a slot's name.
    pub name: String,
    /// Rows whose bits differ here.
    pub rows: u64,
    /// The largest absolute difference of two floats; none if it is not finite, as beside a NaN.
    pub largest: Option<f64>,
    /// Where that is.
    pub key: Option<i64>,
}

/// How two tables differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Whether nothing differs: the same keys, parts and bits.
    pub equal: bool,
    /// Rows of the first and of the second table.
    pub rows: (u64, u64),
    /// Dims of the first and of the second; where they differ, no rows are compared.
    pub dims: (u64, u64),
    /// Keys that only the first has.
    pub only_here: Keys,
    /// Keys that only the second has.
    pub only_there: Keys,
    /// Keys of both whose rows differ in any part.
    pub differing: Keys,
    /// Parts of both.
    pub parts: Vec<PartDifference>,
    /// Slots that only the first has.
    pub parts_only_here: Vec<String>,
    /// Slots that only the second has.
    pub parts_only_there: Vec<String>,
    /// How what admission and eviction know differs; none if neither table has a history.
    pub history: Option<HistoryDifference>,
}

/// Compares the tables in the directories `here` and `there`. `tell` as for [`super::verify`].
///
/// Memory: 16 bytes for each key of the second table, and at most 32 MiB beside them; or 16 bytes
/// for each key of both histories, if that is more.
///
/// # Errors
/// `NotFound`, `DataLoss` or `Io` with the file's path for a table that is not sound;
/// `InvalidArgument` for a slot with one float for the row in one table, and one for each column in
/// the other;
/// `ResourceExhausted` if there is no memory for the keys.
pub fn diff(
    here: &Path,
    there: &Path,
    tell: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Difference> {
    let (mut first, mut second) = (layout(here)?.sound()?, layout(there)?.sound()?);
    let (mut keys_here, parts_here) = split(first.columns())?;
    let (mut keys_there, parts_there) = split(second.columns())?;
    // The second table's rows are read where they are needed: its keys count here.
    let files = parts_here.iter().chain([&keys_here, &keys_there]);
    let total = files.map(|column| column.file.size);
    let known = [&first, &second].map(|layout| layout.history.as_ref());
    let known = known
        .into_iter()
        .flatten()
        .map(|found| found.records.bytes());
    let total = total.chain(known).fold(0, u64::saturating_add);
    let mut progress = Progress::new(total, tell);
    let mut index = Index::read(&mut keys_there, &mut progress)?;

    let dims = (first.dim.unwrap_or(0), second.dim.unwrap_or(0));
    let names = |columns: &[Column], others: &[Column]| -> Vec<String> {
        let lacks = |column: &&Column| others.iter().all(|has| has.name != column.name);
        let columns = columns.iter().filter(lacks);
        columns.map(|column| column.name.clone()).collect()
    };
    let mut difference = Difference {
        equal: false,
        rows: (first.rows.unwrap_or(0), second.rows.unwrap_or(0)),
        dims,
        only_here: Keys::default(),
        only_there: Keys::default(),
        differing: Keys::default(),
        parts: Vec::new(),
        parts_only_here: names(&parts_here, &parts_there),
        parts_only_there: names(&parts_there, &parts_here),
        history: None,
    };
    let mut pairs = Vec::new();
    if dims.0 == dims.1 {
        for part in parts_here {
            let Some(other) = parts_there.iter().find(|other| other.name == part.name) else {
                continue;
            };
            if part.count() != other.count() {
                return Err(Error::invalid("the rows have values in different numbers")
                    .with("part", &part.name)
                    .with("path", here.display())
                    .with("type", form(&part))
                    .with("other_path", there.display())
                    .with("other_type", form(other)));
            }
            pairs.push(Pair::of(part, other));
        }
    }
    let width = dims.0.saturating_mul(4).max(1);
    let window = (WINDOW_BYTES / width).clamp(1, WINDOW_ROWS);
    let mut left = difference.rows.0;
    let (mut bytes, mut window_keys) = (Vec::new(), Vec::new());
    while left > 0 {
        let count = left.min(window);
        left -= count;
        bytes.resize(count as usize * 8, 0);
        keys_here.file.read_exact(&mut bytes)?;
        window_keys.clear();
        window_keys.extend(keys(&bytes));
        let matched = index.find(&window_keys, here, &mut difference.only_here)?;
        progress.advance(bytes.len())?;
        let mut differs = vec![false; window_keys.len()];
        for pair in &mut pairs {
            pair.compare(&window_keys, &matched, &mut differs)?;
            progress.advance(count.saturating_mul(pair.here.width) as usize)?;
        }
        for (key, differs) in window_keys.iter().zip(&differs) {
            if *differs {
                difference.differing.add(*key);
            }
        }
    }
    for (key, position) in &index.0 {
        if position & SEEN == 0 {
            difference.only_there.add(*key);
        }
    }
    drop(index);
    difference.parts = pairs.into_iter().map(|pair| pair.found).collect();
    difference.history = compare(first.history, second.history, &mut progress)?;
    difference.equal = dims.0 == dims.1
        && difference.only_here.count + difference.only_there.count + difference.differing.count
            == 0
        && difference.parts_only_here.is_empty()
        && difference.parts_only_there.is_empty()
        && difference
            .history
            .as_ref()
            .is_none_or(HistoryDifference::is_none);
    Ok(difference)
}

/// The keys and the other parts of a table.
fn split(columns: Vec<Column>) -> Result<(Column, Vec<Column>)> {
    let mut columns = columns.into_iter();
    let none = || Error::new(Kind::Internal, "a table has no keys");
    Ok((columns.next().ok_or_else(none)?, columns.collect()))
}

/// The keys of a table with the positions of their rows, sorted: 16 bytes each.
struct Index(Vec<(i64, u64)>);

impl Index {
    fn read(column: &mut Column, progress: &mut Progress) -> Result<Index> {
        let file = &mut column.file;
        let mut entries: Vec<(i64, u64)> = room(file.size / 8, &file.path)?;
        file.each_block(&mut |block| {
            for key in keys(block) {
                entries.push((key, entries.len() as u64));
            }
            progress.advance(block.len())?;
            Ok(true)
        })?;
        sort(&mut entries, &file.path)?;
        Ok(Index(entries))
    }

    /// `(position there, place in keys)` of the keys that are in the index, by position; the others
    /// go to `absent`.
    fn find(&mut self, keys: &[i64], dir: &Path, absent: &mut Keys) -> Result<Vec<(u64, usize)>> {
        let mut sorted: Vec<(i64, usize)> = keys
            .iter()
            .enumerate()
            .map(|(at, key)| (*key, at))
            .collect();
        sorted.sort_unstable();
        let mut found = Vec::with_capacity(sorted.len());
        let mut rest = self.0.as_mut_slice();
        for (key, at) in sorted {
            // Keys come in order, so what is smaller is passed for good.
            let smaller = rest.partition_point(|entry| entry.0 < key);
            rest = rest.get_mut(smaller..).unwrap_or_default();
            match rest.first_mut().filter(|entry| entry.0 == key) {
                None => absent.add(key),
                Some((_, position)) if *position & SEEN != 0 => {
                    return Err(damaged("a key occurs twice", dir).with("key", key));
                }
                Some((_, position)) => {
                    found.push((*position, at));
                    *position |= SEEN;
                }
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

/// One part in both tables.
struct Pair<'a> {
    here: Column,
    there: &'a Column,
    found: PartDifference,
    largest: f64,
    window: Vec<u8>,
    run: Vec<u8>,
}

impl<'a> Pair<'a> {
    fn of(here: Column, there: &'a Column) -> Pair<'a> {
        Pair {
            found: PartDifference {
                name: here.name.clone(),
                rows: 0,
                largest: Some(0.0),
                key: None,
            },
            here,
            there,
            largest: 0.0,
            window: Vec::new(),
            run: Vec::new(),
        }
    }

    /// The types of the values here and there.
    fn dtypes(&self) -> [RowDtype; 2] {
        [self.here.dtype, self.there.dtype]
    }

    /// Whether two rows have the same values: the same bits as they are in the files, or as float32
    /// if these have different types.
    fn are_equal(&self, here: &[u8], there: &[u8]) -> bool {
        let [dtype, other] = self.dtypes();
        if dtype == other {
            return here == there;
        }
        let mut pairs = values_of(dtype, here).zip(values_of(other, there));
        pairs.all(|(here, there)| here.to_bits() == there.to_bits())
    }

    /// Reads the next rows of the first table, one for each key, and compares those that are in the
    /// second.
    fn compare(
        &mut self,
        keys: &[i64],
        matched: &[(u64, usize)],
        differs: &mut [bool],
    ) -> Result<()> {
        let (width, row_bytes) = (self.there.width, self.here.width as usize);
        self.window.resize(keys.len().saturating_mul(row_bytes), 0);
        self.here.file.read_exact(&mut self.window)?;
        let mut rest = matched;
        while let Some(&(start, _)) = rest.first() {
            let mut last = start;
            let near = |(position, _): &&(u64, usize)| {
                let is_near = (position - last).saturating_mul(width) <= GAP_BYTES
                    && (position - start + 1).saturating_mul(width) <= RUN_BYTES.max(width);
                if is_near {
                    last = *position;
                }
                is_near
            };
            let count = rest.iter().take_while(near).count();
            let (run, later) = rest.split_at_checked(count.max(1)).unwrap_or((rest, &[]));
            rest = later;
            self.run
                .resize((last - start + 1).saturating_mul(width) as usize, 0);
            let start_byte = start.saturating_mul(width);
            self.there.file.read_at(&mut self.run, start_byte)?;
            for (position, at) in run {
                let offset = (position - start) as usize * width as usize;
                let there = self.run.get(offset..offset + width as usize);
                let here = self.window.get(at * row_bytes..(at + 1) * row_bytes);
                let (Some(here), Some(there)) = (here, there) else {
                    continue;
                };
                if self.are_equal(here, there) {
                    continue;
                }
                if let Some(differs) = differs.get_mut(*at) {
                    *differs = true;
                }
                let largest = largest(self.dtypes(), here, there);
                self.found.rows += 1;
                if largest > self.largest || self.found.key.is_none() {
                    self.largest = largest;
                    self.found.key = keys.get(*at).copied();
                    self.found.largest = Some(largest).filter(|value| value.is_finite());
                }
            }
        }
        // Several parts share the memory of one window.
        self.window = Vec::new();
        self.run = Vec::new();
        Ok(())
    }
}

/// What the values of a part are.
fn form(column: &Column) -> String {
    format!("{} {}", column.count(), column.dtype)
}

/// The largest absolute difference of two rows; infinite beside a value that is not finite.
fn largest([dtype, other]: [RowDtype; 2], here: &[u8], there: &[u8]) -> f64 {
    let difference = |(here, there): (f32, f32)| {
        if here.to_bits() == there.to_bits() {
            return 0.0;
        }
        let difference = (f64::from(here) - f64::from(there)).abs();
        if difference.is_nan() {
            f64::INFINITY
        } else {
            difference
        }
    };
    values_of(dtype, here)
        .zip(values_of(other, there))
        .map(difference)
        .fold(0.0, f64::max)
}
