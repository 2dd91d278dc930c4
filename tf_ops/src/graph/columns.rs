//! Gradients that are columns of the gradient of a concatenation: the slices that tf.gradients
//! makes for its inputs, those of `tf.split`, and what passes them on.

use super::consumers::same;
use super::graph_def::{Graph, Node, NodeInput};
use super::readers::source_of;
use super::sizes::{Size, SizeReader};
use super::tensors::{constant, dims, integers_of, Dims};
use mx_rec_kernels::Result;
use std::collections::HashSet;

/// Ops that pass a tensor on.
const MOST_PASSED: usize = 8;

/// So many nodes are looked at that compute where a slice begins and ends.
const MOST_SIZES: usize = 4096;

/// A gradient that another one has as columns, with the same sizes before the last.
pub(super) struct Sliced {
    /// The other one.
    pub(super) whole: String,
    /// The first of the columns.
    pub(super) first: i64,
    /// How many there are.
    pub(super) dim: i64,
    /// Names of the nodes that the slice waits for, beside the slices of `whole`.
    pub(super) waits: Vec<String>,
    /// Names of the nodes that tell the sizes of what was concatenated.
    pub(super) shapes: Vec<String>,
    /// The tensors that need not be computed: the slice, and its copies.
    pub(super) left_out: Vec<String>,
}

/// Looks for the slice that a tensor is.
pub(super) fn sliced<'a>(graph: &Graph<'a>, tensor: &NodeInput<'a>) -> Result<Option<Sliced>> {
    let mut search = Search {
        graph,
        waits: Vec::new(),
        shapes: Vec::new(),
    };
    let (mut tensor, mut left_out) = (*tensor, Vec::new());
    for _ in 0..MOST_PASSED {
        let Some(node) = source_of(graph, &tensor) else {
            return Ok(None);
        };
        left_out.push(tensor.tensor());
        let given = |place| graph.data_input(node, place);
        let (whole, sizes) = match node.op {
            "Identity" => (given(0), [None, None]),
            "Reshape" => (given(0), [given(1), None]),
            "Slice" | "SplitV" => (given(0), [given(1), given(2)]),
            "Split" => (given(1), [given(0), None]),
            _ => return Ok(None),
        };
        let Some(whole) = whole else {
            return Ok(None);
        };
        search.note(node, &sizes)?;
        let found = match node.op {
            "Identity" => None,
            // Feature columns and layers give a tensor of two dimensions the shape that it has.
            "Reshape" if is_matrix_of(graph, &tensor, whole)? => None,
            "Reshape" => return Ok(None),
            _ => Some(search.columns(node, &tensor, whole)?),
        };
        match found {
            None => tensor = *whole,
            Some(columns) => {
                return Ok(columns.map(|(first, dim)| Sliced {
                    whole: whole.tensor(),
                    first,
                    dim,
                    waits: search.waits,
                    shapes: search.shapes,
                    left_out,
                }))
            }
        }
    }
    Ok(None)
}

/// Whether two tensors are matrices of the same width.
fn is_matrix_of(graph: &Graph<'_>, one: &NodeInput<'_>, other: &NodeInput<'_>) -> Result<bool> {
    let width = |dims: Option<Dims>| match dims.as_deref() {
        Some(&[_, width]) => width,
        _ => None,
    };
    let (one, other) = (width(dims(graph, one)?), width(dims(graph, other)?));
    Ok(one.is_some() && one == other)
}

struct Search<'g, 'a> {
    graph: &'g Graph<'a>,
    waits: Vec<String>,
    shapes: Vec<String>,
}

