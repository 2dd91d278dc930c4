//! What tests share: directories, a pool, and what a table holds.

use super::{load_chain, Loaded};
use crate::{Pool, Table};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::LazyLock;

/// Its threads are started once.
pub(super) fn pool() -> &'static Pool {
    static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(2).unwrap());
    &POOL
}

/// Every key with the bits of its row, slots included, whatever their order.
pub(super) fn content(table: &Table) -> BTreeMap<i64, Vec<u32>> {
    let mut rows = BTreeMap::new();
    let put = &mut |key, row: &[f32]| {
        rows.insert(key, row.iter().map(|value| value.to_bits()).collect());
        Ok(())
    };
    table.snapshot().for_each_row(put).unwrap();
    rows
}

/// Loads all that a chain of directories holds.
pub(super) fn load_all(table: &Table, dirs: &[PathBuf]) -> Loaded {
    let dirs: Vec<&Path> = dirs.iter().map(PathBuf::as_path).collect();
    load_chain(table, pool(), &dirs, &|_| true).unwrap()
}

/// A directory of its own for one test, removed at the end.
pub(super) struct Temp(pub(super) PathBuf);

impl Temp {
    pub(super) fn new() -> Temp {
        Temp::below(&std::env::temp_dir())
    }

    /// In memory, where the machine has a file system there: flushes take no time.
    pub(super) fn in_memory() -> Temp {
        let memory = Path::new("/dev/shm");
        match memory.is_dir() {
            true => Temp::below(memory),
            false => Temp::new(),
        }
    }

    fn below(parent: &Path) -> Temp {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("mx_rec-checkpoint-{}-{number}", std::process::id());
        let path = parent.join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Temp(path)
    }

    /// A path in it.
    pub(super) fn at(&self, name: impl Display) -> PathBuf {
        self.0.join(name.to_string())
    }

    /// The names of what is in it.
    pub(super) fn entries(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let names = fs::read_dir(&self.0).unwrap().map(name);
        names.map(|name| name.into_string().unwrap()).collect()
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
