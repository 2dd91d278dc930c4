//! Weights of the ids of bags: which products of rows are rows times one weight for each id, and
//! what reads products only for a gradient that nobody asked for.

use super::consumers::same;
use super::describe::described;
use super::graph_def::{Graph, Node, NodeInput};
use super::known::{holds, if_known, Found, Known};
use super::lists::members;
use super::readers::{source_of, RowReader};
use super::tensors::{dims, integers_of, Dims};
use mx_rec_kernels::Result;
use serde::Serialize;
use std::collections::HashSet;

/// So many nodes are followed from a tensor to the one that it has its shape of.
const MOST_STEPS: usize = 32;

/// The ops that multiply matrices, of which the first may hold weights.
const PRODUCTS: [&str; 2] = ["BatchMatMul", "BatchMatMulV2"];

/// Ops whose result has the shape of their first input.
const UNARY: [&str; 22] = [
    "Identity",
    "StopGradient",
    "Cast",
    "Abs",
    "Neg",
    "Exp",
    "Log",
    "Log1p",
    "Sqrt",
    "Rsqrt",
    "Square",
    "Sigmoid",
    "Tanh",
    "Relu",
    "Softplus",
    "Softmax",
    "LogSoftmax",
    "Reciprocal",
    "LogicalNot",
    "ZerosLike",
    "OnesLike",
    "CheckNumerics",
];

/// Ops on each pair of elements.
const BINARY: [&str; 16] = [
    "Add",
    "AddV2",
    "Sub",
    "Mul",
    "RealDiv",
    "Maximum",
    "Minimum",
    "Pow",
    "Greater",
    "GreaterEqual",
    "Less",
    "LessEqual",
    "Equal",
    "NotEqual",
    "LogicalAnd",
    "LogicalOr",
];

/// What the rows of a lookup are multiplied with before they are added up.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedWeights {
    /// A weight for each id: the shape of the ids, and one dimension of size 1.
    pub tensor: String,
    /// That dimension, counted from the end: -1, or -2 of the first matrix of a product.
    pub axis: i64,
}

/// A tensor of weights.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) input: NodeInput<'a>,
    /// Whether they are the first matrix of a product.
    pub(super) is_matrix: bool,
}

impl Weights<'_> {
    pub(super) fn planned(&self) -> PlannedWeights {
        PlannedWeights {
            tensor: self.input.tensor(),
            axis: if self.is_matrix { -2 } else { -1 },
        }
    }

    /// Whether these are the same weights.
    pub(super) fn are(&self, other: &Weights<'_>) -> bool {
        self.is_matrix == other.is_matrix && same(&self.input, &other.input)
    }
}

/// What a node does with the rows that it multiplies.
pub(super) enum Multiplied<'a> {
    /// It multiplies the rows of each id with the id's weight.
    Weighted(Weights<'a>),
    /// It does so with a tensor that is not known to be a weight for each id.
    Doubtful,
    /// Nobody reads its result: it is part of a gradient that was not asked for.
    Unread,
    /// Something else.
    Otherwise,
}

/// Whether a node multiplies matrices.
pub(super) fn is_product(node: &Node<'_>) -> bool {
    PRODUCTS.contains(&node.op)
}

/// What node `at`, of op Mul or a product of matrices, does with the rows at its input `place`.
/// `shape` is that of the rows, and `is_summed` says whether its result is summed over bags.
pub(super) fn multiplied<'a>(
    graph: &Graph<'a>,
    reader: &RowReader<'a>,
    shape: Option<&Dims>,
    (at, place): (usize, usize),
    is_summed: bool,
) -> Result<Multiplied<'a>> {
    let node = graph.node(at)?;
    let is_matrix = is_product(node);
    let sums = match is_matrix {
        true => place == 1 && !node.flag("adj_x")? && !node.flag("adj_y")?,
        false => is_summed,
    };
    if !sums {
        return Ok(match is_unread(graph, at, 3)? {
            true => Multiplied::Unread,
            false => Multiplied::Otherwise,
        });
    }
    let Some(&input) = graph.data_input(node, 1 - place.min(1)) else {
        return Ok(Multiplied::Otherwise);
    };
    let weights = Weights { input, is_matrix };
    Ok(match if_known(fits(graph, reader, shape, &weights))? {
        Some(()) => Multiplied::Weighted(weights),
        None => Multiplied::Doubtful,
    })
}

/// Why weights cannot be read before rows are: they depend on rows, or on the shapes of rows, or
/// on an update.
pub(super) fn depends<'a>(graph: &Graph<'a>, weights: &Weights<'a>) -> Result<Option<String>> {
    let (mut seen, mut waiting) = (HashSet::new(), Vec::from_iter(weights.input.source.at()));
    while let Some(at) = waiting.pop() {
        if !seen.insert(at) {
            continue;
        }
        let node = graph.node(at)?;
        if matches!(
            node.op,
            "MxRecRead" | "MxRecFind" | "MxRecRestore" | "MxRecRestorePooled"
        ) {
            let this = described(node);
            return Ok(Some(format!(
                "its weights are computed from rows, those of {this}"
            )));
        }
        if matches!(
            node.op,
            "MxRecUpdate" | "MxRecAssign" | "MxRecRemove" | "MxRecWriteRows"
        ) {
            let this = described(node);
            return Ok(Some(format!("its weights wait for {this}")));
        }
        waiting.extend(graph.sources(node));
    }
    Ok(None)
}

