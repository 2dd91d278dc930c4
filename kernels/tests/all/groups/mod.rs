//! Verbs on groups of tables: the same bits as the verbs on one table, one after the other, on any
//! number of threads; and a group that fails changes nothing.

mod support;

use crate::singles::{Singles as _, Target};
use crate::support::{applied, cases, expect_error, gradients, ids_of, keys_of, leased, rows_of};
use mx_rec_kernels::{
    Absent, Bags, Columns, Error, Ids, KeysOf, Kind, Lease, LookupGradients, Pool, RowGradients,
    RowsOf, Sgd, Table, OPTIMIZERS,
};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{all_seen, bits, floats, leases, optimizer, table, try_leases, Members};

/// One step of all members by verbs on one table: what they read, and how many rows changed.
fn step_alone(
    tables: &[Arc<Table>],
    pool: &Pool,
    members: &Members,
    by: usize,
    step: usize,
) -> (Vec<Vec<i32>>, Vec<Vec<f32>>, u64) {
    let optimizer = optimizer(by, step);
    let mut inverses = Vec::new();
    let mut found = Vec::new();
    for (at, ids) in members {
        let mut inverse = vec![9; ids.len()];
        found.push(
            tables[*at]
                .lease(pool, Ids::I64(ids), None, &mut inverse)
                .unwrap(),
        );
        inverses.push(inverse);
    }
    let rows = members
        .iter()
        .zip(&found)
        .zip(&inverses)
        .map(|(((at, ids), lease), inverse)| {
            let mut out = vec![9.0; ids.len() * tables[*at].dim()];
            tables[*at]
                .embed(pool, lease.offsets(), inverse, &mut out)
                .unwrap();
            out
        });
    let rows: Vec<Vec<f32>> = rows.collect();
    let mut updated = 0;
    for (at, table) in tables.iter().enumerate() {
        let own: Vec<usize> = (0..members.len())
            .filter(|&one| members[one].0 == at)
            .collect();
        if own.is_empty() {
            continue;
        }
        let grads: Vec<Vec<f32>> = own
            .iter()
            .map(|&one| floats(members[one].1.len() * table.dim(), one + step))
            .collect();
        let lookups: Vec<_> = own
            .iter()
            .zip(&grads)
            .map(|(&one, grads)| {
                gradients(
                    found[one].offsets(),
                    &inverses[one],
                    Columns::all(grads, table.dim()).unwrap(),
                )
            })
            .collect();
        updated += table
            .apply_lookups(pool, &lookups, optimizer.as_ref())
            .unwrap();
    }
    (inverses, rows, updated)
}

