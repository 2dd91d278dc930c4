//! What a table's directory holds, by its manifest, its attribute files and the sizes of its data
//! files: for whoever loads the table, and for whoever looks at it.

#![deny(clippy::arithmetic_side_effects)]

use super::block::Column;
use super::file::SavedFile;
use super::format::{
    damaged, is_slot_name, named, ATTRIBUTE, DATA, EMBEDDING, KEY, KEY_BYTES, MAX_SLOTS, RECORDS,
    REMOVED,
};
use super::history::{find, Found};
use super::listing::Listing;
use super::manifest::Manifest;
use super::whole::check_membership;
use crate::optim::usual_start;
use crate::{Error, Kind, Result, RowDtype, SlotSpec, Table, MAX_DIM};
use std::fs;
use std::path::{Path, PathBuf};

/// A part of a table.
pub(super) struct Part {
    pub(super) name: String,
    /// The type of its values; keys have none.
    dtype: RowDtype,
    /// Bytes of a record, if its attribute is good.
    width: Option<u64>,
    /// Its data file, if it can be opened.
    pub(super) file: Option<SavedFile>,
}

/// A table that is to be loaded.
#[derive(Clone, Copy)]
pub(super) struct Target<'t> {
    pub(super) table: &'t Table,
    /// Rows that may come from one directory.
    pub(super) most: u64,
}

/// A table's directory with the errors that show without reading data.
pub(super) struct Layout {
    pub(super) dir: PathBuf,
    pub(super) manifest: Manifest,
    /// All slots, also those whose parts nobody wants.
    pub(super) slots: Vec<SlotSpec>,
    pub(super) rows: Option<u64>,
    pub(super) dim: Option<u64>,
    /// The keys, the embedding, and the slots that are wanted.
    pub(super) parts: Vec<Part>,
    /// The keys that a delta takes out, and how many there are.
    pub(super) removed: Option<Part>,
    pub(super) removed_keys: Option<u64>,
    /// What admission and eviction know, if it is there, sound and wanted.
    pub(super) history: Option<Found>,
    /// The files that were not opened.
    pub(super) listing: Listing,
    pub(super) errors: Vec<Error>,
}

impl Layout {
    /// That of the table in `dir`, of whose manifest `manifest` is what [`Manifest::read`] gave, as
    /// far as `wanted` accepts the names of slots and of the history. With a target it must fit
    /// there, too.
    ///
    /// # Errors
    /// `NotFound`, `DataLoss` or `Io` if `dir` is no directory that can be read. What is wrong
    /// inside is in `errors`.
    pub(super) fn read(
        dir: &Path,
        manifest: Result<Manifest>,
        target: Option<Target<'_>>,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Layout> {
        let (manifest, error) = match manifest {
            Ok(manifest) => {
                let membership = check_membership(dir, manifest.seal);
                (manifest, membership.err())
            }
            Err(error) if !dir.is_dir() => return Err(error),
            Err(error) => (Manifest::default(), Some(error)),
        };
        let is_told = manifest.version > 0;
        let mut layout = Layout {
            dir: dir.to_owned(),
            slots: match is_told {
                true => manifest.slots.clone(),
                false => find_slots(dir)?,
            },
            rows: None,
            dim: is_told.then_some(manifest.dim),
            parts: Vec::new(),
            removed: None,
            removed_keys: None,
            history: None,
            listing: Listing::of(dir, &manifest),
            errors: error.into_iter().collect(),
            manifest,
        };
        layout.measure(target, wanted);
        if layout.manifest.is_delta {
            let count = layout.counted(REMOVED);
            let count = layout.note(count);
            layout.removed_keys = count;
            layout.removed = Some(layout.part(REMOVED, KEYS, Some(KEY_BYTES), count));
        }
        if wanted(RECORDS) {
            let configured = layout.manifest.configured;
            let errors = &mut layout.errors;
            layout.history = find(dir, configured, &mut layout.listing, errors);
        }
        Ok(layout)
    }

