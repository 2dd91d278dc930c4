//! Batches of many tables that are prepared together: what each table gives is what it gives alone,
//! and threads that claim, remove and clear meanwhile wait for nobody for ever.

use crate::singles::Singles as _;
use crate::support::{ids_of, UNIFORM};
use crate::table::rows;
use mx_rec_kernels::{Ids, Lease, Pool, Table, TableConfig};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

const DIM: usize = 4;

fn table(seed: u64, capacity: u64) -> Arc<Table> {
    let config = TableConfig {
        seed,
        initializer: UNIFORM,
        ..TableConfig::new(format!("table{seed}"), DIM, capacity)
    };
    Arc::new(Table::new(config).unwrap())
}

/// Tables of several sizes; the last one has room for few keys.
fn tables() -> Vec<Arc<Table>> {
    let capacities = [100_000, 3000, 100_000, 100_000, 30];
    let seeds = 0_u64..;
    seeds.zip(capacities).map(|(at, n)| table(at, n)).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// One member of a group: which table, and which of the batches.
type Member = (usize, usize);

/// A group with its leases, as it goes from the pipeline to the step.
struct Ahead {
    inverses: Vec<Vec<i32>>,
    leases: Vec<Lease>,
}

fn together(
    pool: &Pool,
    tables: &[Arc<Table>],
    members: &[Member],
    batches: &[Vec<i64>],
    limit: Option<usize>,
) -> Ahead {
    // Every other member has its batch in memory of its own.
    let copies = batches.to_vec();
    let places = members.iter().enumerate();
    let ids = places.map(|(at, &(_, batch))| match at % 2 {
        0 => &batches[batch][..],
        _ => &copies[batch][..],
    });
    let mut inverses: Vec<Vec<i32>> = ids.clone().map(|ids| vec![7; ids.len()]).collect();
    let group = members.iter().zip(ids).zip(&mut inverses);
    let group = group.map(|((&(table, _), ids), inverse)| ids_of(&tables[table], ids, inverse));
    let leases = Table::prepare_many(pool, group.collect(), limit);
    Ahead { inverses, leases }
}

fn one_by_one(
    tables: &[Arc<Table>],
    members: &[Member],
    batches: &[Vec<i64>],
    limit: Option<usize>,
) -> Ahead {
    let pool = Pool::new(1).unwrap();
    // In the order in which batches come first: that in which they get their rows.
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|&at| members.iter().position(|one| one.1 == members[at].1));
    let mut found: Vec<Option<(Vec<i32>, Lease)>> = members.iter().map(|_| None).collect();
    for at in order {
        let (table, batch) = members[at];
        let ids = &batches[batch];
        let mut inverse = vec![7; ids.len()];
        let lease = tables[table].prepare(&pool, Ids::I64(ids), limit, &mut inverse);
        found[at] = Some((inverse, lease));
    }
    let (inverses, leases) = found.into_iter().flatten().unzip();
    Ahead { inverses, leases }
}

/// Claims the batches in their order; says which could be claimed.
fn claim(
    tables: &[Arc<Table>],
    members: &[Member],
    batches: &[Vec<i64>],
    limit: Option<usize>,
    ahead: &Ahead,
) -> Vec<bool> {
    let pool = Pool::new(1).unwrap();
    let all = members.iter().zip(&ahead.leases).zip(&ahead.inverses);
    all.map(|((&(table, batch), lease), inverse)| {
        let ids = Ids::I64(&batches[batch]);
        let claimed = tables[table].claim(&pool, ids, lease.offsets(), limit, inverse);
        claimed.unwrap()
    })
    .collect()
}

/// The keys of a table with their rows, by key.
fn content(table: &Table) -> Vec<(i64, Vec<u32>)> {
    let copy = table.export().unwrap();
    let rows = copy.embedding.chunks_exact(DIM);
    let rows = rows.map(|row| row.iter().map(|value| value.to_bits()).collect());
    let mut found: Vec<(i64, Vec<u32>)> = copy.keys.into_iter().zip(rows).collect();
    found.sort_unstable();
    found
}

#[test]
fn each_table_of_a_group_prepares_what_it_prepares_alone() {
    // Some groups are one list of work, others are cut, and one batch is worked on by all threads.
    for (longest, threads) in [(40, 1), (40, 3), (3000, 2), (3000, 4), (40_000, 3)] {
        let pool = Pool::new(threads).unwrap();
        let mut random = Random(longest + threads as u64);
        let (group, alone) = (tables(), tables());
        for round in 0..8 {
            let mut batches: Vec<Vec<i64>> = Vec::new();
            for _ in 0..6 {
                let n = random.below(longest);
                let keys = 1 + random.below(2 * longest);
                let id = |_| random.below(keys) as i64 - 1;
                batches.push((0..n).map(id).collect());
            }
            batches.push(Vec::new());
            // A table that comes twice, and batches that several tables share.
            let members: Vec<Member> = (0..9)
                .map(|_| (random.below(5) as usize, random.below(7) as usize))
                .collect();
            let limit = (round % 3 == 2).then_some(longest as usize / 2);
            let one = together(&pool, &group, &members, &batches, limit);
            let other = one_by_one(&alone, &members, &batches, limit);
            for (at, (found, expected)) in one.leases.iter().zip(&other.leases).enumerate() {
                let of = members[at];
                assert_eq!(rows(found.offsets()), rows(expected.offsets()), "{of:?}");
                let shared = members.iter().filter(|member| member.1 == of.1).count();
                // Of batches that are shared the inverse is -1 if no table could prepare it.
                if shared == 1 || !expected.offsets().is_empty() {
                    assert_eq!(one.inverses[at], other.inverses[at], "{of:?}");
                }
            }
            let before: Vec<u64> = group.iter().map(|table| table.len()).collect();
            let then: Vec<u64> = alone.iter().map(|table| table.len()).collect();
            assert_eq!(before, then);
            if round % 4 == 3 {
                // Keys that go void the leases that name them, on both sides.
                for tables in [&group, &alone] {
                    tables.iter().for_each(|table| {
                        table.remove(Ids::I64(&[1, 2, 5])).unwrap();
                    });
                }
            }
            let claimed = claim(&group, &members, &batches, limit, &one);
            assert_eq!(claimed, claim(&alone, &members, &batches, limit, &other));
            drop((one, other));
            for (one, other) in group.iter().zip(&alone) {
                assert_eq!(content(one), content(other));
            }
        }
        assert!(content(&group[0]).len() > 30);
    }
}

