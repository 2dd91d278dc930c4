//! The configuration of a table as it arrives from Python: the engine's own, as JSON, and what is
//! to be done with the table.

use crate::shared;
use mx_rec_kernels::tier::reads_by;
use mx_rec_kernels::{Error, Partition, Result, Table, TableConfig, TierConfig};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A configuration and what is to be done with the table that is made by it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// The table's settings, which are valid.
    pub(crate) table: TableConfig,
    /// Whether changes are tracked, for incremental checkpoints.
    track_changes: bool,
    /// Where rows are that memory does not hold; `None` for a table in memory.
    tier: Option<TierConfig>,
    /// Whether a shared table made by another seed will do: nobody has chosen this one.
    any_seed: bool,
}

impl Settings {
    /// Reads a configuration: a [`TableConfig`], which may have `track_changes`, `tier` and
    /// `any_seed` beside its own fields. No other field may be there.
    ///
    /// # Errors
    /// `InvalidArgument` that names the field, for another form, and for values out of their
    /// ranges.
    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        let fields: Map<String, Value> = serde_json::from_slice(json)
            .map_err(|cause| invalid(format_args!("it must be a JSON object: {cause}")))?;
        Settings::of_fields(fields)
    }

    /// Reads a JSON list of configurations.
    ///
    /// # Errors
    /// As [`Settings::parse`], of the first that is not valid.
    pub(crate) fn parse_list(json: &[u8]) -> Result<Vec<Self>> {
        let list: Vec<Map<String, Value>> = serde_json::from_slice(json)
            .map_err(|cause| invalid(format_args!("a JSON list of objects is needed: {cause}")))?;
        list.into_iter().map(Settings::of_fields).collect()
    }

    fn of_fields(mut fields: Map<String, Value>) -> Result<Self> {
        let mut flag = |name| match fields.remove(name) {
            None => Ok(false),
            Some(Value::Bool(is_set)) => Ok(is_set),
            Some(other) => Err(invalid(format_args!(
                "in the field \"{name}\": {other} is no boolean"
            ))),
        };
        let (track_changes, any_seed) = (flag(TRACK_CHANGES)?, flag(ANY_SEED)?);
        let tier = fields.remove(TIER).map(|tier| read(tier, TIER));
        let tier: Option<TierConfig> = tier.transpose()?;
        let table: TableConfig = read(Value::Object(fields), "")?;
        table.validate()?;
        if let Some(tier) = &tier {
            tier.validate(&table.name)?;
        }
        Ok(Self {
            table,
            track_changes,
            tier,
            any_seed,
        })
    }

    /// Makes a table by this configuration, or a part of it.
    ///
    /// # Errors
    /// Those of [`Table::new`], [`Table::tiered`] and [`Table::part`].
    pub(crate) fn make(&self, part: Option<Partition>) -> Result<Table> {
        let (config, tier) = (self.table.clone(), self.tier.as_ref());
        let table = match (part, tier) {
            (Some(part), tier) => Table::part(config, tier, part)?,
            (None, Some(tier)) => Table::tiered(config, tier)?,
            (None, None) => Table::new(config)?,
        };
        if self.track_changes {
            table.track_changes();
        }
        Ok(table)
    }

    /// The JSON that [`Settings::parse`] reads, but for what is not compared.
    fn fields(&self) -> Map<String, Value> {
        let mut fields = match serde_json::to_value(&self.table) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        fields.insert(TRACK_CHANGES.to_owned(), Value::Bool(self.track_changes));
        if let Some(Ok(tier)) = self.tier.as_ref().map(serde_json::to_value) {
            fields.insert(TIER.to_owned(), tier);
        }
        fields
    }
}

const TRACK_CHANGES: &str = "track_changes";
const TIER: &str = "tier";
const ANY_SEED: &str = "any_seed";

