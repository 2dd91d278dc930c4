//! Groups of pooled lookups.

use crate::{
    Absent, Bags, Ids, Initializer, KeysOf, Pool, RowsOf, Table, TableConfig, Thresholds, PADDING,
};
use std::sync::Arc;

fn table(name: &str, dim: usize) -> Arc<Table> {
    let made = Table::new(TableConfig {
        seed: 3,
        initializer: Initializer::RandomUniform {
            min: -1.0,
            max: 1.0,
        },
        ..TableConfig::new(name, dim, 5000)
    });
    Arc::new(made.unwrap())
}

#[test]
fn a_group_gives_the_bits_of_one_lookup_after_the_other_on_any_number_of_threads() {
    let tables = [table("a", 16), table("b", 3), table("c", 32)];
    // Some members share a table; one has no ids; one is much larger than the others.
    let members = [(0, 300), (1, 40_000), (0, 0), (2, 6_000)];
    let one = Pool::new(1).unwrap();
    let ids: Vec<Vec<i64>> = members
        .iter()
        .map(|&(_, n)| (0..n).map(|at| at * at % 1009 - 1).collect())
        .collect();
    let ends: Vec<Vec<i64>> = members
        .iter()
        .map(|&(_, n)| (0..=n / 7).map(|bag| (bag * 7 + 7).min(n)).collect())
        .collect();
    let weights: Vec<f32> = (0..40_000).map(|at| (at % 5) as f32 - 1.5).collect();
    let mut found = Vec::new();
    for (&(at, _), ids) in members.iter().zip(&ids) {
        let mut inverse = vec![0; ids.len()];
        let offsets = tables[at].id_offset(&one, Ids::I64(ids), true, None, &mut inverse);
        found.push((offsets.unwrap(), inverse));
    }
    assert!(ids[1].contains(&PADDING));
    let bags = |member: usize| Bags {
        ends: &ends[member],
        weights: (member == 1).then_some(&weights[..]),
        ..Bags::default()
    };
    let group: Vec<RowsOf<'_>> = (0..members.len())
        .map(|member| RowsOf {
            table: &tables[members[member].0],
            offsets: &found[member].0,
            inverse: &found[member].1,
            bags: Some(bags(member)),
        })
        .collect();
    let room = |one: &RowsOf<'_>| vec![7.0; one.bags.unwrap().len() * one.table.dim()];
    let mut expected: Vec<Vec<f32>> = group.iter().map(room).collect();
    for (&member, out) in group.iter().zip(&mut expected) {
        Table::embed_many(&one, &[member], vec![out], Vec::new()).unwrap();
    }
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads).unwrap();
        let mut outs: Vec<Vec<f32>> = group.iter().map(room).collect();
        let slices = outs.iter_mut().map(|out| &mut out[..]).collect();
        Table::embed_many(&pool, &group, slices, Vec::new()).unwrap();
        for (out, expected) in outs.iter().zip(&expected) {
            let same = out.iter().zip(expected);
            assert!(same.into_iter().all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

#[test]
fn the_first_member_that_fails_gives_the_error_and_names_its_table() {
    let (a, b) = (table("a", 2), table("b", 2));
    let pool = Pool::new(2).unwrap();
    let group = |table, offsets, ends| RowsOf {
        table,
        offsets,
        inverse: &[0, 0],
        bags: Some(Bags {
            ends,
            ..Bags::default()
        }),
    };
    let mut inverse = [0; 2];
    let good = a.id_offset(&pool, Ids::I64(&[5, 5]), true, None, &mut inverse);
    let good = good.unwrap();
    for (offsets, ends, text) in [(&[77_i64][..], &[2_i64][..], "77"), (&[], &[1], "end=1")] {
        let group = [group(&*a, &good, &[2]), group(&*b, offsets, ends)];
        let (mut one, mut other) = ([0.0; 2], [0.0; 2]);
        let outs = vec![&mut one[..], &mut other[..]];
        let error = Table::embed_many(&pool, &group, outs, Vec::new()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("table=b") && error.contains(text), "{error}");
    }
    assert!(Table::embed_many(&pool, &[], Vec::new(), Vec::new()).is_ok());
    let mut out = [0.0; 2];
    assert!(Table::embed_many(&pool, &[], vec![&mut out], Vec::new()).is_err());
}

#[test]
fn a_group_of_finds_gives_the_bits_of_one_after_the_other_on_any_number_of_threads() {
    let tables = [table("a", 16), table("b", 3), table("c", 32)];
    let one = Pool::new(1).unwrap();
    // Every other key has a row; of one table, keys that were seen once only count as none.
    for table in &tables {
        let known: Vec<i64> = (0..1000).map(|key| key * 2).collect();
        let mut inverse = vec![0; known.len()];
        let made = table.id_offset(&one, Ids::I64(&known), true, None, &mut inverse);
        drop(made.unwrap());
    }
    let twice: Vec<i64> = (0..100).map(|key| key * 20).collect();
    let thresholds = Thresholds {
        access: 2,
        eviction: None,
    };
    for weight in [1, 1] {
        let (ids, mut places) = (Ids::I64(&twice), [0; 100]);
        let seen = tables[2].observe(None, &one, ids, weight, None, thresholds, &mut places);
        seen.unwrap();
    }
    // Some members share a table; one has no ids, one no bags; one is much larger.
    let members = [(0, 300), (1, 40_000), (0, 0), (2, 6_000), (1, 0)];
    let ids: Vec<Vec<i64>> = members
        .iter()
        .map(|&(_, n)| (0..n).map(|at| at * at % 1009 - 1).collect())
        .collect();
    let short: Vec<i32> = ids[3].iter().map(|&id| id as i32).collect();
    let mut ends: Vec<Vec<i64>> = members
        .iter()
        .map(|&(_, n)| (0..=n / 7).map(|bag| (bag * 7 + 7).min(n)).collect())
        .collect();
    ends[4].clear();
    let weights: Vec<f32> = (0..40_000).map(|at| (at % 5) as f32 - 1.5).collect();
    let default = [0.5; 16];
    let group: Vec<KeysOf<'_>> = (0..members.len())
        .map(|member| KeysOf {
            table: &tables[members[member].0],
            ids: match member {
                3 => Ids::I32(&short),
                _ => Ids::I64(&ids[member]),
            },
            absent: match member {
                0 => Absent::Row(&default),
                _ => Absent::Zeros,
            },
            bags: Some(Bags {
                ends: &ends[member],
                weights: (member == 1).then_some(&weights[..]),
                ..Bags::default()
            }),
        })
        .collect();
    let room = |one: &KeysOf<'_>| vec![7.0; one.bags.unwrap().len() * one.table.dim()];
    let mut expected: Vec<Vec<f32>> = group.iter().map(room).collect();
    for (&member, out) in group.iter().zip(&mut expected) {
        Table::find_many(&one, &[member], vec![out]).unwrap();
    }
    assert!(expected.iter().all(|one| !one.contains(&7.0)));
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads).unwrap();
        let mut outs: Vec<Vec<f32>> = group.iter().map(room).collect();
        let slices = outs.iter_mut().map(|out| &mut out[..]).collect();
        Table::find_many(&pool, &group, slices).unwrap();
        for (out, expected) in outs.iter().zip(&expected) {
            assert_eq!(out.len(), expected.len());
            let same = out.iter().zip(expected);
            assert!(same.into_iter().all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}

#[test]
fn a_find_with_wrong_bags_gives_an_error_that_names_its_table() {
    let (a, b) = (table("a", 2), table("b", 2));
    let pool = Pool::new(2).unwrap();
    let wide = [0.0; 3];
    for (ends, absent, text) in [
        (&[1_i64][..], Absent::Zeros, "end=1"),
        (&[3], Absent::Zeros, "end=3"),
        (&[2], Absent::Row(&wide), "absent"),
        (&[1, 2], Absent::Zeros, "out"),
    ] {
        let member = |table, ends, absent| KeysOf {
            table,
            ids: Ids::I64(&[5, 6]),
            absent,
            bags: Some(Bags {
                ends,
                ..Bags::default()
            }),
        };
        let group = [
            member(&*a, &[2][..], Absent::Zeros),
            member(&*b, ends, absent),
        ];
        let (mut one, mut other) = ([7.0; 2], [7.0; 2]);
        let outs = vec![&mut one[..], &mut other[..]];
        let error = Table::find_many(&pool, &group, outs).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("table=b") && error.contains(text), "{error}");
        assert_eq!(one, [7.0; 2]);
    }
    assert!(Table::find_many(&pool, &[], Vec::new()).is_ok());
    let mut out = [0.0; 2];
    assert!(Table::find_many(&pool, &[], vec![&mut out]).is_err());
}
