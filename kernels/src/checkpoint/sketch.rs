//! The counters of keys without rows of a table that counts them in a sketch, in a file of their
//! own: `hist_sketch`.

#![deny(clippy::arithmetic_side_effects)]

use super::file::SavedFile;
use super::format::{damaged, BLOCK_BYTES, SKETCH};
use super::listing::Listing;
use super::rows::Written;
use crate::{Loading, Result, Snapshot, Table};
use std::path::Path;

/// Bytes before the cells: width, then depth.
const HEAD: usize = 16;

/// Bytes of a cell.
const CELL: usize = 8;

/// Cells that are read or written at once.
const CELLS: usize = BLOCK_BYTES / CELL;

/// Writes the sketch of a table, if it has one and a history, into its directory.
///
/// Batches may be observed meanwhile: each cell is as it was at some moment of the call. Memory: 2
/// MiB.
///
/// # Errors
/// `Io` for what the system refuses, with the file.
pub(super) fn write_sketch(
    snapshot: &Snapshot<'_>,
    dir: &Path,
    files: &mut Vec<Written>,
) -> Result<()> {
    let Some((width, depth)) = snapshot.sketch_shape() else {
        return Ok(());
    };
    let head = [width, depth].map(u64::to_le_bytes);
    let mut file = Written::whole(dir, SKETCH, head.as_flattened())?;
    let mut bytes = Vec::new();
    for from in (0..width.saturating_mul(depth)).step_by(CELLS) {
        bytes.clear();
        snapshot.each_cell(from as usize, CELLS, &mut |cell| {
            bytes.extend_from_slice(&cell.to_le_bytes());
        });
        file.append(&bytes)?;
    }
    files.push(file);
    Ok(())
}

/// A sketch to load into a table that has one of the same shape; its file is open.
pub(super) struct SketchReader {
    file: SavedFile,
    cells: u64,
}

impl SketchReader {
    /// Opens the sketch in the directory of a table whose manifest lists one. None without, and if
    /// `table` has exact counters or a sketch of another shape: a cell is of several keys.
    ///
    /// # Errors
    /// `DataLoss`, `NotFound` or `Io` with the file.
    pub(super) fn open(table: &Table, listing: &mut Listing) -> Result<Option<Self>> {
        let Some(wanted) = table.sketch_shape() else {
            return Ok(None);
        };
        if listing.lists(SKETCH) != Some(true) {
            return Ok(None);
        }
        let mut file = listing.open(SKETCH)?;
        file.check_size()?;
        let mut head = [[0; 8]; 2];
        if file.size < HEAD as u64 {
            return Err(damaged("the sketch has no shape", &file.path).with("bytes", file.size));
        }
        file.read_exact(head.as_flattened_mut())?;
        let [width, depth] = head.map(u64::from_le_bytes);
        let cells = width.checked_mul(depth);
        let expected = cells
            .and_then(|cells| cells.checked_mul(CELL as u64))
            .and_then(|bytes| bytes.checked_add(HEAD as u64));
        let Some(cells) = cells.filter(|_| expected == Some(file.size)) else {
            let message = "the sketch has a size that is not that of its shape";
            return Err(damaged(message, &file.path)
                .with("bytes", file.size)
                .with("width", width)
                .with("depth", depth));
        };
        if (width, depth) != wanted {
            file.check()?;
            return Ok(None);
        }
        Ok(Some(Self { file, cells }))
    }

    /// Fills the cells of a history that was started, then compares the checksum.
    ///
    /// # Errors
    /// `DataLoss` or `Io` with the file.
    pub(super) fn push(&mut self, loading: &Loading<'_>) -> Result<()> {
        let mut bytes = vec![0; CELLS.saturating_mul(CELL)];
        for from in (0..self.cells).step_by(CELLS) {
            let count = self.cells.saturating_sub(from).min(CELLS as u64) as usize;
            bytes.truncate(count.saturating_mul(CELL));
            self.file.read_exact(&mut bytes)?;
            let words: &[[u8; CELL]] = bytes.as_chunks().0;
            let cells = words.iter().map(|&word| u64::from_le_bytes(word));
            loading.fill_cells(from as usize, cells);
        }
        self.file.finish()
    }
}
