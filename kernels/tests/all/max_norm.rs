//! Pooled lookups of rows with a greatest norm: the forms agree with each other and with sums by
//! hand, also in groups and on several threads, and updates are by the rows as they were read.

use crate::pooled::{embed_pooled, find_pooled};
use crate::singles::Target;
use crate::support::{applied, created};
use crate::table::bits;
use mx_rec_kernels::{
    reduce_pooled, restore_pooled, Absent, Bags, Columns, Error, Ids, KeysOf, LookupGradients,
    MaxNorm, Pool, RowsOf, Sgd, Table, TableConfig,
};

const NORM: f32 = 0.7;

fn table(name: &str, dim: usize) -> Table {
    Table::new(TableConfig {
        seed: 5,
        initializer: mx_rec_kernels::Initializer::RandomUniform {
            min: -0.5,
            max: 0.5,
        },
        ..TableConfig::new(name, dim, 4000)
    })
    .unwrap()
}

/// Ids of a batch with repeats and padding, in bags of 0 to 4.
fn batch(n: i64) -> (Vec<i64>, Vec<i64>) {
    let ids: Vec<i64> = (0..n).map(|at| at * at % 257 - 1).collect();
    let mut ends = vec![0];
    while ends[ends.len() - 1] < n {
        let end = ends[ends.len() - 1] + ends.len() as i64 % 5;
        ends.push(end.min(n));
    }
    (ids, ends)
}

fn max_norm(rows: &[f32]) -> Option<MaxNorm<'_>> {
    Some(MaxNorm { norm: NORM, rows })
}

/// What rows of ids are, each scaled down and added up.
fn by_hand(rows: &[f32], dim: usize, ends: &[i64]) -> Vec<f64> {
    let mut sums = vec![0.0; ends.len() * dim];
    let mut start = 0;
    for (sum, &end) in sums.chunks_mut(dim).zip(ends) {
        for row in rows[start * dim..end as usize * dim].chunks(dim) {
            let squares = row.iter().map(|&value| f64::from(value).powi(2));
            let scale = f64::from(NORM) / squares.sum::<f64>().sqrt().max(f64::from(NORM));
            for (sum, &value) in sum.iter_mut().zip(row) {
                *sum += f64::from(value) * scale;
            }
        }
        start = end as usize;
    }
    sums
}

#[test]
fn all_ways_to_pool_give_the_same_bits_on_any_number_of_threads() {
    for (dim, n) in [(1, 60), (3, 9_000), (8, 5_000), (16, 9_000), (33, 700)] {
        let table = table("t", dim);
        let (ids, ends) = batch(n);
        let one = Pool::new(1).unwrap();
        let mut inverse = vec![0; ids.len()];
        let offsets = table.id_offset(&one, Ids::I64(&ids), true, None, &mut inverse);
        let offsets = offsets.unwrap();
        let bags = Bags {
            ends: &ends,
            weights: None,
            divisors: None,
            max_norm: max_norm(&[]),
        };
        let mut rows = vec![0.0; offsets.len() * dim];
        table.lookup(&one, &offsets, &mut rows).unwrap();
        let mut each = vec![0.0; ids.len() * dim];
        table.embed(&one, &offsets, &inverse, &mut each).unwrap();
        let mut expected = vec![0.0; ends.len() * dim];
        restore_pooled(&one, &rows, dim, &inverse, &bags, &mut expected).unwrap();
        for (&found, exact) in expected.iter().zip(by_hand(&each, dim, &ends)) {
            assert!((f64::from(found) - exact).abs() < 2e-6, "{found} {exact}");
        }
        for threads in [1, 3] {
            let pool = Pool::new(threads).unwrap();
            let mut found = vec![7.0; expected.len()];
            embed_pooled(
                &table,
                &pool,
                &offsets,
                &inverse,
                &bags,
                &mut [],
                &mut found,
            )
            .unwrap();
            assert_eq!(bits(&found), bits(&expected));
            let mut kept = vec![7.0; rows.len()];
            found.fill(7.0);
            let done = embed_pooled(
                &table, &pool, &offsets, &inverse, &bags, &mut kept, &mut found,
            );
            done.unwrap();
            assert_eq!((bits(&found), bits(&kept)), (bits(&expected), bits(&rows)));
            found.fill(7.0);
            let ids = Ids::I64(&ids);
            find_pooled(&table, &pool, ids, &bags, Absent::Zeros, &mut found).unwrap();
            assert_eq!(bits(&found), bits(&expected));
        }
    }
}

