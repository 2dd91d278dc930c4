//! Integer tensors of which shapes are computed: their elements as numbers, or as sizes of the
//! dimensions of one tensor of embeddings, which is enough to know what a gradient is repeated by.

use super::graph_def::{Graph, NodeInput};
use super::known::{holds, if_known, Found, Known as _};
use super::readers::source_of;
use super::tensors::{constant, dims, Dims};
use mx_rec_kernels::Result;

/// So many nodes are looked at for one tensor.
const MOST_NODES: usize = 128;

/// One element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// This number.
    Known(i64),
    /// The size of this dimension of the embeddings.
    Of(usize),
    /// The greater of that and 1.
    AtLeastOne(usize),
    /// 1, or 0 if that is 0.
    OneOrNone(usize),
}

use Size::{AtLeastOne, Known, Of, OneOrNone};

/// A scalar or vector of integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) elements: Vec<Size>,
    is_scalar: bool,
}

impl Sizes {
    fn vector(elements: Vec<Size>) -> Sizes {
        let is_scalar = false;
        Sizes {
            elements,
            is_scalar,
        }
    }

    fn scalar(element: Size) -> Sizes {
        let (elements, is_scalar) = (vec![element], true);
        Sizes {
            elements,
            is_scalar,
        }
    }

    /// The element of a scalar, or the only one of a vector.
    fn only(&self) -> Option<Size> {
        match self.elements[..] {
            [only] => Some(only),
            _ => None,
        }
    }
}

/// Computes integer tensors of a graph.
pub(super) struct SizeReader<'g, 'a> {
    graph: &'g Graph<'a>,
    /// The nodes whose output number `output` is the embeddings, as they are or passed on.
    embeddings: &'g [(usize, u64)],
    shape: &'g Dims,
    /// What the nodes that were looked at wait for.
    waits: Vec<String>,
    budget: usize,
}

impl<'g, 'a> SizeReader<'g, 'a> {
    pub(super) fn new(
        graph: &'g Graph<'a>,
        embeddings: &'g [(usize, u64)],
        shape: &'g Dims,
    ) -> Self {
        Self {
            graph,
            embeddings,
            shape,
            waits: Vec::new(),
            budget: MOST_NODES,
        }
    }

    /// Names of the nodes that those wait for which were looked at.
    pub(super) fn into_waits(self) -> Vec<String> {
        self.waits
    }

    /// The elements of a tensor.
    pub(super) fn read(&mut self, input: &NodeInput<'a>) -> Found<Sizes> {
        self.budget = MOST_NODES;
        self.value(input)
    }

    /// Whether a tensor is the shape of the embeddings.
    pub(super) fn is_of_embeddings(&mut self, input: &NodeInput<'a>) -> Result<bool> {
        let found = if_known(self.read(input))?;
        Ok(found.is_some_and(|found| !found.is_scalar && found.elements == self.of_embeddings()))
    }

    fn of_embeddings(&self) -> Vec<Size> {
        let sizes = self.shape.iter().enumerate();
        sizes
            .map(|(axis, size)| size.map_or(Of(axis), Known))
            .collect()
    }

    fn value(&mut self, input: &NodeInput<'a>) -> Found<Sizes> {
        let graph = self.graph;
        let node = source_of(graph, input).known()?;
        self.budget = self.budget.checked_sub(1).known()?;
        holds(input.output == Some(0))?;
        let given: Vec<NodeInput<'a>> = graph.data(node).copied().collect();
        self.waits.extend(graph.waited(node));
        Ok(match (node.op, &given[..]) {
            ("Const", []) => {
                let found = constant(node).known()?;
                holds(found.dims.len() < 2)?;
                let elements = found.integers.known()?.into_iter().map(Known);
                Sizes {
                    elements: elements.collect(),
                    is_scalar: found.dims.is_empty(),
                }
            }
            ("Identity" | "Cast", [of]) => self.value(of)?,
            ("Shape", [of]) => self.shape_of(of)?,
            ("Size", [of]) => Sizes::scalar(Known(self.value(of)?.elements.len() as i64)),
            ("Rank", [of]) => Sizes::scalar(Known(dims(graph, of).known()?.len() as i64)),
            ("Range", [start, limit, delta]) => {
                let (start, limit) = (self.number(start)?, self.number(limit)?);
                holds(self.number(delta)? == 1 && limit - start < 64)?;
                Sizes::vector((start..limit).map(Known).collect())
            }
            ("Fill", [count, value]) => {
                let (count, value) = (self.value(count)?, self.value(value)?.only().known()?);
                match count.elements[..] {
                    [] => Sizes::scalar(value),
                    [Known(count @ 0..=64)] => Sizes::vector((0..count).map(|_| value).collect()),
                    _ => return None.known(),
                }
            }
            ("DynamicStitch", inputs) => self.stitched(inputs)?,
            ("Add" | "AddV2" | "FloorMod" | "FloorDiv" | "Maximum", [one, other]) => {
                each(node.op, self.value(one)?, self.value(other)?).known()?
            }
            _ => return None.known(),
        })
    }

