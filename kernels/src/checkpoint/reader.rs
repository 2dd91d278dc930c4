//! Reads a table back; everything on disk is untrusted until it was checked.

#![deny(clippy::arithmetic_side_effects)]

use super::block::{read, Column, Verdicts};
use super::format::{
    damaged, ATTRIBUTE, DATA, EMBEDDING, FLOAT_BYTES, KEY, KEY_BYTES, MAX_SLOTS, RECORDS, REMOVED,
    SKETCH, THRESHOLDS,
};
use super::history::HistoryReader;
use super::manifest::Manifest;
use super::partitioned::{retain, sources, Source};
use super::parts::{attribute, check_width, find_slots};
use super::steps::{catch_up, SkippedSteps};
use super::whole::check_membership;
use crate::partition::Partition;
use crate::table::BuiltContent;
use crate::{
    Error, Kind, Loading, Pool, Result, Rounding, RowDtype, RowStorage, SlotSpec, Table,
    MAX_CAPACITY,
};
use std::fmt;
use std::path::Path;
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

    /// The second half: replaces the content of the table. It cannot fail.
    pub fn publish(self) -> Loaded {
        Loaded::of(self.table.swap_content(self.built))
    }

    /// The second half for several tables, whose contents are replaced at once: whoever reads two
    /// of the tables, one after the other, and finds the first one restored finds the other
    /// restored as well. Returns what each table has now, in the order of `loads`.
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
    let manifests = found
        .iter()
        .map(|(_, source)| Manifest::read(&source.dir))
        .collect::<Result<Vec<_>>>()?;
    let newest = dirs.len().saturating_sub(1);
    // What a table of the same budget has saved is taken whole: parts have more rows than it.
    let is_taken = found.iter().zip(&manifests).all(|((at, _), manifest)| {
        let saved = manifest.as_ref().and_then(|manifest| manifest.capacity());
        *at < newest || saved.is_some_and(|saved| saved <= table.config().capacity)
    });
    let most = match is_taken {
        true => MAX_CAPACITY,
        false => table.capacity(),
    };
    let mut links = Vec::with_capacity(found.len());
    // With the place of its link in the chain, the newest first.
    let mut steps: Vec<(usize, SkippedSteps)> = Vec::new();
    for ((at, source), manifest) in found.iter().zip(&manifests).rev() {
        let (at, dir) = (*at, &source.dir);
        let is_delta = manifest.as_ref().is_some_and(|manifest| manifest.is_delta);
        if is_delta != (at > 0) {
            let message = if is_delta {
                "a delta cannot be loaded without what it follows"
            } else {
                "a table that is no delta cannot follow another"
            };
            return Err(Error::invalid(message)
                .with("table", &table.config().name)
                .with("path", dir.display()));
        }
        // Of a part, the keys that are wanted are counted when they are there.
        let most = part.map_or(most, |_| MAX_CAPACITY);
        let waits = steps.iter().any(|(later, _)| *later > at);
        let manifest = manifest.as_ref();
        let mut link = Link::open(table, source, manifest, wanted, waits, part, most)?;
        steps.extend(link.steps.take().map(|steps| (at, steps)));
        links.push(link);
    }
    links.reverse();
    steps.reverse();
    let rounding = expect_dtypes(table, &manifests, &found, &links)?;
    let updates = manifests.iter().zip(&found);
    let updates = updates.filter(|(_, (at, _))| *at == newest);
    let updates = updates.filter_map(|(manifest, _)| Some(manifest.as_ref()?.updates));
    let updates = updates.max().unwrap_or(0);
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
        for (link, (at, _)) in links.iter_mut().zip(&found) {
            let later = steps.iter().filter(|(later, _)| later > at);
            let later: Vec<_> = later.map(|(_, steps)| steps).collect();
            link.push(pool, &specs, &later, loading)?;
        }
        // Each is complete, so that the newest counts.
        let newest = links
            .iter_mut()
            .zip(&found)
            .filter(|(_, (at, _))| *at == newest);
        let newest: Vec<_> = newest.map(|(link, _)| link.history.as_mut()).collect();
        let directories = newest.len();
        let histories = newest.into_iter().flatten().collect();
        HistoryReader::push_all(histories, directories, part, pool, loading)
    })
}

