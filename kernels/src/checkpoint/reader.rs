//! Reads a table back; everything on disk is untrusted until it was checked.

#![deny(clippy::arithmetic_side_effects)]

use super::block::{read, Column};
use super::format::{damaged, FLOAT_BYTES, KEY_BYTES, RECORDS, SKETCH, THRESHOLDS};
use super::history::HistoryReader;
use super::layout::{Layout, Part, Target};
use super::manifest::Manifest;
use super::partitioned::{retain, sources, Source};
use super::steps::{catch_up, SkippedSteps};
use crate::partition::Partition;
use crate::table::BuiltContent;
use crate::{Error, Loading, Pool, Result, Rounding, SlotSpec, Table, MAX_CAPACITY};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// About so many bytes of a table are read at once.
const LOAD_BYTES: u64 = 16 << 20;

/// So many keys that a delta takes out are read at once.
const LOAD_KEYS: usize = 1 << 20;

/// Replaces the content of `table` by that of the directory `dir`, all or nothing, and returns the
/// number of rows.
///
/// Slots on disk are restored, also those the table does not have yet: a table learns its optimizer
/// at the first step. Slots of the table that are not on disk start at their initial values. A
/// slot's value for new rows is the table's own, else the manifest's. Without a manifest every
/// subdirectory with an attribute file of a row's shape is a slot.
///
/// The history of admission comes with the rows; without one on disk, rows count as admitted.
/// Thresholds that the running program has set come before those on disk; docs/checkpoint-format.md
/// has the rule.
///
/// The content is made beside the one in use, which it replaces when every checksum of the manifest
/// was found right. All threads of the pool read. Memory beside both contents: about 32 MiB.
///
/// # Errors
/// The table is as it was, and the message names the file: `NotFound` for a missing file;
/// `DataLoss` for an attribute, a size, a checksum or a manifest that does not fit the rest, for a
/// padding key and for one that occurs twice, for a count, a time or a threshold that cannot be;
/// `InvalidArgument` for another dim than the table's, and for a delta; `ResourceExhausted` for
/// more rows than its capacity, unless a table of no larger one has saved them; `Io` for what the
/// system refuses.
pub fn load(table: &Table, pool: &Pool, dir: &Path) -> Result<u64> {
    Ok(load_chain(table, pool, &[dir], &|_| true)?.rows)
}

/// What a load has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Rows of the table.
    pub rows: u64,
    /// The epoch that ended with the load, for [`super::save_delta`]; 0 if the table does not track
    /// changes.
    pub epoch: u32,
}

impl Loaded {
    fn of((rows, epoch): (u64, u32)) -> Loaded {
        Loaded { rows, epoch }
    }
}

/// [`load`] of a directory and of the deltas that were saved after it, in their order: keys that a
/// delta removes go, rows that it has not catch up by its steps of [`Adam`](crate::Adam), its rows
/// take the place of earlier ones. Of the slots those come whose names `wanted` accepts; the files
/// of others are not looked at. `hist_rec` is the name of the history.
///
/// # Errors
/// As [`load`]; `InvalidArgument` if the first is a delta, or a later one is none.
pub fn load_chain(
    table: &Table,
    pool: &Pool,
    dirs: &[&Path],
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Loaded> {
    let built = build(table, pool, dirs, wanted, None)?;
    Ok(Loaded::of(table.swap_content(built)))
}

/// [`load_chain`] of one part of the table that lies in `dirs`: `table` gets the keys that the part
/// holds, whatever the parts were in which the table was saved, with their history of admission.
/// Made by [`Table::part`], it has the budget of the whole table in its settings.
///
/// # Errors
/// As there.
pub fn load_part(table: &Table, pool: &Pool, dirs: &[&Path], part: Partition) -> Result<Loaded> {
    let built = build(table, pool, dirs, &|_| true, Some(part))?;
    Ok(Loaded::of(table.swap_content(built)))
}

/// A load that has read and checked everything, and has changed nothing yet.
///
/// So several tables can be loaded all or none: stage each of them, then publish all. Dropping it
/// gives its memory back.
pub struct StagedLoad {
    table: Arc<Table>,
    built: BuiltContent,
}

impl StagedLoad {
    /// The first half of [`load_chain`]: reads and checks all files. The table does not change, and
    /// may be used meanwhile.
    ///
    /// # Errors
    /// As there.
    pub fn new(
        table: Arc<Table>,
        pool: &Pool,
        dirs: &[&Path],
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<StagedLoad> {
        let built = build(&table, pool, dirs, wanted, None)?;
        Ok(StagedLoad { table, built })
    }

    /// The table that the load is for.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Rows that the table will have.
    pub fn rows(&self) -> u64 {
        self.built.rows()
    }

    /// The second half, for one or several tables, whose contents are replaced at once: whoever
    /// reads two of the tables, one after the other, and finds the first one restored finds the
    /// other restored as well. Returns what each table has now, in the order of `loads`.
    ///
    /// # Errors
    /// `InvalidArgument` if two loads are for one table; then no table changed.
    pub fn publish_all(loads: Vec<StagedLoad>) -> Result<Vec<Loaded>> {
        let (tables, contents): (Vec<_>, Vec<_>) = loads
            .into_iter()
            .map(|load| (load.table, load.built))
            .unzip();
        let contents = tables.iter().map(|table| &**table).zip(contents);
        let swapped = Table::swap_contents(contents.collect())?;
        Ok(swapped.into_iter().map(Loaded::of).collect())
    }
}

impl fmt::Debug for StagedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagedLoad")
            .field("table", &self.table.config().name)
            .field("rows", &self.rows())
            .finish_non_exhaustive()
    }
}