/// The same by verbs on groups; the gradients are columns of wider matrices where `wide`.
fn step_together(
    tables: &[Arc<Table>],
    pool: &Pool,
    members: &Members,
    by: usize,
    step: usize,
    wide: bool,
) -> (Vec<Vec<i32>>, Vec<Vec<f32>>, u64) {
    let optimizer = optimizer(by, step);
    let (found, inverses) = leases(tables, pool, members);
    let group: Vec<RowsOf<'_>> = members
        .iter()
        .zip(&found)
        .zip(&inverses)
        .map(|(((at, _), lease), inverse)| rows_of(&tables[*at], lease.offsets(), inverse))
        .collect();
    let mut rows: Vec<Vec<f32>> = group
        .iter()
        .map(|one| vec![9.0; one.inverse.len() * one.table.dim()])
        .collect();
    Table::embed_many(
        pool,
        &group,
        rows.iter_mut().map(|out| &mut out[..]).collect(),
        Vec::new(),
    )
    .unwrap();
    let grads: Vec<(Vec<f32>, usize, usize)> = group
        .iter()
        .enumerate()
        .map(|(one, of)| {
            let (n, dim) = (of.inverse.len(), of.table.dim());
            let own = floats(n * dim, one + step);
            let (before, behind) = if wide { (one % 3, 1 + one % 2) } else { (0, 0) };
            let width = before + dim + behind;
            let mut all = vec![f32::NAN; n * width];
            for (all, own) in all.chunks_exact_mut(width).zip(own.chunks_exact(dim)) {
                all[before..before + dim].copy_from_slice(own);
            }
            (all, width, before)
        })
        .collect();
    let updates: Vec<(&Table, LookupGradients<'_>)> = group
        .iter()
        .zip(&grads)
        .map(|(one, (grads, width, first))| {
            let grads = Columns::of(grads, *width, *first, one.table.dim()).unwrap();
            (one.table, gradients(one.offsets, one.inverse, grads))
        })
        .collect();
    let updated = Table::apply_lookups_many(pool, &updates, optimizer.as_ref()).unwrap();
    (inverses, rows, updated)
}

fn ids() -> impl Strategy<Value = Vec<i64>> {
    let few = prop::collection::vec(-1..40_i64, 0..30);
    let many = (0..5000_usize, 1..4000_i64)
        .prop_map(|(n, keys)| (0..n as i64).map(|at| at * at % (keys + 1) - 1).collect());
    prop_oneof![3 => few, 1 => many]
}

fn group() -> impl Strategy<Value = (Vec<usize>, Vec<Members>)> {
    prop::collection::vec(1..70_usize, 2..8).prop_flat_map(|dims| {
        let tables = dims.len();
        let members = prop::collection::vec((0..tables, ids()), 1..9);
        (Just(dims), prop::collection::vec(members, 1..4))
    })
}

fn made(dims: &[usize]) -> Vec<Arc<Table>> {
    dims.iter()
        .enumerate()
        .map(|(at, &dim)| table(at, dim, 1 << 20))
        .collect()
}

proptest! {
    #![proptest_config(cases(48))]
    #[test]
    fn a_group_gives_the_bits_of_its_members_one_after_the_other(
        (dims, steps) in group(), by in 0..OPTIMIZERS.len(), wide in any::<bool>(),
    ) {
        let alone = made(&dims);
        let one = Pool::new(1).unwrap();
        let together = [1, 2, 3].map(|threads| (Pool::new(threads).unwrap(), made(&dims)));
        for (step, members) in steps.iter().enumerate() {
            let expected = step_alone(&alone, &one, members, by, step);
            let seen = all_seen(&alone);
            for (pool, tables) in &together {
                let found = step_together(tables, pool, members, by, step, wide);
                prop_assert_eq!(&found.0, &expected.0);
                for (found, expected) in found.1.iter().zip(&expected.1) {
                    prop_assert_eq!(bits(found), bits(expected));
                }
                prop_assert_eq!(found.2, expected.2);
                prop_assert_eq!(&all_seen(tables), &seen);
            }
        }
        // Reading by key, as evaluation does.
        let members = &steps[0];
        for (pool, tables) in &together {
            let group: Vec<KeysOf<'_>> = members.iter().map(|(at, ids)| keys_of(&tables[*at], ids, Absent::Zeros)).collect();
            let mut outs: Vec<Vec<f32>> =
                group.iter().map(|one| vec![9.0; one.ids.len() * one.table.dim()]).collect();
            let places = outs.iter_mut().map(|out| &mut out[..]).collect();
            Table::find_many(pool, &group, places).unwrap();
            for ((at, ids), out) in members.iter().zip(&outs) {
                let mut expected = vec![7.0; out.len()];
                alone[*at].find(&one, Ids::I64(ids), Absent::Zeros, &mut expected).unwrap();
                prop_assert_eq!(out, &expected);
            }
        }
    }

    #[test]
    fn rows_side_by_side_are_those_of_each_lookup(
        dims in prop::collection::vec(1..40_usize, 1..7), n in 0..700_usize, threads in 1..4_usize,
    ) {
        let tables = made(&dims);
        let pool = Pool::new(threads).unwrap();
        let members: Members = (0..dims.len() + 1)
            .map(|one| {
                let ids = (0..n as i64).map(|at| at * 31 % (50 + one as i64) - 1);
                (one % dims.len(), ids.collect())
            })
            .collect();
        let (found, inverses) = leases(&tables, &pool, &members);
        let group: Vec<RowsOf<'_>> = members.iter().zip(&found).zip(&inverses)
            .map(|(((at, _), lease), inverse)| rows_of(&tables[*at], lease.offsets(), inverse))
            .collect();
        let width: usize = group.iter().map(|one| one.table.dim()).sum();
        let mut out = vec![9.0; n * width];
        Table::embed_side_by_side(&pool, &group, &mut out).unwrap();
        let mut first = 0;
        for one in &group {
            let dim = one.table.dim();
            let mut expected = vec![7.0; n * dim];
            one.table.embed(&pool, one.offsets, one.inverse, &mut expected).unwrap();
            for (out, expected) in out.chunks_exact(width).zip(expected.chunks_exact(dim)) {
                prop_assert_eq!(&out[first..first + dim], expected);
            }
            first += dim;
        }
    }
}

#[test]
fn gradients_of_rows_are_applied_as_those_of_one_batch() {
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        let (alone, together) = (made(&[3, 20]), made(&[3, 20]));
        let ids: Vec<i64> = (0..5000).map(|at| at % 701).collect();
        let members: Members = vec![(0, ids.clone()), (1, vec![5, 6]), (0, vec![1, 1, 700])];
        for step in 0..3 {
            let grads: Vec<Vec<f32>> = (0..3)
                .map(|one| floats(5000 * [3, 20, 3][one], one + step))
                .collect();
            let optimizer = optimizer(4, step);
            let rows = |tables: &[Arc<Table>]| leases(tables, &pool, &members).0;
            let (first, second) = (rows(&alone), rows(&together));
            let joined = [first[0].offsets(), first[2].offsets()].concat();
            let len = |one: usize| first[one].offsets().len() * [3, 20, 3][one];
            let sums = [&grads[0][..len(0)], &grads[2][..len(2)]].concat();
            let mut updated = applied(
                &alone[0],
                &pool,
                Target::Offsets(&joined),
                &sums,
                &*optimizer,
            );
            updated += alone[1]
                .apply(
                    &pool,
                    Target::Offsets(first[1].offsets()),
                    &grads[1][..len(1)],
                    &*optimizer,
                )
                .unwrap();
            let group: Vec<(&Table, RowGradients<'_>)> = (0..3)
                .map(|one| {
                    let offsets = second[one].offsets();
                    (
                        &*together[members[one].0],
                        RowGradients {
                            offsets,
                            grads: &grads[one][..len(one)],
                        },
                    )
                })
                .collect();
            assert_eq!(
                Table::apply_many(&pool, &group, &*optimizer).unwrap(),
                updated
            );
            assert_eq!(all_seen(&alone), all_seen(&together));
        }
    }
}

/// A group with a member that fails in the middle.
fn failing(kind: Kind, name: &str, run: impl Fn(&[Arc<Table>], &Pool, &[Lease]) -> Error) {
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        let tables = vec![table(0, 4, 1000), table(1, 2, 6), table(2, 8, 1000)];
        let members = [0, 1, 2].map(|at| (at, vec![1, 2])).into();
        let (found, _) = leases(&tables, &pool, &members);
        let before = all_seen(&tables);
        let error = run(&tables, &pool, &found);
        expect_error(&error, kind, &[name]);
        assert_eq!(all_seen(&tables), before);
    }
}

