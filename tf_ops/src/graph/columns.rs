//! Gradients that are columns of the gradient of a concatenation: the slices that tf.gradients
//! makes for its inputs, those of `tf.split`, and what passes them on.

use super::consumers::same;
use super::graph_def::{Graph, Node, NodeInput};
use super::known::{holds, if_known, Found, Known};
use super::readers::source_of;
use super::sizes::SizeReader;
use super::tensors::{dims, integers_of, Dims};
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
    let search = Search {
        graph,
        waits: Vec::new(),
        shapes: Vec::new(),
    };
    if_known(search.sliced(tensor))
}

/// The width of a matrix.
fn width_of(graph: &Graph<'_>, tensor: &NodeInput<'_>) -> Found<i64> {
    match dims(graph, tensor).known()?[..] {
        [_, width] => width.known(),
        _ => None.known(),
    }
}

struct Search<'g, 'a> {
    graph: &'g Graph<'a>,
    waits: Vec<String>,
    shapes: Vec<String>,
}

impl<'a> Search<'_, 'a> {
    fn sliced(mut self, tensor: &NodeInput<'a>) -> Found<Sliced> {
        let graph = self.graph;
        let (mut tensor, mut left_out) = (*tensor, Vec::new());
        for _ in 0..MOST_PASSED {
            let node = source_of(graph, &tensor).known()?;
            left_out.push(tensor.tensor());
            let given = |place| graph.data_input(node, place);
            let (whole, sizes) = match node.op {
                "Identity" => (given(0), [None, None]),
                "Reshape" => (given(0), [given(1), None]),
                "Slice" | "SplitV" => (given(0), [given(1), given(2)]),
                "Split" => (given(1), [given(0), None]),
                _ => (None, [None, None]),
            };
            let whole = whole.known()?;
            self.note(node, &sizes)?;
            match node.op {
                "Identity" => {}
                // Feature columns and layers give a tensor of two dimensions the shape that it has.
                "Reshape" => holds(width_of(graph, &tensor)? == width_of(graph, whole)?)?,
                _ => {
                    let (first, dim) = self.columns(node, &tensor, whole)?;
                    return Ok(Sliced {
                        whole: whole.tensor(),
                        first,
                        dim,
                        waits: self.waits,
                        shapes: self.shapes,
                        left_out,
                    });
                }
            }
            tensor = *whole;
        }
        None.known()
    }

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

    /// Which columns of `whole` a node slices, the first and how many, if it slices all of the
    /// other dimensions.
    fn columns(
        &self,
        node: &Node<'a>,
        tensor: &NodeInput<'a>,
        whole: &NodeInput<'a>,
    ) -> Found<(i64, i64)> {
        let graph = self.graph;
        let own = dims(graph, tensor)?;
        let rank = dims(graph, whole)?.or(own.clone()).map(|dims| dims.len());
        let given = |place| graph.data_input(node, place).known();
        let (axis, widths) = match node.op {
            "Slice" => return self.of_offset(given(1)?, given(2)?, rank),
            "SplitV" => (given(2)?, self.sizes(given(1)?)?),
            _ => {
                let width = own.known()?.last().copied().flatten().known()?;
                let split = node.int("num_split")?.unwrap_or(0);
                let count = usize::try_from(split).unwrap_or(0).min(MOST_SIZES);
                (given(0)?, vec![width; count])
            }
        };
        self.expect_last(axis, rank)?;
        at_place(&widths, place_of(tensor)?)
    }

    /// The columns of a slice as the gradient of a concatenation has them.
    fn of_offset(
        &self,
        begin: &NodeInput<'a>,
        size: &NodeInput<'a>,
        rank: Option<usize>,
    ) -> Found<(i64, i64)> {
        let graph = self.graph;
        let node = source_of(graph, begin).filter(|node| node.op == "ConcatOffset");
        let mut inputs = graph.data(node.known()?);
        let (axis, place) = (inputs.next().known()?, place_of(begin)?);
        let shapes: Vec<_> = inputs.collect();
        // Its own slice, as long as that input: then the sizes before the last are whole.
        holds(same(shapes.get(place).known()?, size))?;
        self.expect_last(axis, rank)?;
        let shapes = shapes.into_iter().take(place + 1);
        let widths = shapes.map(|shape| self.last_size(shape));
        at_place(&widths.collect::<Found<Vec<i64>>>()?, place)
    }

    fn number(&self, tensor: &NodeInput<'a>) -> Found<i64> {
        SizeReader::new(self.graph, &[], &Dims::new()).number(tensor)
    }

    /// Ends the search if a tensor is not the number of the last of `rank` dimensions.
    fn expect_last(&self, axis: &NodeInput<'a>, rank: Option<usize>) -> Found<()> {
        let graph = self.graph;
        let (mut axis, mut rank) = (axis, rank.map(|rank| rank as i64));
        // The axis of the concatenation modulo the rank of its inputs.
        if let Some(node) = source_of(graph, axis).filter(|node| node.op == "FloorMod") {
            if let (Some(of), Some(by)) = (graph.data_input(node, 0), graph.data_input(node, 1)) {
                (axis, rank) = (of, if_known(self.number(by))?.or(rank));
            }
        }
        let number = self.number(axis)?;
        holds(number == -1 || Some(number + 1) == rank)
    }

    /// The last element of a tensor that is a shape.
    fn last_size(&self, shape: &NodeInput<'a>) -> Found<i64> {
        let graph = self.graph;
        let node = source_of(graph, shape).known()?;
        match node.op {
            "Const" => integers_of(graph, shape).known()?.last().copied().known(),
            "Shape" | "ShapeN" => {
                let of = graph.data_input(node, place_of(shape)?).known()?;
                dims(graph, of).known()?.last().copied().flatten().known()
            }
            _ => None.known(),
        }
    }

    /// The sizes that a SplitV takes: constants, or the last ones of shapes side by side.
    fn sizes(&self, sizes: &NodeInput<'a>) -> Found<Vec<i64>> {
        let graph = self.graph;
        let mut node = source_of(graph, sizes).known()?;
        if node.op == "Const" {
            return integers_of(graph, sizes).known();
        }
        if node.op == "Squeeze" {
            node = source_of(graph, graph.data_input(node, 0).known()?).known()?;
        }
        holds(node.op == "Slice")?;
        let given = |place| graph.data_input(node, place).known();
        let stack = source_of(graph, given(0)?).filter(|stack| stack.op == "Pack");
        let stack = stack.known()?;
        holds(integers_of(graph, given(2)?).known()? == [1, -1] && stack.int("axis")? == Some(1))?;
        self.expect_row_of_last(given(1)?, stack)?;
        let shapes = graph.data(stack);
        shapes.map(|shape| self.last_size(shape)).collect()
    }

    /// Ends the search if a slice of shapes side by side does not begin where the last sizes are.
    fn expect_row_of_last(&self, begin: &NodeInput<'a>, stack: &Node<'a>) -> Found<()> {
        let graph = self.graph;
        let node = source_of(graph, begin).known()?;
        let shape = graph.data_input(stack, 0).known()?;
        let rank = dims(graph, shape)?.and_then(|dims| dims.first().copied()?);
        if node.op == "Const" {
            return match (&integers_of(graph, begin).known()?[..], rank) {
                (&[row, 0], Some(rank)) => holds(row + 1 == rank),
                _ => None.known(),
            };
        }
        let given = |place| graph.data_input(node, place).known();
        holds(node.op == "Pack" && self.number(given(1)?)? == 0)?;
        let rank = rank.and_then(|rank| usize::try_from(rank).ok());
        self.expect_last(given(0)?, rank)
    }
}

/// Which output of its node a tensor is.
fn place_of(tensor: &NodeInput<'_>) -> Found<usize> {
    let place = tensor.output.and_then(|place| usize::try_from(place).ok());
    place.known()
}

/// The columns of one of several slices side by side.
fn at_place(widths: &[i64], place: usize) -> Found<(i64, i64)> {
    let dim = *widths.get(place).known()?;
    let before = widths.get(..place).unwrap_or_default();
    holds(dim > 0 && before.iter().all(|&width| width > 0))?;
    let mut before = before.iter();
    let first = before.try_fold(0_i64, |sum, &width| sum.checked_add(width));
    Ok((first.known()?, dim))
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
