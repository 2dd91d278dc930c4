//! The rule for concatenations of lookups: rows of several tables that are only put side by side,
//! and the slices of the gradient of the whole that go back to them.

use super::consumers::{same, Consumers, Reading};
use super::describe::{described, quoted};
use super::graph_def::{Graph, InputSource, Node, NodeInput};
use super::lists::reads_ids;
use super::readers::{row_readers, source_of, RowReader};
use super::sizes::{Size, SizeReader};
use super::tensors::{constant, dims, Dims};
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
    /// Which of its outputs they are.
    pub output: u64,
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
        for reader in row_readers(graph, at)? {
            // Evaluation has no op that concatenates.
            if reads_ids(graph.node(at)?)? {
                readers.insert((at, reader.output), reader);
            }
        }
    }
    if readers.len() < 2 {
        return Ok(Vec::new());
    }
    let consumers = Consumers::new(graph);
    let rule = Rule {
        graph,
        consumers,
        readers,
    };
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
    consumers: Consumers,
    readers: HashMap<(usize, u64), RowReader<'a>>,
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
        let inputs: Vec<&NodeInput<'a>> = graph
            .inputs(node)
            .iter()
            .filter(|input| !input.is_control())
            .collect();
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
                output: part.reader.output,
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
            let (InputSource::Node(at), Some(output)) = (tensor.source, tensor.output) else {
                return Ok(None);
            };
            tensors.push((at, output));
            if let Some(reader) = self.readers.get(&(at, output)) {
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
                fault.get_or_insert(format!(
                    "there are several nodes of the name {}",
                    quoted(reader.name)
                ));
            }
            if let Some(why) = part.reader.misplaced(graph)? {
                fault.get_or_insert(why);
            }
            for &(tensor, output) in &part.tensors {
                let this = || -> Result<String> { Ok(described(graph.node(tensor)?)) };
                if !seen.insert((tensor, output)) {
                    fault.get_or_insert(format!("{} is in it twice", this()?));
                }
                if let Some(waiting) = self.consumers.waiting(graph, tensor)? {
                    let why = format!("{} waits for {}", described(graph.node(waiting)?), this()?);
                    fault.get_or_insert(why);
                }
                for Reading { node, .. } in self.consumers.of(graph, tensor, output)? {
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
        let source = source_of(graph, axis);
        let found = source.map(constant).transpose()?.flatten();
        let given = found.and_then(|found| found.integers);
        let is_last = match (given.as_deref(), rank) {
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

    fn dims_of(&self, part: &Part<'a>) -> Result<Option<Dims>> {
        let node = self.graph.node(part.reader.node)?;
        dims(
            self.graph,
            &NodeInput {
                node: node.name,
                output: Some(part.reader.output),
                source: InputSource::Node(part.reader.node),
            },
        )
    }

    fn rank(&self, parts: &[Part<'a>]) -> Result<Option<i64>> {
        for part in parts {
            if let Some(dims) = self.dims_of(part)? {
                return Ok(Some(dims.len() as i64));
            }
        }
        Ok(None)
    }

    /// Adds the gradients that are columns of the one of the whole; returns how many cannot be read
    /// there.
    fn add_gradients(&self, parts: &[Part<'a>], planned: &mut PlannedConcat) -> Result<usize> {
        let graph = self.graph;
        let widths = parts
            .iter()
            .map(|part| Ok(self.dims_of(part)?.and_then(|dims| dims.last().copied()?)))
            .collect::<Result<Option<Vec<i64>>>>()?;
        let mut kept = 0;
        let mut first = 0;
        for (place, part) in parts.iter().enumerate() {
            let dim = widths
                .as_ref()
                .and_then(|widths| widths.get(place).copied());
            let mut found: Vec<(NodeInput<'a>, Vec<String>, bool)> = Vec::new();
            for taken in part.reader.gradients(graph, &self.consumers)? {
                let node = graph.node(taken.node)?;
                let can = node.op == "MxRecReduce" || node.int("C")? == Some(1);
                let name = node.name.to_owned();
                match found
                    .iter_mut()
                    .find(|(tensor, ..)| same(tensor, &taken.gradient))
                {
                    Some((_, readers, all)) => {
                        readers.push(name);
                        *all &= can;
                    }
                    None => found.push((taken.gradient, vec![name], can)),
                }
            }
            for (tensor, readers, can) in found {
                let columns = Columns {
                    graph,
                    place,
                    first,
                    widths: widths.as_deref(),
                };
                match (columns.whole(&tensor)?, dim) {
                    (Some(sliced), Some(dim)) if can => {
                        planned.left_out.extend(sliced.left_out);
                        planned.gradients.push(PlannedColumns {
                            tensor: tensor.tensor(),
                            whole: sliced.whole,
                            first,
                            dim,
                            readers,
                            waits: sliced.waits,
                        });
                    }
                    _ => kept += 1,
                }
            }
            first += dim.unwrap_or(0);
        }
        Ok(kept)
    }
}

/// The search for the gradient that one of a part is columns of.
struct Columns<'g, 'a> {
    graph: &'g Graph<'a>,
    /// The place of the part in the concatenation.
    place: usize,
    /// The first of its columns.
    first: i64,
    /// How many columns each part has, if that is known.
    widths: Option<&'g [i64]>,
}

/// What was found.
struct Sliced {
    whole: String,
    waits: Vec<String>,
    left_out: Vec<String>,
}

impl<'a> Columns<'_, 'a> {
    /// The tensor that `tensor` is the columns of this part of.
    fn whole(&self, tensor: &NodeInput<'a>) -> Result<Option<Sliced>> {
        let graph = self.graph;
        let (mut tensor, mut left_out, mut waits) = (*tensor, Vec::new(), Vec::new());
        for _ in 0..MOST_PASSED {
            let Some(node) = source_of(graph, &tensor) else {
                return Ok(None);
            };
            left_out.push(tensor.tensor());
            for input in graph.inputs(node).iter().filter(|input| input.is_control()) {
                if !self.waits_for_slices(input)? {
                    waits.push(input.node.to_owned());
                }
            }
            let given = |place| graph.data_input(node, place);
            let whole = match (node.op, given(0), given(1), given(2)) {
                ("Identity", Some(before), ..) => {
                    tensor = *before;
                    continue;
                }
                ("Slice", Some(whole), Some(begin), Some(size)) => {
                    (self.is_begin(begin)? && self.is_size(size)?).then_some(whole)
                }
                ("SplitV", Some(whole), Some(sizes), Some(axis)) => {
                    let is_own = tensor.output == Some(self.place as u64);
                    (is_own && self.are_sizes(sizes)? && self.is_last_axis(axis)?).then_some(whole)
                }
                _ => None,
            };
            return Ok(whole.map(|whole| Sliced {
                whole: whole.tensor(),
                waits,
                left_out,
            }));
        }
        Ok(None)
    }

    /// Whether a node waits for slices alone, as the one by which TensorFlow ties the gradients of
    /// an op together: these have no effect but their values.
    fn waits_for_slices(&self, input: &NodeInput<'a>) -> Result<bool> {
        let graph = self.graph;
        let Some(node) = source_of(graph, input).filter(|node| node.op == "NoOp") else {
            return Ok(false);
        };
        Ok(graph.inputs(node).iter().all(|input| {
            source_of(graph, input).is_some_and(|slice| {
                matches!(slice.op, "Slice" | "SplitV")
                    && !graph.inputs(slice).iter().any(NodeInput::is_control)
            })
        }))
    }

    fn number(&self, tensor: &NodeInput<'a>) -> Result<Option<i64>> {
        let unknown = Dims::new();
        let mut sizes = SizeReader::new(self.graph, &[], &unknown);
        let found = sizes.read(tensor)?;
        Ok(match found.as_ref().map(|found| &found.elements[..]) {
            Some([Size::Known(number)]) => Some(*number),
            _ => None,
        })
    }

    /// Whether a tensor is the number of the last dimension.
    fn is_last_axis(&self, axis: &NodeInput<'a>) -> Result<bool> {
        let graph = self.graph;
        if self.number(axis)? == Some(-1) {
            return Ok(true);
        }
        // The axis of the concatenation modulo the rank of its inputs.
        let Some(node) = source_of(graph, axis) else {
            return Ok(false);
        };
        match (
            node.op,
            graph.data_input(node, 0),
            graph.data_input(node, 1),
        ) {
            ("FloorMod", Some(axis), Some(rank)) => {
                let (axis, rank) = (self.number(axis)?, self.number(rank)?);
                Ok(axis == Some(-1) || axis.zip(rank).is_some_and(|(axis, rank)| axis + 1 == rank))
            }
            _ => Ok(false),
        }
    }

    /// Whether a tensor says where the slice of this part begins.
    fn is_begin(&self, begin: &NodeInput<'a>) -> Result<bool> {
        let graph = self.graph;
        let Some(node) = source_of(graph, begin) else {
            return Ok(false);
        };
        if node.op == "Const" {
            let found = constant(node)?
                .and_then(|found| found.integers)
                .unwrap_or_default();
            return Ok(found.split_last().is_some_and(|(last, before)| {
                *last == self.first && before.iter().all(|&begin| begin == 0)
            }));
        }
        if node.op != "ConcatOffset" || begin.output != Some(self.place as u64) {
            return Ok(false);
        }
        let mut inputs = graph
            .inputs(node)
            .iter()
            .filter(|input| !input.is_control());
        let Some(axis) = inputs.next() else {
            return Ok(false);
        };
        let mut first = 0;
        for shape in inputs.take(self.place) {
            match self.last_size(shape)? {
                Some(size) => first += size,
                None => return Ok(false),
            }
        }
        Ok(first == self.first && self.is_last_axis(axis)?)
    }

    /// Whether a tensor is the shape of a slice of this part.
    fn is_size(&self, size: &NodeInput<'a>) -> Result<bool> {
        let own = self
            .widths
            .and_then(|widths| widths.get(self.place).copied());
        Ok(own.is_some() && self.last_size(size)? == own)
    }

    /// The last element of a tensor that is a shape.
    fn last_size(&self, shape: &NodeInput<'a>) -> Result<Option<i64>> {
        let graph = self.graph;
        let Some(node) = source_of(graph, shape) else {
            return Ok(None);
        };
        let of = match (node.op, shape.output) {
            ("Const", _) => {
                let found = constant(node)?.and_then(|found| found.integers);
                return Ok(found.and_then(|found| found.last().copied()));
            }
            ("Shape" | "ShapeN", Some(output)) => {
                graph.data_input(node, usize::try_from(output).unwrap_or(usize::MAX))
            }
            _ => None,
        };
        let known = of.map(|of| dims(graph, of)).transpose()?.flatten();
        Ok(known.and_then(|dims| dims.last().copied()?))
    }

    /// Whether a tensor is the widths of all parts: their shapes, side by side, and of these the
    /// last sizes.
    fn are_sizes(&self, sizes: &NodeInput<'a>) -> Result<bool> {
        let graph = self.graph;
        let (Some(widths), Some(mut node)) = (self.widths, source_of(graph, sizes)) else {
            return Ok(false);
        };
        if let Some(found) = constant(node)? {
            return Ok(found.integers.as_deref() == Some(widths));
        }
        if node.op == "Squeeze" {
            match graph
                .data_input(node, 0)
                .and_then(|before| source_of(graph, before))
            {
                Some(before) => node = before,
                None => return Ok(false),
            }
        }
        let (stacked, begin, size) = match (node.op, graph.data_input(node, 0)) {
            ("Slice", Some(stacked)) => (
                stacked,
                graph.data_input(node, 1),
                graph.data_input(node, 2),
            ),
            _ => return Ok(false),
        };
        let (Some(begin), Some(size), Some(stack)) = (begin, size, source_of(graph, stacked))
        else {
            return Ok(false);
        };
        let all = source_of(graph, size).map(constant).transpose()?.flatten();
        if all.and_then(|all| all.integers).as_deref() != Some(&[1, -1])
            || stack.op != "Pack"
            || stack.int("axis")? != Some(1)
            || !self.is_row_of_last(begin, stack)?
        {
            return Ok(false);
        }
        let shapes = graph
            .inputs(stack)
            .iter()
            .filter(|input| !input.is_control());
        let found = shapes
            .map(|shape| self.last_size(shape))
            .collect::<Result<Option<Vec<i64>>>>()?;
        Ok(found.as_deref() == Some(widths))
    }

    /// Whether a slice of shapes side by side begins where the last sizes are.
    fn is_row_of_last(&self, begin: &NodeInput<'a>, stack: &Node<'a>) -> Result<bool> {
        let graph = self.graph;
        let Some(node) = source_of(graph, begin) else {
            return Ok(false);
        };
        if let Some(found) = constant(node)? {
            let rank = graph.data_input(stack, 0).map(|shape| dims(graph, shape));
            let rank = rank
                .transpose()?
                .flatten()
                .and_then(|dims| dims.first().copied()?);
            return Ok(match (found.integers.as_deref(), rank) {
                (Some(&[row, 0]), Some(rank)) => row + 1 == rank,
                _ => false,
            });
        }
        match (
            node.op,
            graph.data_input(node, 0),
            graph.data_input(node, 1),
        ) {
            ("Pack", Some(row), Some(column)) => {
                Ok(self.number(column)? == Some(0) && self.is_last_axis(row)?)
            }
            _ => Ok(false),
        }
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