#[test]
fn a_batch_over_the_budget_of_one_table_gives_no_table_a_row() {
    let many: Vec<i64> = (0..3000).collect();
    failing(Kind::ResourceExhausted, "table_1", |tables, pool, _| {
        let members = vec![(2, vec![7, 8]), (1, (0..7).collect()), (0, vec![1, 9])];
        try_leases(tables, pool, &members, None).unwrap_err()
    });
    // Neither batch alone is too much for the table.
    failing(Kind::ResourceExhausted, "table_1", |tables, pool, _| {
        let members = vec![(1, vec![3, 4, 5]), (0, vec![9]), (1, vec![5, 6, 7])];
        try_leases(tables, pool, &members, None).unwrap_err()
    });
    // Of two that fail the first one is named.
    failing(Kind::ResourceExhausted, "table_0", |tables, pool, _| {
        let members = vec![(2, vec![4]), (0, many.clone()), (1, many.clone())];
        try_leases(tables, pool, &members, None).unwrap_err()
    });
    failing(Kind::InvalidArgument, "table_2", |tables, pool, _| {
        let members = vec![(0, vec![7]), (2, vec![7, 8, 9, 10]), (1, vec![1, 2])];
        try_leases(tables, pool, &members, Some(3)).unwrap_err()
    });
}