/// One directory of a chain, with its files open and their sizes checked.
struct Link<'m> {
    dir: &'m Path,
    /// The part that the directory holds, if it is one of a part.
    holds: Option<Partition>,
    /// The part whose keys are wanted, if not all are.
    only: Option<Partition>,
    rows: u64,
    /// The slots to load.
    slots: Vec<SlotSpec>,
    keys: Column<'m>,
    /// The embedding, then the slots, then those that rows catch up with and nobody wants.
    columns: Vec<Column<'m>>,
    /// Places of m and v in the columns, if rows catch up by the steps of later links.
    moments: Option<[usize; 2]>,
    /// The steps that rows have missed which a delta has not.
    steps: Option<SkippedSteps>,
    /// Keys that a delta takes out.
    removed: Option<(u64, Column<'m>)>,
    /// The admission history, if the directory has one and it is wanted.
    history: Option<HistoryReader<'m>>,
}

impl<'m> Link<'m> {
    fn open(
        table: &Table,
        source: &'m Source,
        manifest: Option<&'m Manifest>,
        wanted: &dyn Fn(&str) -> bool,
        waits: bool,
        only: Option<Partition>,
        most: u64,
    ) -> Result<Self> {
        let dir = source.dir.as_path();
        check_membership(dir, manifest.and_then(|manifest| manifest.seal))?;
        let mut verdicts =
            Verdicts::new(dir, manifest.and_then(|manifest| manifest.files.as_deref()));
        verdicts.attribute(KEY)?;
        let rows = check_keys(table, dir, most)?;
        if let Some(manifest) = manifest {
            check_dim(table, manifest.dim, &manifest.path)?;
            if manifest.rows != rows {
                return Err(
                    damaged("the manifest has another number of rows", &manifest.path)
                        .with("manifest_rows", manifest.rows)
                        .with("rows", rows),
                );
            }
        }
        let on_disk = match manifest {
            Some(manifest) => manifest.slots.clone(),
            None => find_slots(dir)?,
        };
        if on_disk.len() > MAX_SLOTS {
            return Err(
                damaged("the checkpoint has more slots than a table may have", dir)
                    .with("slots", on_disk.len())
                    .with("limit", MAX_SLOTS),
            );
        }
        let (slots, unwanted): (Vec<SlotSpec>, Vec<SlotSpec>) =
            on_disk.into_iter().partition(|slot| wanted(&slot.name));
        let keys = Column::open(dir, KEY, rows, KEY_BYTES, &mut verdicts)?;
        let stored = stored_as(manifest);
        let dim = table.dim() as u64;
        let mut columns = Vec::new();
        let moments = SkippedSteps::slots().filter(|_| waits);
        let hidden = unwanted.iter().map(|slot| slot.name.as_ref());
        let hidden = hidden.filter(|name| moments.clone().any(|moment| moment == *name));
        let names: Vec<&str> = std::iter::once(EMBEDDING)
            .chain(slots.iter().map(|slot| slot.name.as_ref()))
            .chain(hidden)
            .collect();
        for &name in &names {
            verdicts.attribute(name)?;
            let one = slots.iter().find(|slot| slot.name == name && slot.per_row);
            let dtype = match name {
                EMBEDDING => stored.dtype,
                _ => stored.of_slot(one.is_some()),
            };
            let form = (one.map_or(dim, |_| 1), dtype);
            check_values(table, &dir.join(name), rows, form)?;
            columns.push(Column::of_values(dir, name, rows, form, &mut verdicts)?);
        }
        let place = |moment| names.iter().position(|name| *name == moment);
        let moments: Vec<usize> = moments.filter_map(place).collect();
        let steps = match manifest {
            Some(manifest) => SkippedSteps::read(dir, source.partition, manifest, &mut verdicts)?,
            None => None,
        };
        let removed = if manifest.is_some_and(|manifest| manifest.is_delta) {
            verdicts.attribute(REMOVED)?;
            let [count, size] = attribute(&dir.join(REMOVED))?;
            check_width(size, KEY_BYTES, &dir.join(REMOVED).join(ATTRIBUTE))?;
            let column = Column::open(dir, REMOVED, count, KEY_BYTES, &mut verdicts)?;
            Some((count, column))
        } else {
            None
        };
        let wants_history = wanted(RECORDS);
        let history = if wants_history {
            let configured = manifest.and_then(|manifest| manifest.configured);
            HistoryReader::open(table, dir, configured, &mut verdicts)?
        } else {
            None
        };
        verdicts.rest(&|file| {
            let file = Path::new(file);
            unwanted
                .iter()
                .any(|slot| file.starts_with(slot.name.as_ref()))
                || (!wants_history && [RECORDS, THRESHOLDS, SKETCH].map(Path::new).contains(&file))
        })?;
        Ok(Self {
            dir,
            holds: source.partition,
            only,
            rows,
            keys,
            columns,
            // A row without one of them was saved before its first step.
            moments: moments.try_into().ok(),
            steps,
            slots,
            removed,
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
        let key_file = self.dir.join(KEY).join(DATA);
        let named = |error: Error| error.with("path", key_file.display());
        let is_delta = self.removed.is_some();
        if let Some((count, column)) = &mut self.removed {
            let mut keys = Vec::new();
            for first in (0..*count).step_by(LOAD_KEYS) {
                let count = count.saturating_sub(first).min(LOAD_KEYS as u64);
                read(
                    pool,
                    (first, count),
                    (column, &mut keys),
                    (&mut [], &mut []),
                )?;
                loading.remove(&keys)?;
            }
            column.finish()?;
        }
        // Those that are not on disk are made up.
        let sources: Vec<Option<usize>> = specs
            .iter()
            .map(|spec| self.slots.iter().position(|slot| slot.name == spec.name))
            .collect();
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
            if is_delta {
                loading.remove(&keys).map_err(named)?;
            }
            loading.push(&keys, embedding, &slots).map_err(named)?;
            first = first.saturating_add(count);
        }
        self.keys.finish()?;
        self.columns.iter().try_for_each(Column::finish)
    }
}

/// Checks the attribute of the keys and returns the number of rows, of which there may be `most`.
fn check_keys(table: &Table, dir: &Path, most: u64) -> Result<u64> {
    let dir = dir.join(KEY);
    let [rows, size] = attribute(&dir)?;
    let path = dir.join(ATTRIBUTE);
    check_width(size, KEY_BYTES, &path)?;
    if rows > most {
        return Err(Error::new(
            Kind::ResourceExhausted,
            "the checkpoint has more rows than the table's capacity",
        )
        .with("table", &table.config().name)
        .with("rows", rows)
        .with("capacity", most)
        .with("path", path.display()));
    }
    Ok(rows)
}

/// As what the values of a checkpoint are stored.
fn stored_as(manifest: Option<&Manifest>) -> RowStorage {
    manifest.map_or_else(RowStorage::default, |manifest| manifest.stored)
}

/// How the load rounds values to 2 bytes.
///
/// # Errors
/// `InvalidArgument` for embeddings or slots of another type than the table's, unless it converts
/// them.
fn expect_dtypes(
    table: &Table,
    manifests: &[Option<Manifest>],
    found: &[(usize, Source)],
    links: &[Link<'_>],
) -> Result<Rounding> {
    let own = table.config().row_storage;
    for ((manifest, (_, source)), link) in manifests.iter().zip(found).zip(links) {
        let saved = stored_as(manifest.as_ref());
        let other = link
            .slots
            .iter()
            .find(|slot| saved.of_slot(slot.per_row) != own.of_slot(slot.per_row));
        if saved.dtype != own.dtype || other.is_some() {
            let conversion = table.conversion_of(saved, other);
            return conversion.map_err(|error| error.with("path", source.dir.display()));
        }
    }
    Ok(Rounding::Nearest)
}

/// Checks the attribute of the embeddings or of a slot, of so many values of a type.
fn check_values(
    table: &Table,
    dir: &Path,
    rows: u64,
    (count, dtype): (u64, RowDtype),
) -> Result<()> {
    let [found, dim, size] = attribute(dir)?;
    let path = dir.join(ATTRIBUTE);
    check_width(size, dtype.bytes() as u64, &path)?;
    if count == table.dim() as u64 {
        check_dim(table, dim, &path)?;
    } else if dim != count {
        return Err(damaged("a slot has another number of values a row", &path)
            .with("values", dim)
            .with("expected", count));
    }
    if found != rows {
        return Err(damaged(
            "a part has another number of rows than there are keys",
            &path,
        )
        .with("rows", found)
        .with("keys", rows));
    }
    Ok(())
}

fn check_dim(table: &Table, dim: u64, path: &Path) -> Result<()> {
    if dim == table.dim() as u64 {
        return Ok(());
    }
    Err(
        Error::invalid("the checkpoint has another dim than the table")
            .with("table", &table.config().name)
            .with("checkpoint_dim", dim)
            .with("table_dim", table.dim())
            .with("path", path.display()),
    )
}