    /// The shape of a tensor that the op Shape reads.
    fn shape_of(&mut self, of: &NodeInput<'a>) -> Found<Sizes> {
        if of.place().is_some_and(|of| self.embeddings.contains(&of)) {
            return Ok(Sizes::vector(self.of_embeddings()));
        }
        // Of a vector whose elements are known, such as the axes of a sum, the length is.
        if let Some(found) = if_known(self.value(of))? {
            return Ok(Sizes::vector(match found.is_scalar {
                true => Vec::new(),
                false => vec![Known(found.elements.len() as i64)],
            }));
        }
        let sizes = dims(self.graph, of).known()?.into_iter();
        let sizes = sizes.map(|size| size.map(Known)).collect::<Option<_>>();
        Ok(Sizes::vector(sizes.known()?))
    }

    /// The value of DynamicStitch: indices, then as many data.
    fn stitched(&mut self, inputs: &[NodeInput<'a>]) -> Found<Sizes> {
        let (indices, data) = inputs.split_at(inputs.len() / 2);
        let mut stitched: Vec<Option<Size>> = Vec::new();
        for (indices, data) in indices.iter().zip(data) {
            let (indices, data) = (self.value(indices)?, self.value(data)?);
            holds(indices.elements.len() == data.elements.len())?;
            for (index, element) in indices.elements.iter().zip(data.elements) {
                let Known(index @ 0..=63) = *index else {
                    return None.known();
                };
                let index = index as usize;
                if stitched.len() <= index {
                    stitched.resize(index + 1, None);
                }
                if let Some(place) = stitched.get_mut(index) {
                    *place = Some(element);
                }
            }
        }
        let stitched = stitched.into_iter().collect::<Option<_>>();
        Ok(Sizes::vector(stitched.known()?))
    }

    /// The number that a tensor of one element is.
    pub(super) fn number(&mut self, input: &NodeInput<'a>) -> Found<i64> {
        match self.value(input)?.only() {
            Some(Known(number)) => Ok(number),
            _ => None.known(),
        }
    }
}

/// An op on each pair of elements; one side may be a scalar.
fn each(op: &str, one: Sizes, other: Sizes) -> Option<Sizes> {
    let n = one.elements.len().max(other.elements.len());
    let spread = |sizes: &Sizes| match (sizes.elements.len() == n, sizes.only()) {
        (true, _) => Some(sizes.elements.clone()),
        (false, Some(only)) => Some(vec![only; n]),
        (false, None) => None,
    };
    let is_scalar = one.is_scalar && other.is_scalar;
    let pairs = spread(&one)?.into_iter().zip(spread(&other)?);
    let elements = pairs
        .map(|(one, other)| pair(op, one, other))
        .collect::<Option<Vec<Size>>>()?;
    Some(Sizes {
        elements,
        is_scalar,
    })
}

fn pair(op: &str, one: Size, other: Size) -> Option<Size> {
    match (op, one, other) {
        ("Add" | "AddV2", Known(one), Known(other)) => one.checked_add(other).map(Known),
        ("FloorMod", Known(one), Known(other @ 1..)) => Some(Known(one.rem_euclid(other))),
        ("FloorDiv", Known(one @ 0..), Known(other @ 1..)) => Some(Known(one / other)),
        ("FloorDiv", one, Known(1)) => Some(one),
        ("FloorDiv", Of(one), AtLeastOne(other)) if one == other => Some(OneOrNone(one)),
        ("Maximum", Known(one), Known(other)) => Some(Known(one.max(other))),
        ("Maximum", Of(axis), Known(1)) | ("Maximum", Known(1), Of(axis)) => Some(AtLeastOne(axis)),
        _ => None,
    }
}