#[test]
fn keys_that_are_new_in_two_batches_of_a_table_get_one_row() {
    let pool = Pool::new(2).unwrap();
    let tables = vec![table(0, 4, 8), table(1, 4, 8)];
    let members = vec![(0, vec![5, 6, 7]), (1, vec![5]), (0, vec![7, -1, 8, 5])];
    let (found, inverses) = leases(&tables, &pool, &members);
    assert_eq!(inverses[2], [0, -1, 1, 2]);
    assert_eq!(found[2].offsets()[0], found[0].offsets()[2]);
    assert_eq!(found[2].offsets()[2], found[0].offsets()[0]);
    assert_eq!((tables[0].len(), tables[1].len()), (4, 1));
    let stats = tables[0].stats();
    assert_eq!((stats.new, stats.hits), (4, 2));
}

#[test]
fn an_update_with_a_bad_member_changes_no_row_of_any_table() {
    let good = |tables: &[Arc<Table>], pool: &Pool| {
        leases(
            tables,
            pool,
            &vec![(0, vec![1, 2]), (1, vec![1, 2]), (2, vec![1, 2])],
        )
        .0
    };
    let sgd = Sgd::new(1.0).unwrap();
    let grads = vec![1.0; 100];
    let apply = |tables: &[Arc<Table>], pool: &Pool, offsets: [&[i64]; 3], inverse: [&[i32]; 3]| {
        let group: Vec<(&Table, LookupGradients<'_>)> = (0..3)
            .map(|at| {
                let n = inverse[at].len();
                let dim = tables[at].dim();
                let grads = Columns::all(&grads[..n * dim], dim).unwrap();
                (&*tables[at], gradients(offsets[at], inverse[at], grads))
            })
            .collect();
        Table::apply_lookups_many(pool, &group, &sgd).unwrap_err()
    };
    failing(Kind::InvalidArgument, "table_1", |tables, pool, found| {
        let bad = [found[1].offsets()[0], 3];
        let offsets = [found[0].offsets(), &bad, found[2].offsets()];
        apply(tables, pool, offsets, [&[0, 1, 0]; 3])
    });
    failing(Kind::InvalidArgument, "table_1", |tables, pool, found| {
        let offsets = [0, 1, 2].map(|at| found[at].offsets());
        apply(tables, pool, offsets, [&[0, 1], &[0, 2], &[0, 1]])
    });
    // The table in the middle was replaced since the lookup.
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        let tables = vec![table(0, 4, 1000), table(1, 2, 6), table(2, 8, 1000)];
        let found = good(&tables, &pool);
        let offsets = [0, 1, 2].map(|at| found[at].offsets());
        tables[1].clear();
        let before = all_seen(&tables);
        let error = apply(&tables, &pool, offsets, [&[0, 1]; 3]);
        expect_error(&error, Kind::Aborted, &["table_1"]);
        assert_eq!(all_seen(&tables), before);
    }
}

#[test]
fn the_first_lookup_of_a_table_that_is_wrong_is_told_whether_it_is_pooled_or_not() {
    let (sgd, grads) = (Sgd::new(1.0).unwrap(), [1.0; 4]);
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        let tables = made(&[2, 2]);
        let (found, inverses) = leases(&tables, &pool, &vec![(0, vec![1, 2]), (1, vec![1, 2])]);
        let before = all_seen(&tables);
        let of = |at: usize, inverse, ends| LookupGradients {
            bags: Some(Bags {
                ends,
                weights: None,
                divisors: None,
                max_norm: None,
            })
            .filter(|bags| !bags.ends.is_empty()),
            ..gradients(
                found[at].offsets(),
                inverse,
                Columns::all(&grads, 2).unwrap(),
            )
        };
        let right = (&*tables[1], of(1, &inverses[1], &[]));
        for ends in [[&[1, 2][..], &[]], [&[], &[1, 2]], [&[], &[]]] {
            let wrong = (&*tables[0], of(0, &[0, 7], ends[0]));
            let later = (&*tables[0], of(0, &[9, 0], ends[1]));
            let error = Table::apply_lookups_many(&pool, &[wrong, right, later], &sgd);
            expect_error(
                &error.unwrap_err(),
                Kind::InvalidArgument,
                &["table_0", "entry=7"],
            );
            assert_eq!(all_seen(&tables), before);
        }
    }
}