impl shared::Settings for Settings {
    fn difference(&self, other: &Self) -> Option<(String, String, String)> {
        if self == other {
            return None;
        }
        let mut asked = other.clone();
        asked.any_seed = self.any_seed;
        if other.any_seed {
            asked.table.seed = self.table.seed;
        }
        if *self == asked {
            return None;
        }
        let (here, there) = (self.fields(), asked.fields());
        let text = |fields: &Map<String, Value>, name: &str| {
            fields.get(name).map_or("none".to_owned(), Value::to_string)
        };
        let names = here.keys().chain(there.keys());
        let name = names
            .into_iter()
            .find(|name| here.get(*name) != there.get(*name));
        // Numbers that differ in memory and not as JSON: NaN, which is no valid setting.
        let name = name.map_or("configuration", String::as_str);
        Some((name.to_owned(), text(&here, name), text(&there, name)))
    }
}

/// Checks the configuration of a table: what Python asks before it makes one. For a table with rows
/// on disk it gives how this process reads them, else nothing.
///
/// # Errors
/// `InvalidArgument` that names the table or the field, and the value.
pub fn check(json: &[u8]) -> Result<String> {
    let settings = Settings::parse(json)?;
    let reads = |tier: TierConfig| reads_by(&tier.directories, tier.direct);
    Ok(settings.tier.map_or_else(String::new, reads))
}

/// Reads what the field `of` is, or the whole configuration.
fn read<T: DeserializeOwned>(value: Value, of: &str) -> Result<T> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = match (of, path.as_str()) {
            // What is missing or unknown is named by the cause.
            ("", ".") => return invalid(format_args!("{}", error.inner())),
            ("", field) => field.to_owned(),
            (of, ".") => of.to_owned(),
            (of, field) => format!("{of}.{field}"),
        };
        invalid(format_args!("in the field {field:?}: {}", error.inner()))
    })
}