#[test]
fn a_batch_that_cannot_be_prepared_leaves_the_others_alone() {
    let tables = tables();
    let batches = vec![(0..50).collect(), vec![1, 2, 3], Vec::new()];
    // Table 4 has room for 30 keys.
    let members = [(4, 0), (0, 0), (4, 1), (1, 2)];
    let pool = Pool::new(2).unwrap();
    let ahead = together(&pool, &tables, &members, &batches, None);
    let lengths: Vec<usize> = ahead.leases.iter().map(|one| one.offsets().len()).collect();
    assert_eq!(lengths, [0, 50, 3, 0]);
    assert_eq!(ahead.inverses[0], ahead.inverses[1]);
    assert_eq!(ahead.inverses[1][..3], [0, 1, 2]);
    assert_eq!(
        claim(&tables, &members, &batches, None, &ahead),
        [false, true, true, true]
    );
    let lengths: Vec<u64> = tables.iter().map(|table| table.len()).collect();
    assert_eq!(lengths, [50, 0, 0, 0, 3]);
    let none = together(&pool, &tables, &[(4, 0)], &batches, None);
    assert_eq!(none.inverses[0], [-1; 50]);
    assert!(Table::prepare_many(&pool, Vec::new(), None).is_empty());
    let mut wrong = [0; 4];
    let wrong = ids_of(&tables[0], &[1, 2], &mut wrong);
    assert!(Table::prepare_many(&pool, vec![wrong], None)[0]
        .offsets()
        .is_empty());
}

#[test]
fn threads_that_prepare_claim_remove_and_clear_the_same_tables_all_come_to_their_end() {
    let tables: Vec<Arc<Table>> = (0..4).map(|at| table(at, 2000)).collect();
    let pool = Pool::new(3).unwrap();
    let (over, claims) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let prepare = |seed: u64, order: [usize; 4]| {
            let (tables, pool, claims) = (&tables, &pool, &claims);
            move || {
                let mut random = Random(seed);
                for _ in 0..150 {
                    let mut batch = || -> Vec<i64> {
                        let n = random.below(3000);
                        (0..n).map(|_| random.below(900) as i64).collect()
                    };
                    let batches = [batch(), batch(), batch()];
                    let members = [
                        (order[0], 0),
                        (order[1], 1),
                        (order[2], 0),
                        (order[3], 2),
                        (order[0], 1),
                    ];
                    let ahead = together(pool, tables, &members, &batches, None);
                    let claimed = claim(tables, &members, &batches, None, &ahead);
                    claims.fetch_add(
                        claimed.iter().filter(|one| **one).count(),
                        Ordering::Relaxed,
                    );
                }
            }
        };
        let workers = [
            scope.spawn(prepare(1, [0, 1, 2, 3])),
            scope.spawn(prepare(2, [3, 2, 1, 0])),
        ];
        let others = [
            scope.spawn(|| {
                let mut random = Random(3);
                while !over.load(Ordering::Relaxed) {
                    let table = &tables[random.below(4) as usize];
                    let from = random.below(900) as i64;
                    let gone: Vec<i64> = (from..from + 20).collect();
                    table.remove(Ids::I64(&gone)).unwrap();
                    if random.below(50) == 0 {
                        table.clear();
                    }
                }
            }),
            scope.spawn(|| {
                let (mut random, pool) = (Random(4), Pool::new(2).unwrap());
                while !over.load(Ordering::Relaxed) {
                    let ids: Vec<i64> = (0..500).map(|_| random.below(900) as i64).collect();
                    let mut inverses = vec![vec![0; ids.len()]; 4];
                    let group = tables.iter().rev().zip(&mut inverses);
                    let group = group.map(|(table, inverse)| ids_of(table, &ids, inverse));
                    drop(Table::lease_many(&pool, group.collect(), None).unwrap());
                }
            }),
        ];
        workers.into_iter().for_each(|one| one.join().unwrap());
        over.store(true, Ordering::Relaxed);
        others.into_iter().for_each(|one| one.join().unwrap());
    });
    assert!(claims.into_inner() > 100);
    for (seed, table) in tables.iter().enumerate() {
        for (key, row) in content(table) {
            let mut first = [0.0; DIM];
            let uniform = UNIFORM;
            uniform.fill(seed as u64, key, &mut first);
            assert_eq!(row, first.map(f32::to_bits), "key {key}");
        }
        // No row is neither in use nor free: all keys that the table has room for fit.
        table.clear();
        let all: Vec<i64> = (0..2000).collect();
        let lease = table.lease(&pool, Ids::I64(&all), None, &mut vec![0; 2000]);
        assert_eq!(lease.unwrap().offsets().len(), 2000);
        assert_eq!(table.memory().rows_bytes, 2000 * DIM as u64 * 4);
    }
}