/// Reads and checks a directory and its deltas, and builds the content that they hold, or that of
/// one part. A table that was saved in parts has a directory for each.
fn build(
    table: &Table,
    pool: &Pool,
    dirs: &[&Path],
    wanted: &dyn Fn(&str) -> bool,
    part: Option<Partition>,
) -> Result<BuiltContent> {
    let mut found: Vec<(usize, Source)> = Vec::with_capacity(dirs.len());
    for (at, dir) in dirs.iter().enumerate() {
        found.extend(sources(dir, part)?.into_iter().map(|source| (at, source)));
    }
    let mut manifests = Vec::with_capacity(found.len());
    for (_, source) in &found {
        manifests.push(Manifest::read(&source.dir)?);
    }
    let newest = dirs.len().saturating_sub(1);
    // What a table of the same budget has saved is taken whole: parts have more rows than it.
    let is_taken = found.iter().zip(&manifests).all(|((at, _), manifest)| {
        let saved = manifest.capacity();
        *at < newest || saved.is_some_and(|saved| saved <= table.config().capacity)
    });
    let most = match is_taken {
        true => MAX_CAPACITY,
        false => table.capacity(),
    };
    let mut links: Vec<Link> = Vec::with_capacity(found.len());
    // With the place of its link in the chain, the newest first.
    let mut steps: Vec<(usize, SkippedSteps)> = Vec::new();
    for ((at, source), manifest) in found.into_iter().zip(manifests).rev() {
        if manifest.is_delta != (at > 0) {
            let message = if manifest.is_delta {
                "a delta cannot be loaded without what it follows"
            } else {
                "a table that is no delta cannot follow another"
            };
            return Err(Error::invalid(message)
                .with("table", &table.config().name)
                .with("path", source.dir.display()));
        }
        let waits = steps.iter().any(|(later, _)| *later > at);
        // Of a part, the keys that are wanted are counted when they are there.
        let most = part.map_or(most, |_| MAX_CAPACITY);
        let target = Target { table, most };
        let mut link = Link::open(target, (at, source), manifest, wanted, waits, part)?;
        steps.extend(link.steps.take().map(|steps| (at, steps)));
        links.push(link);
    }
    links.reverse();
    steps.reverse();
    let rounding = expect_dtypes(table, &links)?;
    let updates = links.iter().filter(|link| link.at == newest);
    let updates = updates.map(|link| link.manifest.updates).max().unwrap_or(0);
    let mut specs = table.slots();
    // The newest says where new rows start.
    for slot in links.iter().rev().flat_map(|link| &link.slots) {
        if !specs.iter().any(|spec| spec.name == slot.name) {
            specs.push(slot.clone());
        }
    }
    for slot in links.iter().flat_map(|link| &link.slots) {
        if let Some(spec) = specs.iter().find(|spec| spec.name == slot.name) {
            if spec.per_row != slot.per_row {
                return Err(Error::invalid(
                    "a slot has one float a row in the checkpoint and one a column in the table, \
                     or the other way round",
                )
                .with("table", &table.config().name)
                .with("slot", &slot.name));
            }
        }
    }
    table.build_content(pool, &specs, most, &mut |loading| {
        loading.round(rounding);
        loading.set_updates(updates);
        for link in &mut links {
            let later = steps.iter().filter(|(later, _)| *later > link.at);
            let later: Vec<_> = later.map(|(_, steps)| steps).collect();
            link.push(pool, &specs, &later, loading)?;
        }
        // Each is complete, so that the newest counts.
        let newest = links.iter_mut().filter(|link| link.at == newest);
        let newest: Vec<_> = newest.map(|link| link.history.as_mut()).collect();
        let directories = newest.len();
        let histories = newest.into_iter().flatten().collect();
        HistoryReader::push_all(histories, directories, part, pool, loading)
    })
}

