//! A table in a graph, and the nodes that tests make of it.

use mx_rec_host_tests::{Graph, Output, Tensor};
use serde_json::{json, Value};

/// The nodes of a table.
#[derive(Clone, Copy)]
pub(crate) struct Table<'g> {
    graph: &'g Graph,
    /// What lookups take.
    pub(crate) variable: Output<'g>,
    /// Its number.
    pub(crate) handle: Output<'g>,
}

/// The settings of a table of `dim` columns whose rows start at 0.5; `more` replaces some.
pub(crate) fn settings(name: &str, dim: usize, more: Value) -> Value {
    let mut settings = json!({
        "name": name, "dim": dim, "capacity": 1000, "seed": 7, "init_param": 1.0,
        "padding_keys": [], "initializer": {"kind": "constant", "value": 0.5},
    });
    let (fields, more) = (settings.as_object_mut(), more.as_object().cloned());
    fields
        .expect("an object")
        .extend(more.expect("an object"));
    settings
}

impl<'g> Table<'g> {
    /// A table by [`settings`].
    pub(crate) fn new(graph: &'g Graph, name: &str, dim: usize, more: Value) -> Table<'g> {
        let config = settings(name, dim, more).to_string();
        let config = graph.constant(
            &format!("{name}/config"),
            &Tensor::vector(config.as_bytes()),
        );
        let like = Tensor::new::<f32>(&[0, dim as i64], &[]);
        let like = graph.constant(&format!("{name}/like"), &like);
        let node = graph
            .node("MxRecTable", &format!("{name}/table"))
            .input(config)
            .input(like)
            .finish()
            .expect("a table");
        Table {
            graph,
            variable: node.output(0),
            handle: node.output(1),
        }
    }
}
