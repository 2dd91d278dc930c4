//! The rule for concatenations of lookups: rows of several tables that are only put side by side,
//! and the slices of the gradient of the whole that are summed for them.

use super::columns::sliced;
use super::consumers::Reading;
use super::describe::{described, quoted, several};
use super::graph_def::{Graph, InputSource, Node, NodeInput};
use super::lists::reads_ids;
use super::readers::{row_reader, RowReader};
use super::tensors::{dims, integers_of};
use mx_rec_kernels::Result;
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// Ops that pass a tensor on.
const MOST_PASSED: usize = 8;

/// One lookup whose rows are part of a concatenation.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedPart {
    /// Name of the node that reads the rows.
    pub lookup: String,
    /// Name of the table.
    pub table: String,
}

/// A gradient of one part that can be read in the gradient of the whole.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedColumns {
    /// The tensor.
    pub tensor: String,
    /// The gradient that it is columns of.
    pub whole: String,
    /// The first of its columns.
    pub first: i64,
    /// How many there are.
    pub dim: i64,
    /// Names of the nodes that take it for the rows of this part.
    pub readers: Vec<String>,
    /// Names of the nodes that what computes it waits for.
    pub waits: Vec<String>,
}

/// A concatenation of lookups.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedConcat {
    /// Name of the node that concatenates.
    pub node: String,
    /// Whether rows are copied straight to their places.
    pub fuses: bool,
    /// The lookups, in order.
    pub parts: Vec<PlannedPart>,
    /// Names of the nodes that read shapes of the rows.
    pub shapes: Vec<String>,
    /// Gradients that are read where they are.
    pub gradients: Vec<PlannedColumns>,
    /// Tensors that the fused graph does not read any more.
    pub left_out: Vec<String>,
    /// Why it is fused or not, a sentence.
    pub reason: String,
}

/// Finds the concatenations of lookups, in the order of the graph.
///
/// # Errors
/// `InvalidArgument` if an attribute cannot be read.
pub(super) fn find(graph: &Graph<'_>) -> Result<Vec<PlannedConcat>> {
    let mut readers = HashMap::new();
    for at in 0..graph.nodes.len() {
        // Evaluation has no op that concatenates.
        if reads_ids(graph.node(at)?)? {
            readers.extend(row_reader(graph, at)?.map(|reader| (at, reader)));
        }
    }
    if readers.len() < 2 {
        return Ok(Vec::new());
    }
    let rule = Rule { graph, readers };
    let mut found = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        if node.op == "ConcatV2" {
            found.extend(rule.judge(at, node)?);
        }
    }
    Ok(found)
}

struct Rule<'g, 'a> {
    graph: &'g Graph<'a>,
    readers: HashMap<usize, RowReader<'a>>,
}

/// An input of a concatenation that is rows of a lookup.
struct Part<'a> {
    reader: RowReader<'a>,
    /// The rows, and what passes them on to the concatenation: node and output.
    tensors: Vec<(usize, u64)>,
}

impl<'g, 'a> Rule<'g, 'a> {
    /// The entry of a concatenation in the plan; `None` for fewer than two lookups.
    fn judge(&self, at: usize, node: &Node<'a>) -> Result<Option<PlannedConcat>> {
        let graph = self.graph;
        let inputs: Vec<&NodeInput<'a>> = graph.data(node).collect();
        let Some((axis, inputs)) = inputs.split_last() else {
            return Ok(None);
        };
        let parts = inputs
            .iter()
            .map(|input| self.part(input))
            .collect::<Result<Vec<_>>>()?;
        if parts.iter().flatten().count() < 2 {
            return Ok(None);
        }
        let mut planned = PlannedConcat {
            node: node.name.to_owned(),
            fuses: false,
            parts: Vec::new(),
            shapes: Vec::new(),
            gradients: Vec::new(),
            left_out: Vec::new(),
            reason: String::new(),
        };
        let mut known: Vec<Part<'a>> = Vec::new();
        for (input, part) in inputs.iter().zip(parts) {
            let Some(part) = part else {
                planned.reason = format!("its input {} is no lookup", quoted(&input.tensor()));
                return Ok(Some(planned));
            };
            let node = graph.node(part.reader.node)?;
            planned.parts.push(PlannedPart {
                lookup: node.name.to_owned(),
                table: part.reader.table(),
            });
            known.push(part);
        }
        let (shapes, fault) = self.fault(at, node, axis, &known)?;
        if let Some(why) = fault {
            planned.reason = why;
            return Ok(Some(planned));
        }
        planned.fuses = true;
        planned.shapes = shapes;
        planned.left_out.push(axis.tensor());
        for &(at, output) in known.iter().flat_map(|part| &part.tensors) {
            planned
                .left_out
                .push(format!("{}:{output}", graph.node(at)?.name));
        }
        let kept = self.add_gradients(&known, &mut planned)?;
        planned.reason = reason(&planned, kept);
        Ok(Some(planned))
    }

