//! What the tests of groups share: tables, and all that a verb can change in a table.

pub(crate) use crate::optimizers::optimizer;
use crate::singles::Singles as _;
use crate::support::{ids_of, UNIFORM};
pub(crate) use crate::table::bits;
use mx_rec_kernels::{Error, Lease, Pool, Stats, Table, TableConfig};
use std::sync::Arc;

pub(crate) fn table(at: usize, dim: usize, capacity: u64) -> Arc<Table> {
    let config = TableConfig {
        seed: 3 + at as u64,
        initializer: UNIFORM,
        frozen_keys: vec![11],
        ..TableConfig::new(format!("table_{at}"), dim, capacity)
    };
    Arc::new(Table::new(config).unwrap())
}

pub(crate) fn floats(n: usize, seed: usize) -> Vec<f32> {
    let value = |at: usize| ((at * 7919 + seed * 104_729) as f32 * 0.37).sin();
    (0..n)
        .map(|at| value(at) * 10_f32.powi((at % 7) as i32 - 3))
        .collect()
}

/// Rows, slots and counters of a table: all that a verb can change, but the room in the index,
/// which depends on how many keys came at once.
pub(crate) type Seen = (Vec<i64>, Vec<u32>, Vec<(String, Vec<u32>)>, Stats);

pub(crate) fn seen(table: &Table) -> Seen {
    let export = table.export().unwrap();
    let slots = export
        .slots
        .iter()
        .map(|(spec, values)| (spec.name.to_string(), bits(values)));
    let stats = Stats {
        index_bytes: 0,
        ..table.stats()
    };
    (
        export.keys.clone(),
        bits(&export.embedding),
        slots.collect(),
        stats,
    )
}

pub(crate) fn all_seen(tables: &[Arc<Table>]) -> Vec<Seen> {
    tables.iter().map(|table| seen(table)).collect()
}

/// The members of a group: each the number of a table, and its ids.
pub(crate) type Members = Vec<(usize, Vec<i64>)>;

pub(crate) fn leases(
    tables: &[Arc<Table>],
    pool: &Pool,
    members: &Members,
) -> (Vec<Lease>, Vec<Vec<i32>>) {
    try_leases(tables, pool, members, None).unwrap()
}

pub(crate) fn try_leases(
    tables: &[Arc<Table>],
    pool: &Pool,
    members: &Members,
    limit: Option<usize>,
) -> Result<(Vec<Lease>, Vec<Vec<i32>>), Error> {
    let mut inverses: Vec<Vec<i32>> = members.iter().map(|(_, ids)| vec![9; ids.len()]).collect();
    let group = members
        .iter()
        .zip(&mut inverses)
        .map(|((at, ids), inverse)| ids_of(&tables[*at], ids, inverse));
    let leases = Table::lease_many(pool, group.collect(), limit)?;
    Ok((leases, inverses))
}
