//! The files that a manifest lists: each is compared with what it says, by whoever reads it or at
//! the end.

#![deny(clippy::arithmetic_side_effects)]

use super::file::{SavedFile, Seal};
use super::format::damaged;
use super::manifest::{Manifest, Recorded};
use crate::Result;
use std::path::{Path, PathBuf};

/// The files that a manifest lists, less those that a reader has asked for.
pub(super) struct Listing {
    dir: PathBuf,
    /// None below version 2.
    files: Option<Vec<Recorded>>,
}

impl Listing {
    /// That of the table in `dir`.
    pub(super) fn of(dir: &Path, manifest: &Manifest) -> Listing {
        Listing {
            dir: dir.to_owned(),
            files: manifest.files.clone(),
        }
    }

    /// Whether the manifest lists the file `name`; `None` if it lists none.
    pub(super) fn lists(&self, name: &str) -> Option<bool> {
        let files = self.files.as_ref()?;
        Some(files.iter().any(|file| file.path == name))
    }

    /// Opens the file `name`, which may have any size.
    ///
    /// # Errors
    /// `DataLoss` if the manifest lists others, but not this one; `NotFound`, `Io`.
    pub(super) fn open(&mut self, name: &str) -> Result<SavedFile> {
        let path = self.dir.join(name);
        let seal = self.take(name, &path)?;
        SavedFile::open(&path, seal)
    }

    /// What the manifest says of the file `name`, which is at `path`; `None` if it has no
    /// checksums.
    ///
    /// # Errors
    /// `DataLoss` if it has some, but not of this file.
    pub(super) fn take(&mut self, name: &str, path: &Path) -> Result<Option<Seal>> {
        let Some(files) = &mut self.files else {
            return Ok(None);
        };
        match files.iter().position(|file| file.path == name) {
            Some(at) => Ok(Some(files.swap_remove(at).seal)),
            None => Err(damaged("the manifest does not list this file", path)),
        }
    }

    /// Checks the files that no reader has asked for, except those for which `ignored` is true.
    ///
    /// # Errors
    /// `DataLoss`, `NotFound` or `Io` with the file.
    pub(super) fn check_rest(&mut self, ignored: &dyn Fn(&str) -> bool) -> Result<()> {
        for recorded in self.files.take().unwrap_or_default() {
            let path = recorded.below(&self.dir)?;
            if !ignored(&recorded.path) {
                SavedFile::open(&path, Some(recorded.seal))?.check()?;
            }
        }
        Ok(())
    }
}
