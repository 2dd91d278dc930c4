//! The configuration of a table as it arrives from Python: JSON in a uint8 tensor.

use mx_rec_kernels::{Distribution, Error, Initializer, Mode, Result, TableConfig};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Init {
    Zeros,
    Ones,
    Constant {
        value: f32,
    },
    RandomUniform {
        min: f32,
        max: f32,
    },
    RandomNormal {
        mean: f32,
        stddev: f32,
    },
    TruncatedNormal {
        mean: f32,
        stddev: f32,
    },
    VarianceScaling {
        scale: f32,
        mode: InitMode,
        distribution: InitDistribution,
        fan_in: f64,
        fan_out: f64,
    },
}

#[derive(Deserialize)]
enum InitMode {
    #[serde(rename = "fan_in")]
    In,
    #[serde(rename = "fan_out")]
    Out,
    #[serde(rename = "fan_avg")]
    Avg,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum InitDistribution {
    Uniform,
    UntruncatedNormal,
    TruncatedNormal,
}

impl From<Init> for Initializer {
    fn from(init: Init) -> Self {
        match init {
            Init::Zeros => Initializer::Zeros,
            Init::Ones => Initializer::Ones,
            Init::Constant { value } => Initializer::Constant(value),
            Init::RandomUniform { min, max } => Initializer::RandomUniform { min, max },
            Init::RandomNormal { mean, stddev } => Initializer::RandomNormal { mean, stddev },
            Init::TruncatedNormal { mean, stddev } => Initializer::TruncatedNormal { mean, stddev },
            Init::VarianceScaling {
                scale,
                mode,
                distribution,
                fan_in,
                fan_out,
            } => Initializer::VarianceScaling {
                scale,
                mode: match mode {
                    InitMode::In => Mode::FanIn,
                    InitMode::Out => Mode::FanOut,
                    InitMode::Avg => Mode::FanAvg,
                },
                distribution: match distribution {
                    InitDistribution::Uniform => Distribution::Uniform,
                    InitDistribution::UntruncatedNormal => Distribution::UntruncatedNormal,
                    InitDistribution::TruncatedNormal => Distribution::TruncatedNormal,
                },
                fan_in,
                fan_out,
            },
        }
    }
}

/// Reads a configuration. Every field must be there and no other may be.
///
/// # Errors
/// `InvalidArgument` that names the field.
pub(crate) fn parse(json: &[u8]) -> Result<Parsed> {
    let mut fields: Map<String, Value> = serde_json::from_slice(json)
        .map_err(|cause| invalid(format_args!("it must be a JSON object: {cause}")))?;
    let config = TableConfig {
        name: take(&mut fields, "name")?,
        dim: take(&mut fields, "dim")?,
        capacity: take(&mut fields, "capacity")?,
        seed: take(&mut fields, "seed")?,
        initializer: take::<Init>(&mut fields, "initializer")?.into(),
        init_param: take(&mut fields, "init_param")?,
        frozen_keys: take(&mut fields, "padding_keys")?,
        admission_sketch_bytes: match fields.contains_key("admission_sketch_bytes") {
            true => take(&mut fields, "admission_sketch_bytes")?,
            false => 0,
        },
    };
    let track_changes = match fields.contains_key("track_changes") {
        true => take(&mut fields, "track_changes")?,
        false => false,
    };
    match fields.keys().next() {
        Some(field) => Err(invalid(format_args!("there is no field {field:?}"))),
        None => Ok(Parsed {
            config,
            track_changes,
        }),
    }
}

/// A configuration and what is to be done with the table that is made by it.
pub(crate) struct Parsed {
    /// The table's settings.
    pub(crate) config: TableConfig,
    /// Whether changes are tracked, for incremental checkpoints.
    pub(crate) track_changes: bool,
}

/// Takes one field out of the object.
fn take<T: DeserializeOwned>(fields: &mut Map<String, Value>, name: &str) -> Result<T> {
    let value = fields
        .remove(name)
        .ok_or_else(|| invalid(format_args!("the field {name:?} is missing")))?;
    serde_json::from_value(value)
        .map_err(|cause| invalid(format_args!("in the field {name:?}: {cause}")))
}

fn invalid(why: std::fmt::Arguments<'_>) -> Error {
    Error::invalid(format!("the configuration of a table is not valid: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(initializer: &str, more: &str) -> Vec<u8> {
        format!(
            "{{\"name\": \"t\", \"dim\": 4, \"capacity\": 10, \"seed\": 18446744073709551615, \
             \"init_param\": 0.5, \"padding_keys\": [-9223372036854775808], \
             \"initializer\": {initializer}{more}}}"
        )
        .into_bytes()
    }

    #[test]
    fn a_whole_configuration_is_read_with_its_extremes() -> Result<()> {
        let scaling = "{\"kind\": \"variance_scaling\", \"scale\": 2.0, \"mode\": \"fan_avg\", \
                       \"distribution\": \"uniform\", \"fan_in\": 10, \"fan_out\": 4}";
        let parsed = parse(&text(scaling, ", \"track_changes\": true"))?;
        assert!(parsed.track_changes && !parse(&text(scaling, ""))?.track_changes);
        let config = parsed.config;
        let sketch = parse(&text(
            scaling,
            ", \"admission_sketch_bytes\": 1099511627776",
        ))?;
        let bytes = sketch.config.admission_sketch_bytes;
        assert_eq!((config.admission_sketch_bytes, bytes), (0, 1 << 40));
        assert_eq!(
            (config.seed, config.frozen_keys.as_slice()),
            (u64::MAX, &[i64::MIN][..])
        );
        assert_eq!(
            config.initializer,
            Initializer::VarianceScaling {
                scale: 2.0,
                mode: Mode::FanAvg,
                distribution: Distribution::Uniform,
                fan_in: 10.0,
                fan_out: 4.0,
            }
        );
        Ok(())
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        for (json, named) in [
            (text("{\"kind\": \"orthogonal\"}", ""), "orthogonal"),
            (text("{\"kind\": \"zeros\"}", ", \"colour\": 1"), "colour"),
            (
                text("{\"kind\": \"random_uniform\", \"min\": 0}", ""),
                "max",
            ),
            (
                text("{\"kind\": \"zeros\"}", ", \"track_changes\": 1"),
                "track_changes",
            ),
            (
                text("{\"kind\": \"zeros\"}", ", \"admission_sketch_bytes\": -1"),
                "admission_sketch_bytes",
            ),
            (b"{\"name\": \"t\"}".to_vec(), "\"dim\""),
            (b"{\"name\": \"t\", \"dim\": -1}".to_vec(), "\"dim\""),
            (b"{\"name\": null}".to_vec(), "\"name\""),
            (
                text("{\"kind\": \"constant\", \"value\": \"a\"}", ""),
                "\"initializer\"",
            ),
            (text("{}", ""), "kind"),
            (b"[]".to_vec(), "JSON object"),
            (b"\xff\x00".to_vec(), "not valid"),
        ] {
            let message = parse(&json)
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(message.contains(named), "{message}");
        }
    }
}
