//! The rows that keys start with.

use crate::halves::round_row;
use crate::simd::Level;
use crate::TableConfig;

impl TableConfig {
    /// Fills `row (dim)` with the embedding that a new row of `key` has.
    pub(super) fn fill_initial(&self, key: i64, row: &mut [f32]) {
        self.fill_floats(key, row);
        if let Some(half) = self.row_storage.dtype.half() {
            round_row(Level::detect(), half, None, row);
        }
    }

    /// [`TableConfig::fill_initial`] before it is rounded.
    pub(super) fn fill_floats(&self, key: i64, row: &mut [f32]) {
        self.initializer.fill(self.seed, key, row);
        if self.init_param != 1.0 {
            row.iter_mut().for_each(|value| *value *= self.init_param);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::singles::Singles as _;
    use crate::{Absent, Bags, Ids, Initializer, KeysOf, Pool, Result, Table, TableConfig};

    fn table(initializer: Initializer) -> Result<Table> {
        Table::new(TableConfig {
            seed: 7,
            initializer,
            init_param: 0.5,
            ..TableConfig::new("t", 3, 100)
        })
    }

    #[test]
    fn a_key_s_initial_row_is_the_one_that_it_gets_when_it_is_made() -> Result<()> {
        let pool = Pool::new(2)?;
        for initializer in [
            Initializer::Constant { value: 3.0 },
            Initializer::TruncatedNormal {
                mean: 1.0,
                stddev: 2.0,
            },
        ] {
            let table = table(initializer)?;
            let keys = [5_i64, 0, 99, 5, -1];
            let mut told = vec![f32::NAN; 15];
            let absent = Absent::Initial(table.config());
            table.find(&pool, Ids::I64(&keys), absent, &mut told)?;
            assert!(table.is_empty());
            let mut inverse = [0; 5];
            table.id_offset(&pool, Ids::I64(&keys), true, None, &mut inverse)?;
            let mut made = vec![f32::NAN; 15];
            table.find(&pool, Ids::I64(&keys), Absent::Zeros, &mut made)?;
            assert_eq!(told, made);
            assert_eq!(told[12..], [0.0; 3]);
        }
        Ok(())
    }

    #[test]
    fn a_pooled_lookup_with_initial_rows_is_refused() -> Result<()> {
        let pool = Pool::new(1)?;
        let table = table(Initializer::Zeros)?;
        let keys = KeysOf {
            table: &table,
            ids: Ids::I64(&[]),
            absent: Absent::Initial(table.config()),
            bags: Some(Bags::default()),
        };
        let error = Table::find_many(&pool, &[keys], vec![&mut []]);
        assert!(error.is_err());
        Ok(())
    }
}
