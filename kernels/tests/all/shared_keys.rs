//! Lookups that share their key work give what they give alone, whoever else shares it.

use mx_rec_kernels::{Ids, Initializer, Kind, Pool, SharedKeys, Stats, Table, TableConfig};
use std::sync::Arc;

/// Beyond so many ids nothing is shared.
const MOST: usize = 1 << 18;

fn table(name: &str, dim: usize, capacity: u64) -> Arc<Table> {
    let config = TableConfig {
        name: name.into(),
        dim,
        capacity,
        seed: 11,
        initializer: Initializer::RandomUniform {
            min: -1.0,
            max: 1.0,
        },
        init_param: 1.0,
        frozen_keys: vec![4],
        admission_sketch_bytes: 0,
        row_storage: mx_rec_kernels::RowStorage::default(),
    };
    Arc::new(Table::new(config).unwrap())
}

/// What a lookup gave: the rows behind the offsets, the inverse, and the rows of all ids.
type Given = (Vec<i64>, Vec<i32>, Vec<u32>);

/// A lookup, shared by `shared.1` lookups or by none.
fn look_up(
    table: &Arc<Table>,
    pool: &Pool,
    ids: Ids<'_>,
    limit: Option<usize>,
    shared: Option<(&SharedKeys, usize)>,
) -> mx_rec_kernels::Result<Given> {
    let mut inverse = vec![7; ids.len()];
    let lease = match shared {
        Some(shared) => table.lease_shared(pool, ids, limit, &mut inverse, shared)?,
        None => table.lease(pool, ids, limit, &mut inverse)?,
    };
    let mut rows = vec![0.0; ids.len() * table.dim()];
    table.embed(pool, lease.offsets(), &inverse, &mut rows)?;
    let numbers = lease.offsets().iter().map(|&one| one & 0x7fff_ffff);
    let bits = rows.iter().map(|value: &f32| value.to_bits()).collect();
    Ok((numbers.collect(), inverse, bits))
}

fn ids(n: usize, step: i64, most: i64) -> Vec<i64> {
    (0..n as i64)
        .map(|at| (at * at * 7 + step * 31) % most - 1)
        .collect()
}

fn counted(table: &Table) -> (u64, u64) {
    let Stats { hits, new, .. } = table.stats();
    (hits, new)
}

#[test]
fn shared_lookups_give_the_bits_of_lookups_alone() {
    let pool = Pool::new(2).unwrap();
    let shared = SharedKeys::default();
    let names = [("a", 3), ("b", 1), ("c", 16)];
    let [tables, peers] = [(); 2].map(|()| names.map(|(name, dim)| table(name, dim, 100_000)));
    let mut taken = 0;
    for (step, n) in [5, 0, 4096, 4097, 30_000, 1, 30_000, 70_000]
        .into_iter()
        .enumerate()
    {
        let batch = ids(n, step as i64, 9001 + 100 * step as i64);
        let narrow: Vec<i32> = batch.iter().map(|&id| id as i32).collect();
        let batch = match step % 2 {
            0 => Ids::I64(&batch),
            _ => Ids::I32(&narrow),
        };
        for (table, peer) in tables.iter().zip(&peers) {
            let own = look_up(table, &pool, batch, None, Some((&shared, 3))).unwrap();
            let alone = look_up(peer, &pool, batch, None, None).unwrap();
            assert_eq!(own, alone, "step {step} in {}", table.config().name);
            assert_eq!(counted(table), counted(peer));
        }
        taken += if n == 0 { 0 } else { 2 };
        assert_eq!(shared.taken(), taken, "step {step}");
        // Between two steps keys go from one of the tables.
        let gone = ids(50, step as i64, 60);
        for side in [&tables, &peers] {
            side[step % 3].remove(Ids::I64(&gone)).unwrap();
        }
        if step == 5 {
            tables[1].clear();
            peers[1].clear();
        }
    }
    for (table, peer) in tables.iter().zip(&peers) {
        let [own, alone] = [table, peer].map(|one| one.export().unwrap());
        assert_eq!((own.keys, own.embedding), (alone.keys, alone.embedding));
    }
}

#[test]
fn a_batch_is_taken_only_by_equal_ids() {
    let pool = Pool::new(1).unwrap();
    let shared = SharedKeys::default();
    let (first, second, peer) = (table("a", 2, 99), table("b", 2, 99), table("b", 2, 99));
    let ask = |table: &Arc<Table>, ids: Ids<'_>| {
        look_up(table, &pool, ids, None, Some((&shared, 2))).unwrap()
    };
    ask(&first, Ids::I64(&[1, 2, 2]));
    let others = [
        Ids::I64(&[1, 2, 3]),
        Ids::I64(&[1, 2]),
        Ids::I32(&[1, 2, 2]),
    ];
    for other in others {
        let alone = look_up(&peer, &pool, other, None, None).unwrap();
        assert_eq!(ask(&second, other), alone);
    }
    assert_eq!(shared.taken(), 0);
    ask(&first, Ids::I32(&[1, 2, 2]));
    assert_eq!(shared.taken(), 1);
    // Everybody has used it: it is gone.
    ask(&first, Ids::I32(&[1, 2, 2]));
    assert_eq!(shared.taken(), 1);
}