impl<'a> Search<'_, 'a> {
    /// Notes what a node that is left out waits for: TensorFlow lets the constants wait that it
    /// takes, if they are made in the same scope as it.
    fn note(&mut self, node: &Node<'a>, sizes: &[Option<&NodeInput<'a>>]) -> Result<()> {
        let graph = self.graph;
        self.note_waits(node)?;
        let mut waiting: Vec<NodeInput<'a>> = sizes.iter().flatten().map(|one| **one).collect();
        let mut seen = HashSet::new();
        while let (Some(input), true) = (waiting.pop(), seen.len() < MOST_SIZES) {
            let Some(at) = input.source.at().filter(|&at| seen.insert(at)) else {
                continue;
            };
            let node = graph.node(at)?;
            self.note_waits(node)?;
            if matches!(node.op, "Shape" | "ShapeN") {
                self.shapes.push(node.name.to_owned());
                continue;
            }
            waiting.extend(graph.data(node));
        }
        Ok(())
    }

    fn note_waits(&mut self, node: &Node<'a>) -> Result<()> {
        let graph = self.graph;
        for input in graph.waits(node) {
            if !waits_for_slices(graph, input) {
                self.waits.push(input.node.to_owned());
            }
        }
        Ok(())
    }

    /// Which columns of `whole` a node slices, the first and how many; `None` if it does not slice
    /// all of the other dimensions.
    fn columns(
        &self,
        node: &Node<'a>,
        tensor: &NodeInput<'a>,
        whole: &NodeInput<'a>,
    ) -> Result<Option<(i64, i64)>> {
        let graph = self.graph;
        let own = dims(graph, tensor)?;
        let rank = dims(graph, whole)?.or(own.clone()).map(|dims| dims.len());
        let given = |place| graph.data_input(node, place);
        let place = tensor.output.and_then(|place| usize::try_from(place).ok());
        let (axis, widths, place) = match (node.op, given(0), given(1), given(2)) {
            ("Slice", _, Some(begin), Some(size)) => return self.of_offset(begin, size, rank),
            ("SplitV", _, Some(sizes), Some(axis)) => (axis, self.sizes(sizes)?, place),
            ("Split", Some(axis), ..) => {
                let width = own.and_then(|dims| dims.last().copied().flatten());
                let split = node.int("num_split")?.unwrap_or(0);
                let count = usize::try_from(split).unwrap_or(0).min(MOST_SIZES);
                (axis, width.map(|width| vec![width; count]), place)
            }
            _ => return Ok(None),
        };
        let (Some(widths), Some(place)) = (widths, place) else {
            return Ok(None);
        };
        Ok(match self.is_last(axis, rank)? {
            true => at_place(&widths, place),
            false => None,
        })
    }

    /// The columns of a slice as the gradient of a concatenation has them.
    fn of_offset(
        &self,
        begin: &NodeInput<'a>,
        size: &NodeInput<'a>,
        rank: Option<usize>,
    ) -> Result<Option<(i64, i64)>> {
        let graph = self.graph;
        let Some(node) = source_of(graph, begin).filter(|node| node.op == "ConcatOffset") else {
            return Ok(None);
        };
        let mut inputs = graph.data(node);
        let (Some(axis), Some(place)) = (inputs.next(), begin.output) else {
            return Ok(None);
        };
        let shapes: Vec<_> = inputs.collect();
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        // Its own slice, as long as that input: then the sizes before the last are whole.
        let is_own = shapes.get(place).is_some_and(|shape| same(shape, size));
        if !is_own || !self.is_last(axis, rank)? {
            return Ok(None);
        }
        let shapes = shapes.into_iter().take(place + 1);
        let widths = shapes.map(|shape| self.last_size(shape));
        let widths = widths.collect::<Result<Option<Vec<i64>>>>()?;
        Ok(widths.and_then(|widths| at_place(&widths, place)))
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

    /// Whether a tensor is the number of the last of `rank` dimensions.
    fn is_last(&self, axis: &NodeInput<'a>, rank: Option<usize>) -> Result<bool> {
        let graph = self.graph;
        let (mut axis, mut rank) = (axis, rank.map(|rank| rank as i64));
        // The axis of the concatenation modulo the rank of its inputs.
        if let Some(node) = source_of(graph, axis).filter(|node| node.op == "FloorMod") {
            if let (Some(of), Some(by)) = (graph.data_input(node, 0), graph.data_input(node, 1)) {
                (axis, rank) = (of, self.number(by)?.or(rank));
            }
        }
        let number = self.number(axis)?;
        Ok(number == Some(-1) || number.is_some_and(|axis| Some(axis + 1) == rank))
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

    /// The sizes that a SplitV takes: constants, or the last ones of shapes side by side.
    fn sizes(&self, sizes: &NodeInput<'a>) -> Result<Option<Vec<i64>>> {
        let graph = self.graph;
        let Some(mut node) = source_of(graph, sizes) else {
            return Ok(None);
        };
        if let Some(found) = constant(node)? {
            return Ok(found.integers);
        }
        if node.op == "Squeeze" {
            let before = graph.data_input(node, 0);
            match before.and_then(|before| source_of(graph, before)) {
                Some(before) => node = before,
                None => return Ok(None),
            }
        }
        let given = |place| graph.data_input(node, place);
        let ("Slice", Some(stacked), Some(begin), Some(size)) =
            (node.op, given(0), given(1), given(2))
        else {
            return Ok(None);
        };
        let Some(stack) = source_of(graph, stacked).filter(|stack| stack.op == "Pack") else {
            return Ok(None);
        };
        if integers_of(graph, size)?.as_deref() != Some(&[1, -1])
            || stack.int("axis")? != Some(1)
            || !self.is_row_of_last(begin, stack)?
        {
            return Ok(None);
        }
        graph
            .data(stack)
            .map(|shape| self.last_size(shape))
            .collect()
    }

    /// Whether a slice of shapes side by side begins where the last sizes are.
    fn is_row_of_last(&self, begin: &NodeInput<'a>, stack: &Node<'a>) -> Result<bool> {
        let graph = self.graph;
        let Some(node) = source_of(graph, begin) else {
            return Ok(false);
        };
        let shape = graph.data_input(stack, 0).map(|shape| dims(graph, shape));
        let ranks = shape.transpose()?.flatten();
        let rank = ranks.and_then(|dims| dims.first().copied()?);
        if let Some(found) = constant(node)? {
            return Ok(match (found.integers.as_deref(), rank) {
                (Some(&[row, 0]), Some(rank)) => row + 1 == rank,
                _ => false,
            });
        }
        let (row, column) = (graph.data_input(node, 0), graph.data_input(node, 1));
        match (node.op, row, column) {
            ("Pack", Some(row), Some(column)) => {
                let rank = rank.and_then(|rank| usize::try_from(rank).ok());
                Ok(self.number(column)? == Some(0) && self.is_last(row, rank)?)
            }
            _ => Ok(false),
        }
    }
}

/// The columns of one of several slices side by side.
fn at_place(widths: &[i64], place: usize) -> Option<(i64, i64)> {
    let before = widths.get(..place)?;
    let dim = widths.get(place).copied().filter(|&dim| dim > 0)?;
    if before.iter().any(|&width| width <= 0) {
        return None;
    }
    let first = before
        .iter()
        .try_fold(0_i64, |sum, &width| sum.checked_add(width))?;
    Some((first, dim))
}

/// Whether a node waits for slices alone, as the one by which TensorFlow ties the gradients of an
/// op together: these have no effect but their values.
fn waits_for_slices(graph: &Graph<'_>, input: &NodeInput<'_>) -> bool {
    let Some(node) = source_of(graph, input).filter(|node| node.op == "NoOp") else {
        return false;
    };
    graph.inputs(node).iter().all(|input| {
        source_of(graph, input).is_some_and(|slice| {
            matches!(slice.op, "Slice" | "Split" | "SplitV") && graph.waits(slice).next().is_none()
        })
    })
}