#[test]
fn gradients_of_removed_keys_are_dropped_and_counted_in_their_table_alone() {
    let pool = Pool::new(2).unwrap();
    let tables = made(&[2, 3]);
    let members = vec![(0, vec![1, 2]), (1, vec![1, 2])];
    let (found, inverses) = leases(&tables, &pool, &members);
    tables[1].remove(Ids::I64(&[2])).unwrap();
    let grads = [vec![1.0; 4], vec![1.0; 6]];
    let group: Vec<(&Table, LookupGradients<'_>)> = (0..2)
        .map(|at| {
            let grads = Columns::all(&grads[at], [2, 3][at]).unwrap();
            (
                &*tables[at],
                gradients(found[at].offsets(), &inverses[at][..], grads),
            )
        })
        .collect();
    let sgd = Sgd::new(1.0).unwrap();
    assert_eq!(Table::apply_lookups_many(&pool, &group, &sgd).unwrap(), 3);
    assert_eq!((tables[0].stats().stale, tables[1].stats().stale), (0, 1));
}

/// The lookup that fails is that of the first ids, whoever fills its columns.
#[test]
fn the_first_wrong_place_side_by_side_gives_the_error_on_any_number_of_threads() {
    const N: usize = 4096;
    let tables = made(&[32; 4]);
    for (wrong, first) in [
        ([3000, 2000, 1000, N - 1], 2),
        ([1, 500, 3, 7], 0),
        ([N - 1, N - 1, N - 1, 5], 3),
    ] {
        let inverses = wrong.map(|at| {
            let mut inverse = vec![-1; N];
            inverse[at] = 7;
            inverse
        });
        let group: Vec<RowsOf<'_>> = (0..4)
            .map(|at| rows_of(&tables[at], &[], &inverses[at]))
            .collect();
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            let mut out = vec![0.0; N * 4 * 32];
            let error = Table::embed_side_by_side(&pool, &group, &mut out).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains(&format!("table_{first}")),
                "{threads}: {error}"
            );
        }
    }
}

#[test]
fn empty_groups_and_wrong_lengths() {
    let pool = Pool::new(2).unwrap();
    let tables = made(&[4, 5]);
    let sgd = Sgd::new(1.0).unwrap();
    assert!(Table::lease_many(&pool, Vec::new(), None)
        .unwrap()
        .is_empty());
    assert_eq!(Table::apply_many(&pool, &[], &sgd).unwrap(), 0);
    assert_eq!(Table::apply_lookups_many(&pool, &[], &sgd).unwrap(), 0);
    Table::embed_many(&pool, &[], Vec::new(), Vec::new()).unwrap();
    Table::embed_side_by_side(&pool, &[], &mut []).unwrap();
    Table::find_many(&pool, &[], Vec::new()).unwrap();
    let of = |at: usize, inverse| rows_of(&tables[at], &[], inverse);
    let two = [of(0, &[-1, -1]), of(1, &[-1])];
    let error = Table::embed_side_by_side(&pool, &two, &mut [0.0; 18]).unwrap_err();
    assert!(error.to_string().contains("table_1"), "{error}");
    let two = [of(0, &[-1, -1]), of(1, &[-1, -1])];
    assert!(Table::embed_side_by_side(&pool, &two, &mut [0.0; 17]).is_err());
    let mut out = [9.0; 18];
    Table::embed_side_by_side(&pool, &two, &mut out).unwrap();
    assert_eq!(out, [0.0; 18]);
    assert!(Table::embed_many(&pool, &two, vec![&mut out[..8]], Vec::new()).is_err());
    let inverse = &mut [0; 1];
    let wrong = ids_of(&tables[0], &[1, 2], inverse);
    assert!(Table::lease_many(&pool, vec![wrong], None).is_err());
    let grads = RowGradients {
        offsets: &[-1],
        grads: &[1.0; 5],
    };
    let error = Table::apply_many(&pool, &[(&tables[0], grads)], &sgd).unwrap_err();
    assert!(error.to_string().contains("table_0"), "{error}");
}

