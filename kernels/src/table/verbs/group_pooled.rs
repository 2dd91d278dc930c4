//! Reads the pooled rows of many tables at once, by offset and by key.

use crate::table::disk::hold_all;
use crate::table::group::{by_address, each, places, Failure};
use crate::table::rows::content::Content;
use crate::table::verbs::group_read::expect_outs;
use crate::table::verbs::pooled::KeysIn;
use crate::table::{KeysOf, RowsOf, Table};
use crate::{Bags, Pool, Result};

/// What one pooled lookup has found, to be read.
#[derive(Clone, Copy, Debug)]
pub struct BagsOf<'a> {
    /// The table, the offsets of its distinct keys, and for each id its place among them.
    pub rows: RowsOf<'a>,
    /// Which ids belong together.
    pub bags: Bags<'a>,
}

/// Keys of one table, whose rows are to be pooled.
#[derive(Clone, Copy, Debug)]
pub struct KeyBagsOf<'a> {
    /// The table, its keys, and what those without a row add.
    pub keys: KeysOf<'a>,
    /// Which ids belong together.
    pub bags: Bags<'a>,
}

impl Table {
    /// [`Table::embed_pooled`] of several lookups at once; `outs[i]` is for `group[i]`, and
    /// so is `kept[i]`, which may end before.
    ///
    /// # Errors
    /// As there, of the first lookup that fails. `outs` are then unspecified.
    pub fn embed_pooled_many(
        pool: &Pool,
        group: &[BagsOf<'_>],
        mut outs: Vec<&mut [f32]>,
        kept: Vec<&mut [f32]>,
    ) -> Result<()> {
        expect_outs(group.len(), outs.len())?;
        let nothing = std::iter::repeat_with(Default::default);
        let mut kept: Vec<&mut [f32]> = kept.into_iter().chain(nothing).take(group.len()).collect();
        if let ([one], [out], [kept]) = (group, outs.as_mut_slice(), kept.as_mut_slice()) {
            let RowsOf {
                table,
                offsets,
                inverse,
            } = one.rows;
            return table.embed_pooled(pool, offsets, inverse, &one.bags, kept, out);
        }
        for ((BagsOf { rows, bags }, out), kept) in group.iter().zip(&outs).zip(&kept) {
            let found = (rows.offsets, rows.inverse);
            rows.table.expect_pooled(found, bags, kept, out)?;
        }
        let tables = by_address(group.iter().map(|one| one.rows.table));
        let _held = hold_all(pool, &tables, |at| group[at].rows.offsets)?;
        let locks: Vec<_> = tables
            .iter()
            .map(|one| one.table.content().read())
            .collect();
        let contents: Vec<&Content> = locks.iter().map(|content| &**content).collect();
        let places = places(&tables, group.len());
        let failure = Failure::default();
        let items = group.iter().zip(outs.into_iter().zip(kept)).enumerate();
        let items: Vec<_> = items.collect();
        each(
            pool,
            items,
            // Also an empty bag has a vector to be written.
            |(_, (one, _))| one.rows.inverse.len() + one.bags.len(),
            |pool, (at, (one, (out, kept)))| {
                let RowsOf {
                    table,
                    offsets,
                    inverse,
                } = one.rows;
                let content = contents[places[at]];
                let found = (offsets, inverse);
                let done = table.pool_from(pool, content, found, &one.bags, kept, out);
                failure.note(at, done);
            },
        );
        failure.check()
    }

    /// [`Table::find_pooled`] of several batches at once; `outs[i]` is for `group[i]`.
    ///
    /// # Errors
    /// As there, of the first batch that fails. `outs` are then unspecified.
    pub fn find_pooled_many(
        pool: &Pool,
        group: &[KeyBagsOf<'_>],
        mut outs: Vec<&mut [f32]>,
    ) -> Result<()> {
        expect_outs(group.len(), outs.len())?;
        if let ([KeyBagsOf { keys, bags }], [out]) = (group, outs.as_mut_slice()) {
            return keys
                .table
                .find_pooled(pool, keys.ids, bags, keys.absent, out);
        }
        for (KeyBagsOf { keys, bags }, out) in group.iter().zip(&outs) {
            let KeysOf { table, ids, absent } = *keys;
            table.expect_find_pooled(ids, bags, absent, out)?;
        }
        if group.iter().any(|one| one.keys.table.has_tier()) {
            // What is on disk is read with no lock held, so each member has its own moment.
            let mut members = group.iter().zip(outs);
            return members.try_for_each(|(KeyBagsOf { keys, bags }, out)| {
                let KeysOf { table, ids, absent } = *keys;
                table.find_pooled(pool, ids, bags, absent, out)
            });
        }
        let tables = by_address(group.iter().map(|one| one.keys.table));
        let indexes: Vec<_> = tables.iter().map(|one| one.table.index().read()).collect();
        let contents: Vec<_> = tables
            .iter()
            .map(|one| one.table.content().read())
            .collect();
        let histories: Vec<_> = tables
            .iter()
            .map(|one| one.table.history().read())
            .collect();
        let places = places(&tables, group.len());
        let items = group.iter().zip(outs).zip(&places).map(|(one, &at)| {
            let (index, content) = (&*indexes[at], &*contents[at]);
            (one, (index, content, histories[at].as_deref()))
        });
        each(
            pool,
            items.collect(),
            // Also an empty bag has a vector to be written.
            |((one, _), _)| one.keys.ids.len() + one.bags.len(),
            |pool, ((KeyBagsOf { keys, bags }, out), (index, content, history))| {
                let KeysOf { table, ids, absent } = *keys;
                let keys = KeysIn {
                    index,
                    history,
                    ids,
                    absent,
                };
                table.find_pooled_from(pool, keys, (content, None), bags, out);
            },
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Absent, Ids, Initializer, TableConfig, Thresholds, PADDING};
    use std::sync::Arc;

    fn table(name: &str, dim: usize) -> Arc<Table> {
        let made = Table::new(TableConfig {
            name: name.into(),
            dim,
            capacity: 5000,
            seed: 3,
            initializer: Initializer::RandomUniform {
                min: -1.0,
                max: 1.0,
            },
            init_param: 1.0,
            frozen_keys: Vec::new(),
            admission_sketch_bytes: 0,
            row_storage: crate::RowStorage::default(),
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
            divisors: None,
            max_norm: None,
        };
        let group: Vec<BagsOf<'_>> = (0..members.len())
            .map(|member| BagsOf {
                rows: RowsOf {
                    table: &tables[members[member].0],
                    offsets: &found[member].0,
                    inverse: &found[member].1,
                },
                bags: bags(member),
            })
            .collect();
        let room = |one: &BagsOf<'_>| vec![7.0; one.bags.len() * one.rows.table.dim()];
        let mut expected: Vec<Vec<f32>> = group.iter().map(room).collect();
        for (BagsOf { rows, bags }, out) in group.iter().zip(&mut expected) {
            let (offsets, inverse) = (rows.offsets, rows.inverse);
            let done = rows
                .table
                .embed_pooled(&one, offsets, inverse, bags, &mut [], out);
            done.unwrap();
        }
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            let mut outs: Vec<Vec<f32>> = group.iter().map(room).collect();
            let slices = outs.iter_mut().map(|out| &mut out[..]).collect();
            Table::embed_pooled_many(&pool, &group, slices, Vec::new()).unwrap();
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
        let group = |table, offsets, ends| BagsOf {
            rows: RowsOf {
                table,
                offsets,
                inverse: &[0, 0],
            },
            bags: Bags {
                ends,
                weights: None,
                divisors: None,
                max_norm: None,
            },
        };
        let mut inverse = [0; 2];
        let good = a.id_offset(&pool, Ids::I64(&[5, 5]), true, None, &mut inverse);
        let good = good.unwrap();
        for (offsets, ends, text) in [(&[77_i64][..], &[2_i64][..], "77"), (&[], &[1], "end=1")] {
            let group = [group(&*a, &good, &[2]), group(&*b, offsets, ends)];
            let (mut one, mut other) = ([0.0; 2], [0.0; 2]);
            let outs = vec![&mut one[..], &mut other[..]];
            let error = Table::embed_pooled_many(&pool, &group, outs, Vec::new()).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("table=b") && error.contains(text), "{error}");
        }
        assert!(Table::embed_pooled_many(&pool, &[], Vec::new(), Vec::new()).is_ok());
        let mut out = [0.0; 2];
        assert!(Table::embed_pooled_many(&pool, &[], vec![&mut out], Vec::new()).is_err());
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
            let seen = tables[2].observe(&one, ids, weight, None, thresholds, &mut places);
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
        let group: Vec<KeyBagsOf<'_>> = (0..members.len())
            .map(|member| KeyBagsOf {
                keys: KeysOf {
                    table: &tables[members[member].0],
                    ids: match member {
                        3 => Ids::I32(&short),
                        _ => Ids::I64(&ids[member]),
                    },
                    absent: match member {
                        0 => Absent::Row(&default),
                        _ => Absent::Zeros,
                    },
                },
                bags: Bags {
                    ends: &ends[member],
                    weights: (member == 1).then_some(&weights[..]),
                    divisors: None,
                    max_norm: None,
                },
            })
            .collect();
        let room = |one: &KeyBagsOf<'_>| vec![7.0; one.bags.len() * one.keys.table.dim()];
        let mut expected: Vec<Vec<f32>> = group.iter().map(room).collect();
        for (KeyBagsOf { keys, bags }, out) in group.iter().zip(&mut expected) {
            let done = keys
                .table
                .find_pooled(&one, keys.ids, bags, keys.absent, out);
            done.unwrap();
        }
        assert!(expected.iter().all(|one| !one.contains(&7.0)));
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            let mut outs: Vec<Vec<f32>> = group.iter().map(room).collect();
            let slices = outs.iter_mut().map(|out| &mut out[..]).collect();
            Table::find_pooled_many(&pool, &group, slices).unwrap();
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
            let member = |table, ends, absent| KeyBagsOf {
                keys: KeysOf {
                    table,
                    ids: Ids::I64(&[5, 6]),
                    absent,
                },
                bags: Bags {
                    ends,
                    weights: None,
                    divisors: None,
                    max_norm: None,
                },
            };
            let group = [
                member(&*a, &[2][..], Absent::Zeros),
                member(&*b, ends, absent),
            ];
            let (mut one, mut other) = ([7.0; 2], [7.0; 2]);
            let outs = vec![&mut one[..], &mut other[..]];
            let error = Table::find_pooled_many(&pool, &group, outs).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("table=b") && error.contains(text), "{error}");
            assert_eq!(one, [7.0; 2]);
        }
        assert!(Table::find_pooled_many(&pool, &[], Vec::new()).is_ok());
        let mut out = [0.0; 2];
        assert!(Table::find_pooled_many(&pool, &[], vec![&mut out]).is_err());
    }
}