#[test]
fn the_memory_of_ids_may_hold_others_in_the_next_step() {
    let pool = Pool::new(1).unwrap();
    let shared = SharedKeys::default();
    let (first, second) = (table("a", 2, 99), table("b", 2, 99));
    let mut batch = vec![1, 2, 3];
    let share = Some((&shared, 2));
    look_up(&first, &pool, Ids::I64(&batch), None, share).unwrap();
    batch.copy_from_slice(&[5, 5, 6]);
    let own = look_up(&second, &pool, Ids::I64(&batch), None, share).unwrap();
    assert_eq!((own.1, second.len()), (vec![0, 0, 1], 2));
}

#[test]
fn the_error_of_one_table_does_no_harm_to_the_others() {
    let pool = Pool::new(2).unwrap();
    for n in [40, 20_000] {
        for small_first in [true, false] {
            let shared = SharedKeys::default();
            let (small, large) = (table("small", 2, 9), table("large", 2, 99_999));
            let batch = ids(n, 0, 10_007);
            let share = Some((&shared, 2));
            let mut order = [&small, &large];
            if !small_first {
                order.reverse();
            }
            for table in order {
                let given = look_up(table, &pool, Ids::I64(&batch), None, share);
                match given {
                    Ok((_, inverse, _)) => {
                        assert!(table.config().name == "large" && inverse[0] == -1)
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::ResourceExhausted);
                        assert!(error.to_string().contains("small"), "{error}");
                    }
                }
            }
            assert_eq!((small.len(), shared.taken()), (0, 1));
            assert!(large.len() > 9);
        }
    }
}

#[test]
fn the_limit_is_that_of_each_lookup() {
    let pool = Pool::new(1).unwrap();
    let shared = SharedKeys::default();
    let (first, second) = (table("a", 2, 99), table("b", 2, 99));
    let batch = Ids::I64(&[1, 2, 3, -1]);
    let share = Some((&shared, 2));
    let error = look_up(&first, &pool, batch, Some(2), share).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument);
    look_up(&second, &pool, batch, Some(3), share).unwrap();
    assert_eq!((first.len(), second.len(), shared.taken()), (0, 3, 1));
}

#[test]
fn huge_batches_are_not_kept() {
    let pool = Pool::new(2).unwrap();
    let shared = SharedKeys::default();
    let (first, second) = (table("a", 1, 9999), table("b", 1, 9999));
    for (n, taken) in [(MOST + 1, 0), (MOST, 1)] {
        let batch = ids(n, 0, 997);
        for table in [&first, &second] {
            look_up(table, &pool, Ids::I64(&batch), None, Some((&shared, 2))).unwrap();
        }
        assert_eq!(shared.taken(), taken);
    }
}

#[test]
fn a_lookup_that_nobody_shares_soon_leaves_little() {
    let pool = Pool::new(1).unwrap();
    let shared = SharedKeys::default();
    let (first, second) = (table("a", 1, 9999), table("b", 1, 9999));
    let share = Some((&shared, 2));
    // Many steps in which the second lookup is not asked for; then it is.
    for step in 0..200 {
        let batch = [step, step + 1];
        look_up(&first, &pool, Ids::I64(&batch), None, share).unwrap();
    }
    for step in 200..400 {
        let batch = [step, step + 1];
        for table in [&first, &second] {
            look_up(table, &pool, Ids::I64(&batch), None, share).unwrap();
        }
    }
    assert!(shared.taken() > 100, "{shared:?}");
}

#[test]
fn two_sessions_that_share_a_place_disturb_nobody() {
    let shared = SharedKeys::default();
    std::thread::scope(|scope| {
        for session in 0..2 {
            let shared = &shared;
            scope.spawn(move || {
                let pool = Pool::new(2).unwrap();
                let tables = ["a", "b"].map(|name| table(name, 2, 99_999));
                let peers = ["a", "b"].map(|name| table(name, 2, 99_999));
                for step in 0..60 {
                    let n = [3000, 20_000][step % 2];
                    let batch = ids(n, 5 * step as i64 + session, 9001 + session);
                    // The lookups of a step run at once, as in a graph.
                    let own = std::thread::scope(|scope| {
                        let [first, second] = tables.each_ref().map(|table| {
                            let (pool, batch) = (&pool, Ids::I64(&batch));
                            let ask = move || {
                                look_up(table, pool, batch, None, Some((shared, 4))).unwrap()
                            };
                            scope.spawn(ask)
                        });
                        [first.join().unwrap(), second.join().unwrap()]
                    });
                    for (own, peer) in own.iter().zip(&peers) {
                        let alone = look_up(peer, &pool, Ids::I64(&batch), None, None).unwrap();
                        assert_eq!(*own, alone);
                    }
                }
            });
        }
    });
}