/// One directory of a chain, with its files open and their sizes checked.
struct Link {
    /// The place in the chain.
    at: usize,
    dir: PathBuf,
    manifest: Manifest,
    /// The part that the directory holds, if it is one of a part.
    holds: Option<Partition>,
    /// The part whose keys are wanted, if not all are.
    only: Option<Partition>,
    rows: u64,
    /// The slots to load.
    slots: Vec<SlotSpec>,
    keys: Column,
    /// The embedding, then the slots, also those that rows catch up with and nobody wants.
    columns: Vec<Column>,
    /// Places of m and v in the columns, if rows catch up by the steps of later links.
    moments: Option<[usize; 2]>,
    /// The steps that rows have missed which a delta has not.
    steps: Option<SkippedSteps>,
    /// Keys that a delta takes out.
    removed: Option<Column>,
    /// The admission history, if the directory has one and it is wanted.
    history: Option<HistoryReader>,
}

impl Link {
    fn open(
        target: Target<'_>,
        (at, source): (usize, Source),
        manifest: Manifest,
        wanted: &dyn Fn(&str) -> bool,
        waits: bool,
        only: Option<Partition>,
    ) -> Result<Self> {
        let moments = SkippedSteps::slots().filter(|_| waits);
        let is_read = |name: &str| wanted(name) || moments.clone().any(|moment| moment == name);
        let layout = Layout::read(&source.dir, Ok(manifest), Some(target), &is_read)?;
        let mut layout = layout.sound()?;
        let listing = &mut layout.listing;
        let steps = SkippedSteps::read(source.partition, &layout.manifest, listing)?;
        let history = match layout.history {
            Some(found) => Some(HistoryReader::new(target.table, found, listing)?),
            None => None,
        };
        let unread = layout.slots.iter().filter(|slot| !is_read(&slot.name));
        let unread: Vec<&str> = unread.map(|slot| slot.name.as_ref()).collect();
        listing.check_rest(&|file| {
            let history = [RECORDS, THRESHOLDS, SKETCH];
            unread.iter().any(|slot| Path::new(file).starts_with(slot))
                || (!wanted(RECORDS) && history.contains(&file))
        })?;
        let mut columns = layout.parts.into_iter().filter_map(Part::column);
        let Some(keys) = columns.next() else {
            return Err(damaged("a table has no keys", &layout.dir));
        };
        let columns: Vec<Column> = columns.collect();
        let place = |moment: &str| columns.iter().position(|column| column.name == moment);
        let moments: Vec<usize> = moments.filter_map(place).collect();
        layout.slots.retain(|slot| wanted(&slot.name));
        Ok(Self {
            at,
            dir: layout.dir,
            manifest: layout.manifest,
            holds: source.partition,
            only,
            rows: layout.rows.unwrap_or(0),
            keys,
            // A row without one of them was saved before its first step.
            moments: moments.try_into().ok(),
            columns,
            steps,
            slots: layout.slots,
            removed: layout.removed.and_then(Part::column),
            history,
        })
    }