/// Groups in different orders, updates, removals and restores of the same tables at once: nobody
/// waits for ever, and no update is lost.
#[test]
fn groups_in_any_order_at_once_do_not_wait_for_each_other() {
    let tables = made(&[2, 2, 2, 2]);
    let pool = Pool::new(2).unwrap();
    let steps = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 1]] {
            let (tables, pool, steps, over) = (&tables, &pool, &steps, &over);
            scope.spawn(move || {
                let sgd = Sgd::new(1.0).unwrap();
                let mut step = 0;
                while Instant::now() < until {
                    step += 1;
                    let members: Members = order
                        .iter()
                        .map(|&at| (at, vec![1, 2, 1000 + step % 50]))
                        .collect();
                    let (found, inverses) = leases(tables, pool, &members);
                    let grads = [1.0; 6];
                    let group: Vec<(&Table, LookupGradients<'_>)> = order
                        .iter()
                        .zip(&found)
                        .zip(&inverses)
                        .map(|((&at, lease), inverse)| {
                            let grads = Columns::all(&grads, 2).unwrap();
                            (&*tables[at], gradients(lease.offsets(), inverse, grads))
                        })
                        .collect();
                    Table::apply_lookups_many(pool, &group, &sgd).unwrap();
                    steps.fetch_add(1, SeqCst);
                }
                over.store(true, SeqCst);
            });
        }
        scope.spawn(|| {
            while !over.load(SeqCst) {
                for table in &tables {
                    table
                        .remove(Ids::I64(&(1000..1050).collect::<Vec<_>>()))
                        .unwrap();
                }
            }
        });
        scope.spawn(|| {
            let pool = Pool::new(1).unwrap();
            let mut rows = [[0.0; 4]; 2];
            while !over.load(SeqCst) {
                let group: Vec<KeysOf<'_>> = [3, 0]
                    .map(|at| keys_of(&tables[at], &[1, 2], Absent::Zeros))
                    .into();
                let outs = rows.iter_mut().map(|out| &mut out[..]).collect();
                Table::find_many(&pool, &group, outs).unwrap();
            }
        });
    });
    assert!(steps.load(SeqCst) > 10);
    let mut first = [[0.0; 2]; 4];
    let mut rows = [[0.0; 2]; 4];
    let fresh = made(&[2, 2, 2, 2]);
    for at in 0..4 {
        leased(&fresh[at], &pool, &[1]);
        for (table, row) in [(&fresh[at], &mut first[at]), (&tables[at], &mut rows[at])] {
            table
                .find(&pool, Ids::I64(&[1]), Absent::Zeros, row)
                .unwrap();
        }
    }
    // The updates of a table that comes once in each group: each took 1 from the row.
    let taken = |at: usize| (first[at][0] - rows[at][0]).round() as usize;
    assert_eq!(taken(0), steps.load(SeqCst));
    assert_eq!(taken(3), steps.load(SeqCst));
}

#[test]
fn ids_that_several_tables_share_give_each_table_what_it_would_have_alone() {
    let ids: Vec<i64> = (0..6000).map(|at| at * at % 1013 - 1).collect();
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        let (alone, together) = (made(&[3, 1, 8]), made(&[3, 1, 8]));
        for tables in [&alone, &together] {
            // One table knows some of the keys, another one all of them.
            for (at, keys) in [(0, 300), (2, 1012)] {
                let known: Vec<i64> = (0..keys).rev().collect();
                leased(&tables[at], &pool, &known);
            }
        }
        for ids in [&ids[..], &ids[..700], &[], &[-1, -1]] {
            let mut inverses = vec![vec![9; ids.len()]; 4];
            // Two have the same memory, one has a copy of it, and one differs in the last id.
            let mut other = ids.to_vec();
            other.last_mut().into_iter().for_each(|id| *id = 5);
            let copy = ids.to_vec();
            let own = [ids, &copy, &other, ids];
            let group = [0, 1, 2, 0].iter().zip(own).zip(&mut inverses);
            let group = group.map(|((&at, ids), inverse)| ids_of(&together[at], ids, inverse));
            let found = Table::lease_many(&pool, group.collect(), None).unwrap();
            for (one, at) in [0, 1, 2, 0].into_iter().enumerate() {
                let (lease, inverse) = leased(&alone[at], &pool, own[one]);
                assert_eq!(inverses[one], inverse);
                let rows = |table: &Table, lease: &Lease| {
                    let mut rows = vec![0.0; lease.offsets().len() * table.dim()];
                    table.lookup(&pool, lease.offsets(), &mut rows).unwrap();
                    rows
                };
                assert_eq!(rows(&together[at], &found[one]), rows(&alone[at], &lease));
            }
            assert_eq!(all_seen(&together), all_seen(&alone));
        }
    }
    let mut inverses = [[9; 3]; 2];
    let tables = [table(0, 4, 100), table(1, 4, 2)];
    let copy = ids[1..4].to_vec();
    let group = tables.iter().zip([&ids[1..4], &copy]).zip(&mut inverses);
    let group = group.map(|((table, ids), inverse)| ids_of(table, ids, inverse));
    let error = Table::lease_many(&Pool::new(1).unwrap(), group.collect(), None).unwrap_err();
    assert!(error.to_string().contains("table_1"), "{error}");
    assert_eq!((tables[0].len(), tables[1].len()), (0, 0));
}

