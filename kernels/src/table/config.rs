//! What a table is told once, when it is made.

use crate::{Error, Initializer, Result, Rounding, RowDtype, PADDING};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The largest embedding, in floats.
pub const MAX_DIM: usize = 8192;

/// The largest row budget of one table.
pub const MAX_CAPACITY: u64 = 2_000_000_000;

/// The sizes of a sketch, in bytes.
const SKETCH_BYTES: RangeInclusive<u64> = 1 << 10..=1 << 40;

/// The settings of a [`Table`](crate::Table); they do not change during its life. This is also
/// their form in JSON: as Python gives them, and as a checkpoint's manifest keeps them.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TableConfig {
    /// The name that errors carry.
    pub name: String,
    /// Floats of one embedding, 1..=8192.
    pub dim: usize,
    /// The most rows the table may hold, 1..=2e9. Memory is taken as rows appear, not for the whole
    /// budget.
    pub capacity: u64,
    /// With the key and the column it decides the first values of a row.
    pub seed: u64,
    /// Makes the first values of a row.
    pub initializer: Initializer,
    /// Factor on what the initializer gives.
    pub init_param: f32,
    /// Keys whose rows are looked up like others but never changed by an optimizer.
    #[serde(rename = "padding_keys")]
    pub frozen_keys: Vec<i64>,
    /// As what embeddings are stored.
    #[serde(default, skip_serializing_if = "is_default")]
    pub row_storage: RowStorage,
    /// 0: keys that are counted before they get rows have a counter each, of at most 24 bytes.
    /// Otherwise they share so many bytes, 1024..=2^40, in a sketch that counts some of them too
    /// high, and so admits some too early. Nothing is taken before keys are counted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub admission_sketch_bytes: u64,
}

/// As what the embeddings and slots of a [`Table`](crate::Table) are stored. Lookups and updates
/// have float32, whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RowStorage {
    /// The type of the values.
    #[serde(default)]
    pub dtype: RowDtype,
    /// How an update rounds to a type of 2 bytes.
    #[serde(default)]
    pub rounding: Rounding,
    /// How a load rounds embeddings of another type than `dtype`, and slots of another type than
    /// theirs; `None` refuses them.
    #[serde(default)]
    pub conversion: Option<Rounding>,
    /// The type of the values of slots that have one for each column: float32, or bfloat16 beside a
    /// `dtype` of 2 bytes, rounded as embeddings are. A slot of one float a row is float32.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slot_dtype: RowDtype,
}

impl RowStorage {
    /// Whether what an update makes of a row depends on its key.
    pub(crate) fn rounds_by_key(&self) -> bool {
        self.dtype != RowDtype::Float32 && self.rounding == Rounding::Stochastic
    }

    /// The type of the values of a slot, which may be one float a row.
    pub(crate) fn of_slot(&self, per_row: bool) -> RowDtype {
        match per_row {
            true => RowDtype::Float32,
            false => self.slot_dtype,
        }
    }
}