#[test]
fn a_group_of_members_with_a_norm_and_without_gives_the_bits_of_one_after_the_other() {
    let tables = [table("a", 16), table("b", 3), table("c", 8)];
    let one = Pool::new(1).unwrap();
    let (ids, ends) = batch(12_000);
    let found: Vec<(Vec<i64>, Vec<i32>)> = tables
        .iter()
        .map(|table| {
            let mut inverse = vec![0; ids.len()];
            let offsets = table.id_offset(&one, Ids::I64(&ids), true, None, &mut inverse);
            (offsets.unwrap().to_vec(), inverse)
        })
        .collect();
    let bags = |member: usize| Bags {
        ends: &ends,
        weights: None,
        divisors: None,
        max_norm: max_norm(&[]).filter(|_| member != 1),
    };
    let group: Vec<RowsOf<'_>> = (0..3)
        .map(|at| RowsOf {
            table: &tables[at],
            offsets: &found[at].0,
            inverse: &found[at].1,
            bags: Some(bags(at)),
        })
        .collect();
    let keys: Vec<KeysOf<'_>> = (0..3)
        .map(|at| KeysOf {
            table: &tables[at],
            ids: Ids::I64(&ids),
            absent: Absent::Zeros,
            bags: Some(bags(at)),
        })
        .collect();
    let room = || -> Vec<Vec<f32>> {
        let of = |table: &Table| vec![7.0; ends.len() * table.dim()];
        tables.iter().map(of).collect()
    };
    let mut expected = room();
    for (&member, out) in group.iter().zip(&mut expected) {
        Table::embed_many(&one, &[member], vec![out], Vec::new()).unwrap();
    }
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads).unwrap();
        let (mut outs, mut finds) = (room(), room());
        let mut kept: Vec<Vec<f32>> = (0..3)
            .map(|at| {
                vec![
                    7.0;
                    if at == 1 {
                        0
                    } else {
                        found[at].0.len() * tables[at].dim()
                    }
                ]
            })
            .collect();
        let out = outs.iter_mut().map(|out| &mut out[..]).collect();
        let rows = kept.iter_mut().map(|rows| &mut rows[..]).collect();
        Table::embed_many(&pool, &group, out, rows).unwrap();
        let out = finds.iter_mut().map(|out| &mut out[..]).collect();
        Table::find_many(&pool, &keys, out).unwrap();
        for (at, expected) in expected.iter().enumerate() {
            assert_eq!(bits(&outs[at]), bits(expected));
            assert_eq!(bits(&finds[at]), bits(expected));
            let mut rows = vec![0.0; kept[at].len()];
            if at != 1 {
                tables[at].lookup(&one, &found[at].0, &mut rows).unwrap();
            }
            assert_eq!(bits(&kept[at]), bits(&rows));
        }
    }
}

/// A table with the rows of a batch, its offsets, their inverse, and the rows.
fn looked_up(name: &str, dim: usize, ids: &[i64]) -> (Table, Vec<i64>, Vec<i32>, Vec<f32>) {
    let (table, pool) = (table(name, dim), Pool::new(1).unwrap());
    let (offsets, inverse) = created(&table, &pool, ids);
    let offsets = offsets.to_vec();
    let mut rows = vec![0.0; offsets.len() * dim];
    table.lookup(&pool, &offsets, &mut rows).unwrap();
    (table, offsets, inverse, rows)
}

