//! What several files share: batches of ids with what they give made new, parts of configurations,
//! and what an error has to say.

use crate::singles::{Singles as _, Target};
use mx_rec_kernels::{
    Absent, Columns, Error, Field, FieldUpdate, Ids, IdsOf, Initializer, KeyGradients, KeysOf,
    Kind, Lease, LookupGradients, Pool, Push, RowOptimizer, RowsOf, Table, Thresholds, TierConfig,
};
use proptest::prelude::ProptestConfig;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) const UNIFORM: Initializer = Initializer::RandomUniform {
    min: -1.0,
    max: 1.0,
};

pub(crate) fn pool() -> Pool {
    Pool::new(1).unwrap()
}

/// A tier with so many rows in memory, and files in directories.
pub(crate) fn tier(ram_rows: u64, directories: Vec<PathBuf>) -> TierConfig {
    TierConfig {
        ram_rows,
        directories,
        direct: false,
    }
}

pub(crate) fn thresholds(access: u32, eviction: Option<u32>) -> Thresholds {
    Thresholds { access, eviction }
}

/// The rows of ids: zeros for keys without one.
#[track_caller]
pub(crate) fn found_rows(table: &Table, pool: &Pool, ids: &[i64]) -> Vec<f32> {
    let mut rows = vec![9.0; ids.len() * table.dim()];
    let ids = Ids::I64(ids);
    table.find(pool, ids, Absent::Zeros, &mut rows).unwrap();
    rows
}

#[track_caller]
fn numbered(table: &Table, pool: &Pool, ids: &[i64], create: bool) -> (Vec<i64>, Vec<i32>) {
    let mut inverse = vec![9; ids.len()];
    let offsets = table.id_offset(pool, Ids::I64(ids), create, None, &mut inverse);
    (offsets.unwrap(), inverse)
}

/// Offsets and inverse of ids, all of which get rows.
#[track_caller]
pub(crate) fn created(table: &Table, pool: &Pool, ids: &[i64]) -> (Vec<i64>, Vec<i32>) {
    numbered(table, pool, ids, true)
}

/// Offsets and inverse of ids, none of which gets a row.
#[track_caller]
pub(crate) fn known_offsets(table: &Table, pool: &Pool, ids: &[i64]) -> (Vec<i64>, Vec<i32>) {
    numbered(table, pool, ids, false)
}

/// A lease of the rows of ids, and their inverse.
#[track_caller]
pub(crate) fn leased(table: &Arc<Table>, pool: &Pool, ids: &[i64]) -> (Lease, Vec<i32>) {
    let mut inverse = vec![9; ids.len()];
    let lease = table.lease(pool, Ids::I64(ids), None, &mut inverse);
    (lease.unwrap(), inverse)
}

/// Observes a batch and admits it: a lease of the rows, and the inverse, -1 where an id has none.
#[track_caller]
pub(crate) fn admitted(
    table: &Arc<Table>,
    pool: &Pool,
    ids: &[i64],
    (weight, time): (u32, Option<i64>),
    limits: Thresholds,
) -> (Lease, Vec<i32>) {
    let (mut places, mut inverse) = (vec![0; ids.len()], vec![0; ids.len()]);
    let ids = Ids::I64(ids);
    let keys = table.observe(None, pool, ids, weight, time, limits, &mut places);
    let lease = table.admit(pool, &keys.unwrap(), None, &places, &mut inverse);
    (lease.unwrap(), inverse)
}

/// Updates rows; returns how many.
#[track_caller]
pub(crate) fn applied(
    table: &Table,
    pool: &Pool,
    target: Target<'_>,
    grads: &[f32],
    optimizer: &dyn RowOptimizer,
) -> u64 {
    table.apply(pool, target, grads, optimizer).unwrap()
}

/// Gradients of a lookup that is not pooled.
pub(crate) fn gradients<'a>(
    offsets: &'a [i64],
    inverse: &'a [i32],
    grads: Columns<'a>,
) -> LookupGradients<'a> {
    LookupGradients {
        offsets,
        inverse,
        grads,
        bags: None,
    }
}

/// A member of a lookup by one call.
pub(crate) fn ids_of<'a>(
    table: &'a Arc<Table>,
    ids: &'a [i64],
    inverse: &'a mut [i32],
) -> IdsOf<'a> {
    let ids = Ids::I64(ids);
    IdsOf {
        table,
        ids,
        inverse,
    }
}

/// A member of a search for rows by their keys, not pooled.
pub(crate) fn keys_of<'a>(table: &'a Table, ids: &'a [i64], absent: Absent<'a>) -> KeysOf<'a> {
    KeysOf {
        table,
        ids: Ids::I64(ids),
        absent,
        bags: None,
    }
}

/// A member of a lookup of rows, not pooled.
pub(crate) fn rows_of<'a>(table: &'a Table, offsets: &'a [i64], inverse: &'a [i32]) -> RowsOf<'a> {
    RowsOf {
        table,
        offsets,
        inverse,
        bags: None,
    }
}

/// Gradients of keys, whose births are not told.
pub(crate) fn key_gradients<'a>(keys: &'a [i64], grads: &'a [f32]) -> KeyGradients<'a> {
    KeyGradients {
        keys,
        grads,
        births: None,
    }
}

/// A push of the gradients of one worker.
pub(crate) fn push_of<'a>(
    table: &'a Table,
    keys: &'a [i64],
    grads: &'a [f32],
    optimizer: &'a dyn RowOptimizer,
) -> Push<'a> {
    Push {
        table,
        grads: vec![key_gradients(keys, grads)],
        optimizer,
    }
}

pub(crate) fn field_update<'a>(field: Field, old: &'a [f32], new: &'a [f32]) -> FieldUpdate<'a> {
    FieldUpdate { field, old, new }
}

/// Whether tests with many cases run all of them, as in `scripts/test whole`.
pub(crate) fn is_whole() -> bool {
    std::env::var_os("MX_REC_WHOLE").is_some()
}

/// So many rounds of threads that meet by chance, a quarter where not all cases run.
pub(crate) fn rounds(rounds: usize) -> usize {
    if is_whole() {
        rounds
    } else {
        rounds.div_ceil(4)
    }
}

/// So many cases of a property, an eighth where not all run, without a file of those that failed.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: if is_whole() { cases } else { cases.div_ceil(8) },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Asserts that an error is of a kind and says all of this.
#[track_caller]
pub(crate) fn expect_error(error: &Error, kind: Kind, said: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(said.iter().all(|one| text.contains(one)), "{text}");
}