    /// The lookup that an input comes from.
    fn part(&self, input: &NodeInput<'a>) -> Result<Option<Part<'a>>> {
        let mut tensors = Vec::new();
        let mut tensor = *input;
        for _ in 0..MOST_PASSED {
            let Some((at, output)) = tensor.place() else {
                return Ok(None);
            };
            tensors.push((at, output));
            if let Some(reader) = self.readers.get(&at) {
                let reader = *reader;
                return Ok(Some(Part { reader, tensors }));
            }
            let node = self.graph.node(at)?;
            match (node.op, self.graph.data_input(node, 0)) {
                ("Identity" | "StopGradient", Some(before)) => tensor = *before,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The nodes that read shapes of the parts, and why a concatenation of lookups stays.
    fn fault(
        &self,
        at: usize,
        node: &Node<'a>,
        axis: &NodeInput<'a>,
        parts: &[Part<'a>],
    ) -> Result<(Vec<String>, Option<String>)> {
        let graph = self.graph;
        let mut shapes = Vec::new();
        let mut fault = None;
        let mut seen = HashSet::new();
        for part in parts {
            let reader = graph.node(part.reader.node)?;
            if graph.find(reader.name) != InputSource::Node(part.reader.node) {
                fault.get_or_insert(several(reader));
            }
            if let Some(why) = part.reader.misplaced(graph)? {
                fault.get_or_insert(why);
            }
            for &(tensor, output) in &part.tensors {
                let this = || -> Result<String> { Ok(described(graph.node(tensor)?)) };
                if !seen.insert((tensor, output)) {
                    fault.get_or_insert(format!("{} is in it twice", this()?));
                }
                if let Some(waiting) = graph.waiting(tensor)? {
                    let why = format!("{} waits for {}", described(graph.node(waiting)?), this()?);
                    fault.get_or_insert(why);
                }
                for Reading { node, .. } in graph.readers(tensor, output)? {
                    let reading = graph.node(node)?;
                    let passes_on = part.tensors.iter().any(|&(next, _)| next == node);
                    match reading.op {
                        _ if node == at || passes_on => {}
                        "Shape" | "ShapeN" => shapes.push(reading.name.to_owned()),
                        _ => {
                            let why = format!(
                                "{} reads the rows of {}, too",
                                described(reading),
                                this()?
                            );
                            fault.get_or_insert(why);
                        }
                    }
                }
            }
        }
        let rank = self.rank(parts)?;
        let is_last = match (integers_of(graph, axis)?.as_deref(), rank) {
            (Some([-1]), _) => true,
            (Some(&[axis]), Some(rank)) => axis + 1 == rank,
            _ => false,
        };
        if !is_last {
            fault = Some(format!(
                "{} is not along the last dimension",
                described(node)
            ));
        }
        shapes.sort();
        shapes.dedup();
        Ok((shapes, fault))
    }

    fn rank(&self, parts: &[Part<'a>]) -> Result<Option<i64>> {
        for part in parts {
            if let Some(dims) = dims(self.graph, &self.graph.output_of(part.reader.node)?)? {
                return Ok(Some(dims.len() as i64));
            }
        }
        Ok(None)
    }

    /// Adds the gradients that are columns of the one of the whole; returns how many cannot be read
    /// there.
    fn add_gradients(&self, parts: &[Part<'a>], planned: &mut PlannedConcat) -> Result<usize> {
        let graph = self.graph;
        let mut kept = 0;
        for part in parts {
            for (tensor, readers) in part.reader.gradients(graph)? {
                let Some(found) = sliced(graph, &tensor)? else {
                    kept += 1;
                    continue;
                };
                planned.left_out.extend(found.left_out);
                planned.gradients.push(PlannedColumns {
                    tensor: tensor.tensor(),
                    whole: found.whole,
                    first: found.first,
                    dim: found.dim,
                    readers,
                    waits: found.waits,
                });
            }
        }
        Ok(kept)
    }
}

fn reason(planned: &PlannedConcat, kept: usize) -> String {
    let mut text = "rows are copied straight to their places".to_owned();
    match planned.gradients.len() {
        0 => {}
        n => text.push_str(&format!(
            ", and {n} gradients are read in the gradient of the whole"
        )),
    }
    if kept > 0 {
        text.push_str(&format!(
            "; {kept} gradients are tensors of their own as before"
        ));
    }
    text
}