#[test]
fn an_update_that_sums_by_itself_is_that_by_sums_and_by_the_rows_that_were_kept() {
    let sgd = Sgd::new(0.5).unwrap();
    for (dim, n) in [(4, 50), (16, 20_000)] {
        let (ids, ends) = batch(n);
        let grads: Vec<f32> = (0..ends.len() * dim)
            .map(|at| (at as f32 * 0.37).sin())
            .collect();
        for threads in [1, 3] {
            let pool = Pool::new(threads).unwrap();
            let (by_sums, offsets, inverse, rows) = looked_up("t", dim, &ids);
            let bags = Bags {
                ends: &ends,
                weights: None,
                divisors: None,
                max_norm: max_norm(&rows),
            };
            let columns = Columns::all(&grads, dim).unwrap();
            let mut sums = vec![0.0; offsets.len() * dim];
            reduce_pooled(&pool, columns, &inverse, &bags, &mut sums).unwrap();
            applied(&by_sums, &pool, Target::Offsets(&offsets), &sums, &sgd);

            let (alone, offsets, inverse, _) = looked_up("t", dim, &ids);
            // What has changed the rows since does not count.
            let zeros = vec![0.0; sums.len()];
            applied(&alone, &pool, Target::Offsets(&offsets), &zeros, &sgd);
            let lookup = LookupGradients {
                offsets: &offsets,
                inverse: &inverse,
                grads: Columns::all(&grads, dim).unwrap(),
                bags: Some(bags),
            };
            alone.apply_lookups(&pool, &[lookup], &sgd).unwrap();

            let (grouped, offsets, inverse, _) = looked_up("t", dim, &ids);
            let (other, other_offsets, other_inverse, _) = looked_up("other", dim, &ids);
            let lookup = |offsets, inverse, max_norm| LookupGradients {
                offsets,
                inverse,
                grads: columns,
                bags: Some(Bags { max_norm, ..bags }),
            };
            let group = [
                (&grouped, lookup(&offsets[..], &inverse[..], bags.max_norm)),
                (&other, lookup(&other_offsets[..], &other_inverse[..], None)),
            ];
            Table::apply_lookups_many(&pool, &group, &sgd).unwrap();
            let now = |table: &Table| {
                let mut inverse = vec![0; ids.len()];
                let offsets = table.id_offset(&pool, Ids::I64(&ids), false, None, &mut inverse);
                let offsets = offsets.unwrap();
                let mut rows = vec![0.0; sums.len()];
                table.lookup(&pool, &offsets, &mut rows).unwrap();
                bits(&rows)
            };
            assert_eq!(now(&alone), now(&by_sums));
            assert_eq!(now(&grouped), now(&by_sums));
            assert_ne!(now(&other), now(&by_sums));
        }
    }
}

#[test]
fn an_update_without_the_rows_or_with_a_wrong_norm_changes_nothing() {
    let (ids, ends) = batch(40);
    let pool = Pool::new(1).unwrap();
    let (table, offsets, inverse, rows) = looked_up("t", 4, &ids);
    let grads = vec![1.0; ends.len() * 4];
    for (norm, kept, text) in [
        (NORM, &rows[4..], "max_norm"),
        (NORM, &[][..], "max_norm"),
        (0.0, &rows, "max_norm"),
        (f32::NAN, &rows, "max_norm"),
    ] {
        let lookup = LookupGradients {
            offsets: &offsets,
            inverse: &inverse,
            grads: Columns::all(&grads, table.dim()).unwrap(),
            bags: Some(Bags {
                ends: &ends,
                weights: None,
                divisors: None,
                max_norm: Some(MaxNorm { norm, rows: kept }),
            }),
        };
        let refused: Error = table
            .apply_lookups(&pool, &[lookup], &Sgd::new(0.5).unwrap())
            .unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains(text) && refused.contains("table=t"),
            "{refused}"
        );
        let mut now = vec![0.0; rows.len()];
        table.lookup(&pool, &offsets, &mut now).unwrap();
        assert_eq!(bits(&now), bits(&rows));
    }
}
