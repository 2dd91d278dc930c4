//! Reads the pooled rows of many lookups at once.

use super::content::Content;
use super::group::{by_address, each, places, Failure};
use super::tiered::hold_all;
use super::{RowsOf, Table};
use crate::{Bags, Error, Pool, Result};

/// What one pooled lookup has found, to be read.
#[derive(Clone, Copy, Debug)]
pub struct BagsOf<'a> {
    /// Its table, offsets and inverse; -1 adds nothing.
    pub rows: RowsOf<'a>,
    /// Which of its ids are pooled.
    pub bags: Bags<'a>,
}

impl Table {
    /// [`Table::embed_pooled`] of several lookups at once; `outs[i]` is for `group[i]`.
    ///
    /// # Errors
    /// As there, of the first lookup that fails. `outs` are then unspecified.
    pub fn embed_pooled_many(
        pool: &Pool,
        group: &[BagsOf<'_>],
        outs: Vec<&mut [f32]>,
    ) -> Result<()> {
        if outs.len() != group.len() {
            return Err(Error::invalid("a group needs one output for each member")
                .with("members", group.len())
                .with("outputs", outs.len()));
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
        let items: Vec<_> = group.iter().zip(outs).enumerate().collect();
        each(
            pool,
            items,
            |(_, (one, _))| one.rows.inverse.len() + one.bags.len(),
            |pool, (at, (one, out))| {
                let RowsOf {
                    table,
                    offsets,
                    inverse,
                } = one.rows;
                let content = contents[places[at]];
                let done = table.embed_pooled_from(pool, content, offsets, inverse, &one.bags, out);
                failure.note(at, done);
            },
        );
        failure.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ids, Initializer, TableConfig};

    fn table(name: &str, dim: usize) -> Table {
        let config = TableConfig {
            name: name.into(),
            dim,
            capacity: 100,
            seed: 5,
            initializer: Initializer::RandomUniform { min: 1.0, max: 2.0 },
            init_param: 1.0,
            frozen_keys: Vec::new(),
            admission_sketch_bytes: 0,
        };
        Table::new(config).unwrap()
    }

    #[test]
    fn a_group_gives_the_bits_of_each_lookup_alone() {
        let tables = [table("a", 3), table("b", 1)];
        let pool = Pool::new(2).unwrap();
        let lookups: [(usize, &[i64], &[i64]); 3] = [
            (0, &[1, 2, 1, 5], &[1, 1, 4]),
            (1, &[9, 9], &[2]),
            (0, &[7, 1], &[0, 2]),
        ];
        let found: Vec<_> = lookups
            .iter()
            .map(|&(at, ids, _)| {
                let mut inverse = vec![0; ids.len()];
                let table = &tables[at];
                let offsets = table.id_offset(&pool, Ids::I64(ids), true, None, &mut inverse);
                (offsets.unwrap(), inverse)
            })
            .collect();
        let group: Vec<BagsOf<'_>> = lookups
            .iter()
            .zip(&found)
            .map(|(&(at, _, ends), (offsets, inverse))| BagsOf {
                rows: RowsOf {
                    table: &tables[at],
                    offsets,
                    inverse,
                },
                bags: Bags {
                    ends,
                    weights: None,
                    divisors: None,
                },
            })
            .collect();
        let sizes = group
            .iter()
            .map(|one| one.bags.len() * one.rows.table.dim());
        let mut outs: Vec<Vec<f32>> = sizes.map(|size| vec![9.0; size]).collect();
        let expected: Vec<Vec<f32>> = group
            .iter()
            .zip(&outs)
            .map(|(one, out)| {
                let mut alone = vec![0.0; out.len()];
                let RowsOf {
                    table,
                    offsets,
                    inverse,
                } = one.rows;
                table
                    .embed_pooled(&pool, offsets, inverse, &one.bags, &mut alone)
                    .unwrap();
                alone
            })
            .collect();
        let places = outs.iter_mut().map(|out| &mut out[..]).collect();
        Table::embed_pooled_many(&pool, &group, places).unwrap();
        assert_eq!(outs, expected);
        assert!(expected.concat().iter().any(|&value| value != 0.0));

        let mut wrong = group.clone();
        wrong[2].bags.ends = &[0, 1];
        let places = outs.iter_mut().map(|out| &mut out[..]).collect();
        let error = Table::embed_pooled_many(&pool, &wrong, places).unwrap_err();
        assert!(error.to_string().contains("table=a"), "{error}");
        assert!(Table::embed_pooled_many(&pool, &group, vec![]).is_err());
    }
}