    /// Finds the rows, the dim and the parts.
    fn measure(&mut self, target: Option<Target<'_>>, wanted: &dyn Fn(&str) -> bool) {
        let is_told = self.manifest.version > 0;
        let counted = self.counted(KEY);
        let counted = self.note(counted);
        if let (Some(target), Some(rows)) = (target, counted) {
            let fits = target.takes(rows, &self.dir.join(KEY).join(ATTRIBUTE));
            self.note(fits);
        }
        if let Some(rows) = counted.filter(|rows| is_told && *rows != self.manifest.rows) {
            let message = "the manifest has another number of rows than there are keys";
            let error = damaged(message, &self.manifest.path);
            let error = error.with("manifest_rows", self.manifest.rows);
            self.errors.push(error.with("rows", rows));
        }
        let rows = counted.or(is_told.then_some(self.manifest.rows));
        self.rows = rows;
        if let Some(target) = target {
            if is_told {
                let fits = target.has_dim(self.manifest.dim, &self.manifest.path);
                self.note(fits);
            }
            self.dim = Some(target.table.dim() as u64);
        }
        if self.slots.len() > MAX_SLOTS {
            let message = "the checkpoint has more slots than a table may have";
            let error = damaged(message, &self.dir).with("slots", self.slots.len());
            self.errors.push(error.with("limit", MAX_SLOTS));
        }
        let keys = self.part(KEY, KEYS, Some(KEY_BYTES), rows);
        self.parts.push(keys);
        let stored = self.manifest.stored;
        let slots = self.slots.iter().filter(|slot| wanted(&slot.name));
        let slots = slots.map(|slot| {
            let dtype = stored.of_slot(slot.per_row);
            (slot.name.to_string(), slot.per_row, dtype)
        });
        let embedding = (EMBEDDING.to_owned(), false, stored.dtype);
        let forms: Vec<_> = std::iter::once(embedding).chain(slots).collect();
        for (name, per_row, dtype) in forms {
            let count = if per_row { Some(1) } else { self.dim };
            let target = target.filter(|_| !per_row);
            let shape = self.value_shape(&name, rows, (count, dtype), target);
            let count = self.note(shape);
            if !per_row {
                self.dim = self.dim.or(count);
            }
            let width = count.map(|count| count.saturating_mul(dtype.bytes() as u64));
            let part = self.part(&name, dtype, width, rows);
            self.parts.push(part);
        }
    }

    /// Takes note of an error.
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    /// The words of the attribute file of a part, of which there must be `N`, none negative.
    fn attribute<const N: usize>(&mut self, name: &str) -> Result<([u64; N], PathBuf)> {
        let mut file = self.listing.open(&format!("{name}/{ATTRIBUTE}"))?;
        file.check_size()?;
        let mut words = [[0; 8]; N];
        if file.size != size_of_val(&words) as u64 {
            return Err(damaged("an attribute file has a wrong size", &file.path)
                .with("bytes", file.size)
                .with("expected", size_of_val(&words)));
        }
        file.read_exact(words.as_flattened_mut())?;
        file.finish()?;
        let words = words.map(i64::from_le_bytes);
        if words.iter().any(|&word| word < 0) {
            let message = "an attribute file has a negative number";
            return Err(damaged(message, &file.path));
        }
        Ok((words.map(i64::unsigned_abs), file.path))
    }

    /// The number of keys that the attribute of a part says.
    fn counted(&mut self, name: &str) -> Result<u64> {
        let ([rows, size], path) = self.attribute(name)?;
        check_width(size, KEY_BYTES, &path)?;
        Ok(rows)
    }

    /// The number of values a row that the attribute of a part says, which must fit the rest.
    fn value_shape(
        &mut self,
        name: &str,
        rows: Option<u64>,
        (dim, dtype): (Option<u64>, RowDtype),
        target: Option<Target<'_>>,
    ) -> Result<u64> {
        let ([found, width, size], path) = self.attribute(name)?;
        check_width(size, dtype.bytes() as u64, &path)?;
        if let Some(target) = target {
            target.has_dim(width, &path)?;
        }
        if let Some(dim) = dim.filter(|dim| *dim != width) {
            return Err(damaged("a part has another dim than the table", &path)
                .with("dim", width)
                .with("table_dim", dim));
        }
        if !(1..=MAX_DIM as u64).contains(&width) {
            return Err(damaged("no table has such a dim", &path)
                .with("dim", width)
                .with("limit", MAX_DIM));
        }
        match rows.filter(|rows| *rows != found) {
            None => Ok(width),
            Some(rows) => {
                let message = "a part has another number of rows than there are keys";
                let error = damaged(message, &path).with("rows", found);
                Err(error.with("keys", rows))
            }
        }
    }