    /// Puts the rows, as they are after the steps of `later`, into a content with the slots
    /// `specs`, block by block, then compares the checksums.
    fn push(
        &mut self,
        pool: &Pool,
        specs: &[SlotSpec],
        later: &[&SkippedSteps],
        loading: &mut Loading<'_>,
    ) -> Result<()> {
        let key_file = self.keys.file.path.clone();
        let named = |error: Error| error.with("path", key_file.display());
        if let Some(column) = &mut self.removed {
            let count = column.file.size / KEY_BYTES;
            let mut keys = Vec::new();
            for first in (0..count).step_by(LOAD_KEYS) {
                let count = count.saturating_sub(first).min(LOAD_KEYS as u64);
                read(
                    pool,
                    (first, count),
                    (column, &mut keys),
                    (&mut [], &mut []),
                )?;
                loading.remove(&keys)?;
            }
            column.file.finish()?;
        }
        // Those that are not on disk, or not wanted, are made up.
        let source = |spec: &SlotSpec| {
            let slot = self.slots.iter().find(|slot| slot.name == spec.name)?;
            let slots = self.columns.iter().skip(1);
            slots
                .zip(0..)
                .find_map(|(column, at)| (column.name == slot.name).then_some(at))
        };
        let sources: Vec<Option<usize>> = specs.iter().map(source).collect();
        let width = (loading.dim() as u64).saturating_mul(FLOAT_BYTES);
        let record = specs
            .iter()
            .fold(KEY_BYTES.saturating_add(width), |sum, _| {
                sum.saturating_add(width)
            });
        let most = LOAD_BYTES.checked_div(record).unwrap_or(0).max(1);
        let mut made_up: Vec<Vec<f32>> = vec![Vec::new(); specs.len()];
        let (mut keys, mut values) = (Vec::new(), vec![Vec::new(); self.columns.len()]);
        let mut first = 0;
        while first < self.rows {
            let count = self.rows.saturating_sub(first).min(most);
            read(
                pool,
                (first, count),
                (&mut self.keys, &mut keys),
                (&mut self.columns, &mut values),
            )?;
            let stranger = |key: &&i64| self.holds.is_some_and(|part| !part.holds(**key));
            if let Some(key) = keys.iter().find(stranger) {
                let error = damaged("a part of a table has a key of another part", &key_file);
                return Err(error.with("key", key));
            }
            if let Some(part) = self.only {
                let widths = self.columns.iter().map(Column::count);
                let widths: Vec<usize> = widths.map(|count| count as usize).collect();
                retain(part, &mut keys, &mut values, &widths);
            }
            let moments = self.moments.map(|[m, v]| [0, m, v]);
            if let Some(Ok(found)) = moments.map(|places| values.get_disjoint_mut(places)) {
                let found = found.map(Vec::as_mut_slice);
                catch_up(pool, later, &keys, found, loading.dim());
            }
            let Some((embedding, on_disk)) = values.split_first() else {
                break;
            };
            for (slot, spec) in made_up.iter_mut().zip(specs) {
                let floats = keys.len().saturating_mul(spec.floats(loading.dim()));
                slot.resize(floats, loading.initial(spec));
            }
            let slots: Vec<&[f32]> = sources
                .iter()
                .zip(&made_up)
                .map(|(source, made_up)| {
                    let column = source.and_then(|at| on_disk.get(at));
                    column.unwrap_or(made_up).as_slice()
                })
                .collect();
            if self.manifest.is_delta {
                loading.remove(&keys).map_err(named)?;
            }
            loading.push(&keys, embedding, &slots).map_err(named)?;
            first = first.saturating_add(count);
        }
        let mut columns = std::iter::once(&self.keys).chain(&self.columns);
        columns.try_for_each(|column| column.file.finish())
    }
}

/// How the load rounds values to 2 bytes.
///
/// # Errors
/// `InvalidArgument` for embeddings or slots of another type than the table's, unless it converts
/// them.
fn expect_dtypes(table: &Table, links: &[Link]) -> Result<Rounding> {
    let own = table.config().row_storage;
    for link in links {
        let saved = link.manifest.stored;
        let other = link
            .slots
            .iter()
            .find(|slot| saved.of_slot(slot.per_row) != own.of_slot(slot.per_row));
        if saved.dtype != own.dtype || other.is_some() {
            let conversion = table.conversion_of(saved, other);
            return conversion.map_err(|error| error.with("path", link.dir.display()));
        }
    }
    Ok(Rounding::Nearest)
}