impl TableConfig {
    /// A table of float32 rows that start at zeros, with seed 0, no frozen key and exact counters.
    pub fn new(name: impl Into<String>, dim: usize, capacity: u64) -> TableConfig {
        TableConfig {
            name: name.into(),
            dim,
            capacity,
            seed: 0,
            initializer: Initializer::Zeros,
            init_param: 1.0,
            frozen_keys: Vec::new(),
            row_storage: RowStorage::default(),
            admission_sketch_bytes: 0,
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// `InvalidArgument` with the name of the table, of the setting and its value.
    pub fn validate(&self) -> Result<()> {
        let refuse = |message: &str| Error::invalid(message).with("table", &self.name);
        if !(1..=MAX_DIM).contains(&self.dim) {
            return Err(refuse("dim must be 1 to 8192").with("dim", self.dim));
        }
        if !(1..=MAX_CAPACITY).contains(&self.capacity) {
            return Err(
                refuse("capacity must be 1 to 2000000000 rows").with("capacity", self.capacity)
            );
        }
        let bytes = self.admission_sketch_bytes;
        if bytes != 0 && !SKETCH_BYTES.contains(&bytes) {
            return Err(
                refuse("admission_sketch_bytes must be 0 or 1024 to 1099511627776")
                    .with("admission_sketch_bytes", bytes),
            );
        }
        if !self.init_param.is_finite() {
            return Err(refuse("init_param must be finite").with("init_param", self.init_param));
        }
        if self.frozen_keys.contains(&PADDING) {
            return Err(
                refuse("a frozen key must not be the padding key").with("frozen_keys", PADDING)
            );
        }
        self.initializer
            .validate()
            .map_err(|cause| cause.with("table", &self.name))?;
        let bound = self.initializer.bound() * f64::from(self.init_param).abs();
        let dtype = self.row_storage.dtype;
        if bound > f64::from(dtype.largest()) {
            let message = format!("the initializer times init_param must fit {dtype}");
            return Err(refuse(&message).with("init_param", self.init_param));
        }
        let slot_dtype = self.row_storage.slot_dtype;
        if slot_dtype == RowDtype::Float16 {
            let message = "slot_dtype must be float32 or bfloat16";
            return Err(refuse(message).with("slot_dtype", slot_dtype));
        }
        if slot_dtype != RowDtype::Float32 && dtype == RowDtype::Float32 {
            let message = "a slot_dtype of 2 bytes needs a row_dtype of 2 bytes";
            return Err(refuse(message)
                .with("slot_dtype", slot_dtype)
                .with("row_dtype", dtype));
        }
        Ok(())
    }
}

/// Where the rows of a [`Table`](crate::Table) are that memory does not hold. It is no part of a
/// checkpoint: a table may be restored into any other split of memory and disk.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TierConfig {
    /// The most rows in memory, 1..=2e9. All distinct keys of one batch must fit.
    pub ram_rows: u64,
    /// Directories that get the other rows in turn; one or more, and each must be there. The files
    /// hold nothing that outlives the table.
    pub directories: Vec<PathBuf>,
    /// Whether files are read past the page cache (`O_DIRECT`), where file systems allow that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
}

impl TierConfig {
    /// Checks every setting for the table `table`; whether the directories can be written, the
    /// table finds out when it is made.
    ///
    /// # Errors
    /// `InvalidArgument` with the name of the table, of the setting and its value.
    pub fn validate(&self, table: &str) -> Result<()> {
        check_ram_rows(self.ram_rows, table)?;
        if self.directories.is_empty() {
            return Err(
                Error::invalid("a tier on disk needs one directory or more").with("table", table)
            );
        }
        Ok(())
    }
}

/// Refuses a number of rows in memory that no table can have.
pub(super) fn check_ram_rows(ram_rows: u64, table: &str) -> Result<()> {
    if (1..=MAX_CAPACITY).contains(&ram_rows) {
        return Ok(());
    }
    Err(Error::invalid("ram_rows must be 1 to 2000000000")
        .with("table", table)
        .with("ram_rows", ram_rows))
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_values_that_float32_cannot_hold_are_refused() {
        let config = |initializer, init_param| TableConfig {
            initializer,
            init_param,
            ..TableConfig::new("users", 1, 1)
        };
        let value = 3e38;
        for (initializer, most) in [
            (Initializer::Constant { value }, 1.0),
            (Initializer::Constant { value: -value }, -1.0),
            (
                Initializer::RandomUniform {
                    min: -1e38,
                    max: 1e38,
                },
                3.0,
            ),
            (
                Initializer::RandomNormal {
                    mean: 1e38,
                    stddev: 1e37,
                },
                2.0,
            ),
            (Initializer::Zeros, f32::MAX),
        ] {
            let good = config(initializer.clone(), most);
            assert!(good.validate().is_ok(), "{good:?}");
            let error = config(initializer.clone(), most * 2.0).validate();
            let text = error.err().map(|error| error.to_string());
            let text = text.unwrap_or_default();
            if initializer == Initializer::Zeros {
                assert!(text.contains("init_param must be finite"), "{text}");
            } else {
                assert!(
                    text.contains("must fit float32 (table=users, init_param="),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_configuration_reads_what_it_writes() {
        let text = r#"{"name":"users","dim":2,"capacity":3,"seed":18446744073709551615,
            "initializer":{"kind":"truncated_normal","mean":0.5,"stddev":2.0},"init_param":0.5,
            "padding_keys":[-9223372036854775808,7]}"#;
        let config: TableConfig = serde_json::from_str(text).unwrap();
        assert_eq!((config.seed, config.frozen_keys[0]), (u64::MAX, i64::MIN));
        let written = serde_json::to_string(&config).unwrap();
        assert_eq!(
            serde_json::from_str::<TableConfig>(&written).unwrap(),
            config
        );
        assert!(!written.contains("admission_sketch_bytes"));
        let more = text.replace("\"dim\"", "\"colour\":1,\"dim\"");
        assert!(serde_json::from_str::<TableConfig>(&more).is_err());
    }
}
