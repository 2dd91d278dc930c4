//! Integer tensors of which shapes are computed: their elements as numbers, or as sizes of the
//! dimensions of one tensor of embeddings, which is enough to know what a gradient is repeated by.

use super::graph_def::{Graph, NodeInput};
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
    fn vector(elements: Vec<Size>) -> Option<Sizes> {
        let is_scalar = false;
        Some(Sizes {
            elements,
            is_scalar,
        })
    }

    fn scalar(element: Size) -> Option<Sizes> {
        let (elements, is_scalar) = (vec![element], true);
        Some(Sizes {
            elements,
            is_scalar,
        })
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

    /// The elements of a tensor; `None` if they cannot be told.
    pub(super) fn read(&mut self, input: &NodeInput<'a>) -> Result<Option<Sizes>> {
        self.budget = MOST_NODES;
        self.value(input)
    }

    /// Whether a tensor is the shape of the embeddings.
    pub(super) fn is_of_embeddings(&mut self, input: &NodeInput<'a>) -> Result<bool> {
        let Some(found) = self.read(input)? else {
            return Ok(false);
        };
        let sizes = self.shape.iter().enumerate();
        let expected = sizes.map(|(axis, size)| size.map_or(Of(axis), Known));
        Ok(!found.is_scalar && expected.eq(found.elements))
    }

    fn value(&mut self, input: &NodeInput<'a>) -> Result<Option<Sizes>> {
        let graph = self.graph;
        let (Some(node), Some(budget)) = (source_of(graph, input), self.budget.checked_sub(1))
        else {
            return Ok(None);
        };
        self.budget = budget;
        if input.output != Some(0) {
            return Ok(None);
        }
        let given: Vec<NodeInput<'a>> = graph.data(node).copied().collect();
        self.waits.extend(graph.waited(node));
        Ok(match (node.op, &given[..]) {
            ("Const", []) => match constant(node)? {
                Some(found) => {
                    let is_scalar = found.dims.is_empty();
                    let is_flat = found.dims.len() < 2;
                    let integers = found.integers.filter(|_| is_flat);
                    integers.map(|integers| Sizes {
                        elements: integers.into_iter().map(Known).collect(),
                        is_scalar,
                    })
                }
                None => None,
            },
            ("Identity" | "Cast", [of]) => self.value(of)?,
            ("Shape", [of]) => self.shape_of(of)?,
            ("Size" | "Rank", [of]) => match (node.op, dims(graph, of)?) {
                ("Rank", Some(dims)) => Sizes::scalar(Known(dims.len() as i64)),
                _ => match self.value(of)? {
                    Some(vector) if node.op == "Size" => {
                        Sizes::scalar(Known(vector.elements.len() as i64))
                    }
                    _ => None,
                },
            },
            ("Range", [start, limit, delta]) => {
                let (start, limit) = (self.number(start)?, self.number(limit)?);
                match (start, limit, self.number(delta)?) {
                    (Some(start), Some(limit), Some(1)) if limit - start < 64 => {
                        Sizes::vector((start..limit).map(Known).collect())
                    }
                    _ => None,
                }
            }
            ("Fill", [count, value]) => {
                let (count, value) = (self.value(count)?, self.value(value)?);
                match (count, value.and_then(|value| value.only())) {
                    (Some(count), Some(value)) => match count.elements[..] {
                        [] => Sizes::scalar(value),
                        [Known(count @ 0..=64)] => {
                            Sizes::vector((0..count).map(|_| value).collect())
                        }
                        _ => None,
                    },
                    _ => None,
                }
            }
            ("DynamicStitch", inputs) => self.stitched(inputs)?,
            ("Add" | "AddV2" | "FloorMod" | "FloorDiv" | "Maximum", [one, other]) => {
                match (self.value(one)?, self.value(other)?) {
                    (Some(one), Some(other)) => each(node.op, one, other),
                    _ => None,
                }
            }
            _ => None,
        })
    }

    /// The shape of a tensor that the op Shape reads.
    fn shape_of(&mut self, of: &NodeInput<'a>) -> Result<Option<Sizes>> {
        if of.place().is_some_and(|of| self.embeddings.contains(&of)) {
            let sizes = self.shape.iter().enumerate();
            return Ok(Sizes::vector(
                sizes
                    .map(|(axis, size)| size.map_or(Of(axis), Known))
                    .collect(),
            ));
        }
        // Of a vector whose elements are known, such as the axes of a sum, the length is.
        if let Some(found) = self.value(of)? {
            return Ok(match found.is_scalar {
                true => Sizes::vector(Vec::new()),
                false => Sizes::vector(vec![Known(found.elements.len() as i64)]),
            });
        }
        let known =
            dims(self.graph, of)?.and_then(|dims| dims.into_iter().collect::<Option<Vec<i64>>>());
        Ok(known.and_then(|dims| Sizes::vector(dims.into_iter().map(Known).collect())))
    }

    /// The value of DynamicStitch: indices, then as many data.
    fn stitched(&mut self, inputs: &[NodeInput<'a>]) -> Result<Option<Sizes>> {
        let (indices, data) = inputs.split_at(inputs.len() / 2);
        let mut stitched: Vec<Option<Size>> = Vec::new();
        for (indices, data) in indices.iter().zip(data) {
            let (Some(indices), Some(data)) = (self.value(indices)?, self.value(data)?) else {
                return Ok(None);
            };
            if indices.elements.len() != data.elements.len() {
                return Ok(None);
            }
            for (index, element) in indices.elements.iter().zip(data.elements) {
                let Known(index @ 0..=63) = *index else {
                    return Ok(None);
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
        Ok(stitched
            .into_iter()
            .collect::<Option<Vec<Size>>>()
            .and_then(Sizes::vector))
    }

    fn number(&mut self, input: &NodeInput<'a>) -> Result<Option<i64>> {
        Ok(match self.value(input)?.and_then(|value| value.only()) {
            Some(Known(number)) => Some(number),
            _ => None,
        })
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