#[test]
fn gradients_of_sums_give_the_bits_of_gradients_that_are_repeated_for_each_id() {
    let adagrad = mx_rec_kernels::Adagrad::new(0.1, 0.5).unwrap();
    // The second case has more sums than are made beside each other.
    for (bags, length, keys, dim) in [(7_usize, 5_usize, 11_i64, 3_usize), (900, 12, 9000, 32)] {
        for threads in [1, 3] {
            let pool = Pool::new(threads).unwrap();
            let tables = [made(&[dim, 2]), made(&[dim, 2])];
            for (tables, is_summed) in tables.iter().zip([false, true]) {
                let ids: Vec<i64> = (0..(bags * length) as i64)
                    .map(|at| at * at % (keys + 1) - 1)
                    .collect();
                let members = vec![(0, ids.clone()), (1, vec![3, 4, 3]), (0, ids)];
                let (found, inverses) = leases(tables, &pool, &members);
                let of_bags = floats(bags * dim, 5);
                let rows = of_bags.chunks_exact(dim);
                let repeated: Vec<f32> = rows
                    .flat_map(|row| std::iter::repeat_n(row, length).flatten())
                    .copied()
                    .collect();
                let ends: Vec<i64> = (1..=bags).map(|bag| (bag * length) as i64).collect();
                let plain = floats(6, 9);
                let group: Vec<(&Table, LookupGradients<'_>)> = (0..3)
                    .map(|at| {
                        let bags = (at != 1 && is_summed).then_some(crate::pooled::sums(&ends));
                        let (grads, dim) = match (at, &bags) {
                            (1, _) => (&plain, 2),
                            (_, Some(_)) => (&of_bags, dim),
                            (_, None) => (&repeated, dim),
                        };
                        let lookup = LookupGradients {
                            offsets: found[at].offsets(),
                            inverse: &inverses[at],
                            grads: Columns::all(grads, dim).unwrap(),
                            bags,
                        };
                        (&*tables[members[at].0], lookup)
                    })
                    .collect();
                Table::apply_lookups_many(&pool, &group, &adagrad).unwrap();
            }
            assert_eq!(all_seen(&tables[0]), all_seen(&tables[1]), "{threads}");
        }
    }
}

#[test]
fn gradients_of_sums_that_are_too_few_are_refused() {
    let pool = Pool::new(2).unwrap();
    let tables = made(&[2, 3]);
    let (found, inverses) = leases(&tables, &pool, &vec![(0, vec![1, 2, 3, 1])]);
    let grads = floats(12, 1);
    let before = all_seen(&tables);
    for (columns, ends) in [
        (Columns::of(&grads[..9], 3, 1, 2).unwrap(), [2, 4]),
        (Columns::all(&grads[..6], 2).unwrap(), [2, 4]),
        (Columns::all(&grads[..4], 2).unwrap(), [2, 3]),
    ] {
        let lookup = LookupGradients {
            offsets: found[0].offsets(),
            inverse: &inverses[0],
            grads: columns,
            bags: Some(crate::pooled::sums(&ends)),
        };
        let group = [(&*tables[0], lookup)];
        let sgd = Sgd::new(1.0).unwrap();
        let error = Table::apply_lookups_many(&pool, &group, &sgd).unwrap_err();
        expect_error(&error, Kind::InvalidArgument, &["table_0"]);
        assert_eq!(all_seen(&tables), before);
    }
}