    /// The part `name`, the size of whose data file must fit.
    fn part(&mut self, name: &str, dtype: RowDtype, width: Option<u64>, rows: Option<u64>) -> Part {
        let below = format!("{name}/{DATA}");
        let path = self.dir.join(&below);
        let seal = self.listing.take(&below, &path);
        let seal = self.note(seal).flatten();
        let file = self.note(SavedFile::open(&path, seal));
        if let Some(file) = &file {
            let records = width.zip(rows);
            let fits = records.map_or(Ok(()), |records| check_records(file, records));
            let fits = fits.and_then(|()| file.check_size());
            self.note(fits);
        }
        Part {
            name: name.to_owned(),
            dtype,
            width,
            file,
        }
    }

    /// Refuses a directory with anything wrong.
    ///
    /// # Errors
    /// The first error.
    pub(super) fn sound(mut self) -> Result<Layout> {
        match self.errors.is_empty() {
            true => Ok(self),
            false => Err(self.errors.swap_remove(0)),
        }
    }

    /// The parts of a directory with nothing wrong.
    pub(super) fn columns(&mut self) -> Vec<Column> {
        self.parts.drain(..).filter_map(Part::column).collect()
    }
}

/// The type of keys, which no one asks for.
const KEYS: RowDtype = RowDtype::Float32;

impl Part {
    /// What is there to read, if nothing is wrong.
    pub(super) fn column(self) -> Option<Column> {
        let (file, width) = self.file.zip(self.width)?;
        Some(Column {
            name: self.name,
            file,
            width,
            dtype: self.dtype,
        })
    }
}

impl Target<'_> {
    /// Refuses more rows than the table takes.
    fn takes(&self, rows: u64, path: &Path) -> Result<()> {
        if rows <= self.most {
            return Ok(());
        }
        let message = "the checkpoint has more rows than the table's capacity";
        Err(Error::new(Kind::ResourceExhausted, message)
            .with("table", &self.table.config().name)
            .with("rows", rows)
            .with("capacity", self.most)
            .with("path", path.display()))
    }

    /// Refuses another dim than the table's.
    fn has_dim(&self, dim: u64, path: &Path) -> Result<()> {
        if dim == self.table.dim() as u64 {
            return Ok(());
        }
        let message = "the checkpoint has another dim than the table";
        Err(Error::invalid(message)
            .with("table", &self.table.config().name)
            .with("checkpoint_dim", dim)
            .with("table_dim", self.table.dim())
            .with("path", path.display()))
    }
}

fn check_width(size: u64, expected: u64, path: &Path) -> Result<()> {
    if size == expected {
        return Ok(());
    }
    let message = "an attribute file names another number of bytes a value";
    let error = damaged(message, path).with("bytes", size);
    Err(error.with("expected", expected))
}

/// Refuses a data file whose size is not that of `rows` records of `width` bytes.
fn check_records(file: &SavedFile, (width, rows): (u64, u64)) -> Result<()> {
    if rows.checked_mul(width) == Some(file.size) {
        return Ok(());
    }
    let message = "a file's size is not what its attribute says";
    Err(damaged(message, &file.path)
        .with("bytes", file.size)
        .with("rows", rows)
        .with("bytes_per_row", width))
}

/// The slots in a directory without a manifest, by name.
fn find_slots(dir: &Path) -> Result<Vec<SlotSpec>> {
    let mut slots: Vec<SlotSpec> = Vec::new();
    for entry in named(fs::read_dir(dir), "read a directory", dir)? {
        let entry = named(entry, "read a directory", dir)?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if !is_slot_name(&name) || !entry.path().join(ATTRIBUTE).is_file() {
            continue;
        }
        // Matters only in a table that has not seen its optimizer yet: nothing else says it.
        let initial = usual_start(&name);
        slots.push(SlotSpec {
            name: name.into(),
            initial,
            per_row: false,
        });
    }
    slots.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(slots)
}