fn invalid(why: std::fmt::Arguments<'_>) -> Error {
    Error::invalid(format!("the configuration of a table is not valid: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Settings as _;
    use mx_rec_kernels::{Distribution, Initializer, Mode};

    fn text(initializer: &str, more: &str) -> Vec<u8> {
        format!(
            "{{\"name\": \"t\", \"dim\": 4, \"capacity\": 10, \"seed\": 18446744073709551615, \
                                                                      \"init_param\": 0.5, \
                                                                      \"padding_keys\": \
                                                                      [-9223372036854775808], \
                                                                      \"initializer\": \
                                                                      {initializer}{more}}}"
        )
        .into_bytes()
    }

    const SCALING: &str =
        "{\"kind\": \"variance_scaling\", \"scale\": 2.0, \"mode\": \"fan_avg\", \"distribution\": \
                                                                               \"uniform\", \
                                                                               \"fan_in\": 10, \
                                                                               \"fan_out\": 4}";

    #[test]
    fn a_whole_configuration_is_read_with_its_extremes() -> Result<()> {
        let settings = Settings::parse(&text(SCALING, ", \"track_changes\": true"))?;
        assert!(settings.track_changes && !Settings::parse(&text(SCALING, ""))?.track_changes);
        let config = settings.table;
        let sketch = text(SCALING, ", \"admission_sketch_bytes\": 1099511627776");
        let bytes = Settings::parse(&sketch)?.table.admission_sketch_bytes;
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
    fn what_is_missing_unknown_or_out_of_range_is_named() {
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
            (
                text("{\"kind\": \"zeros\"}", ", \"tier\": {\"ram_rows\": -1}"),
                "tier.ram_rows",
            ),
            (
                text(
                    "{\"kind\": \"zeros\"}",
                    ", \"tier\": {\"ram_rows\": 0, \"directories\": [\"/ssd\"]}",
                ),
                "ram_rows must be 1 to 2000000000 (table=t, ram_rows=0)",
            ),
            (
                text(
                    "{\"kind\": \"zeros\"}",
                    ", \"tier\": {\"ram_rows\": 1, \"directories\": []}",
                ),
                "one directory or more (table=t)",
            ),
            (
                text(
                    "{\"kind\": \"zeros\"}",
                    ", \"tier\": {\"ram_rows\": 1, \"directories\": [], \"colour\": 1}",
                ),
                "colour",
            ),
            (b"{\"name\": \"t\"}".to_vec(), "`dim`"),
            (b"{\"name\": \"t\", \"dim\": -1}".to_vec(), "\"dim\""),
            (b"{\"name\": null}".to_vec(), "\"name\""),
            (
                text("{\"kind\": \"constant\", \"value\": \"a\"}", ""),
                "\"initializer",
            ),
            (text("{}", ""), "kind"),
            (b"[]".to_vec(), "JSON object"),
            (b"\xff\x00".to_vec(), "not valid"),
            (
                text("{\"kind\": \"constant\", \"value\": 1e39}", ""),
                "value must be finite (value=inf, table=t)",
            ),
            (
                text(
                    "{\"kind\": \"random_normal\", \"mean\": 0, \"stddev\": -1}",
                    "",
                ),
                "(stddev=-1, table=t)",
            ),
        ] {
            let message = check(&json)
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(message.contains(named), "{message}");
        }
    }

    /// The names in backticks of an error.
    fn names(message: &str) -> Vec<&str> {
        message.split('`').skip(1).step_by(2).collect()
    }

    #[test]
    fn the_op_s_documentation_names_every_setting_and_every_initializer() {
        let doc = crate::ops::definition("MxRecTable").map_or("", |def| def.doc);
        for (json, least) in [
            (text("{\"kind\": \"zeros\"}", ", \"colour\": 1"), 8),
            (text("{\"kind\": \"orthogonal\"}", ""), 7),
        ] {
            // What the engine expects is what it lists when it meets something else.
            let message = check(&json).map_or_else(|error| error.to_string(), |_| String::new());
            let known = names(&message);
            assert!(known.len() > least, "{message}");
            for name in &known[1..] {
                assert!(doc.contains(name), "{name} is not in: {doc}");
            }
        }
        for name in [TRACK_CHANGES, TIER, ANY_SEED] {
            assert!(doc.contains(name), "{name} is not in: {doc}");
        }
    }

    #[test]
    fn whoever_takes_any_seed_agrees_with_a_table_of_another_and_with_nothing_else() -> Result<()> {
        let made = Settings::parse(&text(SCALING, ""))?;
        let mut asked = Settings::parse(&text(SCALING, ", \"any_seed\": true"))?;
        assert_eq!(made.difference(&asked), None);
        asked.table.seed = 7;
        assert_eq!(made.difference(&asked), None);
        // The other way round the table's seed is nobody's choice, and 7 is asked for.
        let found = asked.difference(&made).unwrap_or_default();
        assert_eq!((found.0.as_str(), found.1.as_str()), ("seed", "7"));
        asked.table.dim = 5;
        let found = made.difference(&asked).unwrap_or_default();
        let expected = ("dim".to_owned(), "4".to_owned(), "5".to_owned());
        assert_eq!(found, expected);
        Ok(())
    }

    #[test]
    fn the_setting_that_differs_is_named_with_both_values() -> Result<()> {
        let settings = |json: &[u8]| Settings::parse(json);
        let one = settings(&text(SCALING, ""))?;
        assert_eq!(one.difference(&one.clone()), None);
        let zeros = settings(&text("{\"kind\": \"zeros\"}", ""))?;
        let found = one.difference(&zeros).unwrap_or_default();
        assert_eq!(found.0, "initializer");
        assert!(
            found.1.contains("fan_avg") && found.2.contains("zeros"),
            "{found:?}"
        );
        let sketch = settings(&text(SCALING, ", \"admission_sketch_bytes\": 2048"))?;
        let expected = ("admission_sketch_bytes", "none", "2048");
        let expected = (
            expected.0.to_owned(),
            expected.1.to_owned(),
            expected.2.to_owned(),
        );
        assert_eq!(one.difference(&sketch), Some(expected));
        let tracks = settings(&text(SCALING, ", \"track_changes\": true"))?;
        let found = tracks.difference(&one).unwrap_or_default();
        assert_eq!(
            (found.0.as_str(), found.1.as_str()),
            ("track_changes", "true")
        );
        let tier = ", \"tier\": {\"ram_rows\": 7, \"directories\": [\"/ssd\"]}";
        let found = settings(&text(SCALING, tier))?.difference(&one);
        let (name, here, there) = found.unwrap_or_default();
        assert_eq!((name.as_str(), there.as_str()), ("tier", "none"));
        assert!(here.contains("/ssd"), "{here}");
        Ok(())
    }
}