/// Whether nothing reads or waits for the result of a node but nodes of a gradient of which the
/// same is true.
fn is_unread(graph: &Graph<'_>, at: usize, steps: usize) -> Result<bool> {
    if graph.waiting(at)?.is_some() {
        return Ok(false);
    }
    for reading in graph.readers(at, 0)? {
        let node = graph.node(reading.node)?;
        let passes = matches!(node.op, "Sum" | "Reshape" | "Identity") && reading.place == 0;
        let next = steps.checked_sub(1).filter(|_| passes);
        match next {
            Some(steps) if is_unread(graph, reading.node, steps)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Ends a search if weights are not one for each id of a reader whose rows have this shape.
fn fits(
    graph: &Graph<'_>,
    reader: &RowReader<'_>,
    shape: Option<&Dims>,
    weights: &Weights<'_>,
) -> Found<()> {
    let (of_rows, mut given) = (shape.known()?, dims(graph, &weights.input).known()?);
    let axis = given
        .len()
        .checked_sub(if weights.is_matrix { 2 } else { 1 });
    let axis = axis.known()?;
    holds(given.len() == of_rows.len() && given.get(axis) == Some(&Some(1)) && given.len() >= 2)?;
    // A product of more matrices than one in each batch is not looked at.
    holds(!weights.is_matrix || given.len() == 3)?;
    given.remove(axis);
    let of_ids = of_rows.get(..of_rows.len() - 1).unwrap_or_default();
    if given.iter().all(Option::is_some) && given == of_ids {
        return Ok(());
    }
    let node = source_of(graph, &weights.input).known()?;
    let before = graph.data_input(node, 0).known()?;
    let added = match node.op {
        "ExpandDims" => expanded(graph, node, of_rows.len())?,
        "StridedSlice" => added(graph, node, of_rows.len())?,
        _ => return None.known(),
    };
    holds(added == axis)?;
    let ids = match source_of(graph, &reader.ids) {
        Some(source) if source.op == "MxRecIdOffset" && source.int("P")? == Some(0) => {
            // Behind the handles there are as many ids, as there are inverses behind the offsets.
            let place = reader.ids.output.and_then(|at| usize::try_from(at).ok());
            let place = place.known()?;
            holds(place >= members(source)?)?;
            *graph.data_input(source, place).known()?
        }
        _ => reader.ids,
    };
    let (one, other) = (shape_root(graph, *before)?, shape_root(graph, ids)?);
    holds(same(&one, &other))
}

/// The axis that ExpandDims adds to a tensor of then `rank` dimensions.
fn expanded(graph: &Graph<'_>, node: &Node<'_>, rank: usize) -> Found<usize> {
    let axes = integers_of(graph, graph.data_input(node, 1).known()?).known()?;
    match axes[..] {
        [axis] if axis < 0 => usize::try_from(axis + rank as i64).ok().known(),
        [axis] => usize::try_from(axis).ok().known(),
        _ => None.known(),
    }
}

/// The axis that StridedSlice adds to a tensor of then `rank` dimensions, of which it takes
/// everything: `x[..., None]`, `x[:, None]`.
fn added(graph: &Graph<'_>, node: &Node<'_>, rank: usize) -> Found<usize> {
    let strides = integers_of(graph, graph.data_input(node, 3).known()?).known()?;
    holds(strides.len() <= 62 && strides.iter().all(|stride| stride.abs() == 1))?;
    let mask = |name| -> Result<i64> { Ok(node.int(name)?.unwrap_or(0)) };
    let (begin, end) = (mask("begin_mask")?, mask("end_mask")?);
    let (new, ellipsis) = (mask("new_axis_mask")?, mask("ellipsis_mask")?);
    holds(mask("shrink_axis_mask")? == 0 && new.count_ones() == 1)?;
    let all = (1_i64 << strides.len()) - 1;
    // All of each dimension is taken that is named, and of those behind them.
    let rest = all & !new & !ellipsis;
    holds(begin & end & rest == rest)?;
    let at = new.trailing_zeros() as usize;
    match ellipsis {
        0 => Ok(at),
        // The dots come first, and stand for all dimensions but those behind them.
        1 => rank.checked_sub(strides.len() - at).known(),
        _ => None.known(),
    }
}

/// The tensor of which a tensor has its shape, as far as ops on each element go.
fn shape_root<'a>(graph: &Graph<'a>, tensor: NodeInput<'a>) -> Result<NodeInput<'a>> {
    let mut tensor = tensor;
    for _ in 0..MOST_STEPS {
        let Some(node) = source_of(graph, &tensor) else {
            break;
        };
        if tensor.output != Some(0) {
            break;
        }
        let (one, other) = (graph.data_input(node, 0), graph.data_input(node, 1));
        let is_scalar = |input: Option<&NodeInput<'_>>| -> Result<bool> {
            let dims = input.map(|input| dims(graph, input)).transpose()?.flatten();
            Ok(dims.is_some_and(|dims| dims.is_empty()))
        };
        let next = match node.op {
            op if UNARY.contains(&op) => one,
            op if BINARY.contains(&op) && is_scalar(other)? => one,
            op if BINARY.contains(&op) && is_scalar(one)? => other,
            _ => None,
        };
        match next {
            Some(next) => tensor = *next,
            None => break,
        }
    }
    Ok(tensor)
}
