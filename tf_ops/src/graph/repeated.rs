//! The search for what a gradient repeats: one gradient of a bag for each of its ids.

use super::consumers::same;
use super::graph_def::{Graph, Node, NodeInput};
use super::known::{holds, if_known, Found, Known as _};
use super::readers::source_of;
use super::sizes::{Size, SizeReader};
use super::tensors::{dims, integers_of};
use super::weights::{is_product, Weights};
use mx_rec_kernels::Result;
use serde::Serialize;

/// A gradient is followed over at most so many nodes.
const MOST_NODES: usize = 64;

/// How a gradient of each id is computed from one of each bag.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeated {
    /// This tensor, whose last dimension but one has size 1, is repeated along it.
    Tensor(String),
    /// A repeated tensor is multiplied with a scalar or divided by it.
    Scaled {
        /// The op: RealDiv or Mul.
        op: String,
        /// The scalar.
        by: String,
        /// What is repeated.
        of: Box<Repeated>,
    },
    /// Repeated tensors are added up in this order.
    Added(Vec<Repeated>),
}

/// The search for what a gradient repeats.
pub(super) struct Search<'g, 'a> {
    graph: &'g Graph<'a>,
    sizes: SizeReader<'g, 'a>,
    left_out: Vec<String>,
    waits: Vec<String>,
    budget: usize,
}

/// What a gradient repeats.
pub(super) struct Source {
    pub(super) repeated: Repeated,
    /// Tensors that are not computed any more.
    pub(super) left_out: Vec<String>,
    /// Names of the nodes that what computes the gradient waits for.
    pub(super) waits: Vec<String>,
}

impl<'g, 'a> Search<'g, 'a> {
    pub(super) fn new(graph: &'g Graph<'a>, sizes: SizeReader<'g, 'a>) -> Self {
        Self {
            graph,
            sizes,
            left_out: Vec::new(),
            waits: Vec::new(),
            budget: MOST_NODES,
        }
    }

    /// What a tensor repeats for the ids of each bag, before it is multiplied with their weights;
    /// `None` if it is anything else.
    pub(super) fn of(
        mut self,
        tensor: &NodeInput<'a>,
        weights: Option<&Weights<'a>>,
    ) -> Result<Option<Source>> {
        let found = if_known(match weights {
            None => self.repeated(tensor),
            Some(weights) => self.weighted(tensor, weights),
        })?;
        let mut waits = self.waits;
        waits.extend(self.sizes.into_waits());
        waits.sort();
        waits.dedup();
        let left_out = self.left_out;
        Ok(found.map(|repeated| Source {
            repeated,
            left_out,
            waits,
        }))
    }

    /// Goes on to the node that a tensor is the first output of, and is not computed any more: the
    /// node and its data inputs.
    fn step(&mut self, tensor: &NodeInput<'a>) -> Found<(&'g Node<'a>, Vec<&'g NodeInput<'a>>)> {
        let node = source_of(self.graph, tensor).known()?;
        self.budget = self.budget.checked_sub(1).known()?;
        holds(tensor.output == Some(0))?;
        self.waits.extend(self.graph.waited(node));
        self.left_out.push(tensor.tensor());
        Ok((node, self.graph.data(node).collect()))
    }

    /// How a tensor is computed by repeating.
    fn repeated(&mut self, tensor: &NodeInput<'a>) -> Found<Repeated> {
        let (node, inputs) = self.step(tensor)?;
        match (node.op, &inputs[..]) {
            ("Identity", [of]) => self.repeated(of),
            ("Tile", [of, times]) => self.tiled(of, times),
            ("BroadcastTo", [of, shape]) => self.broadcast(of, shape),
            ("RealDiv", [of, by]) => self.scaled(node, of, by),
            ("Mul", [one, other]) => match if_known(self.scaled(node, one, other))? {
                None => self.scaled(node, other, one),
                Some(found) => Ok(found),
            },
            ("AddN", of) => {
                let added = of.iter().map(|one| self.repeated(one));
                Ok(Repeated::Added(added.collect::<Found<_>>()?))
            }
            _ => None.known(),
        }
    }

    /// How a gradient of weighted rows is computed: what is repeated for the ids of a bag, before
    /// it is multiplied with their weights.
    fn weighted(&mut self, tensor: &NodeInput<'a>, weights: &Weights<'a>) -> Found<Repeated> {
        let graph = self.graph;
        let (node, inputs) = self.step(tensor)?;
        match (node.op, &inputs[..]) {
            ("Identity", [of]) => self.weighted(of, weights),
            // Where weights and rows have the same sizes, there is nothing to add up.
            ("Reshape", [of, shape]) if self.sizes.is_of_embeddings(shape)? => {
                let added = source_of(graph, of).filter(|added| added.op == "Sum");
                let added = added.known()?;
                let given = |place| graph.data_input(added, place).known();
                let (of, axes) = (given(0)?, given(1)?);
                holds(source_of(graph, axes).known()?.op == "BroadcastGradientArgs")?;
                self.waits.extend(graph.waited(added));
                self.left_out.push(format!("{}:0", added.name));
                self.weighted(of, weights)
            }
            ("Mul", [one, other]) if !weights.is_matrix => {
                if same(other, &weights.input) {
                    return self.repeated(one);
                }
                holds(same(one, &weights.input))?;
                self.repeated(other)
            }
            (_, [one, other])
                if weights.is_matrix
                    && is_product(node)
                    && same(one, &weights.input)
                    && node.flag("adj_x")?
                    && !node.flag("adj_y")? =>
            {
                Ok(Repeated::Tensor(other.tensor()))
            }
            _ => None.known(),
        }
    }

    fn scaled(
        &mut self,
        node: &Node<'a>,
        of: &NodeInput<'a>,
        by: &NodeInput<'a>,
    ) -> Found<Repeated> {
        holds(self.is_scalar(by)?)?;
        Ok(Repeated::Scaled {
            op: node.op.to_owned(),
            by: by.tensor(),
            of: Box::new(self.repeated(of)?),
        })
    }

    /// `of`, repeated as often as `times` says along each dimension: once, but for that of bags.
    fn tiled(&mut self, of: &NodeInput<'a>, times: &NodeInput<'a>) -> Found<Repeated> {
        self.along_bags(of, times, |is_bags, size, times| {
            match (is_bags, size, times) {
                (true, Size::Known(1), _) | (false, _, Size::Known(1)) => true,
                // Where there is none of it, none is right.
                (false, Size::Of(one), Size::OneOrNone(other)) => one == other,
                _ => false,
            }
        })
    }

    /// `of`, repeated until it has this shape.
    fn broadcast(&mut self, of: &NodeInput<'a>, shape: &NodeInput<'a>) -> Found<Repeated> {
        self.along_bags(of, shape, |is_bags, size, target| match is_bags {
            true => *size == Size::Known(1),
            false => size == target,
        })
    }

    /// `of`, if the size of each of its dimensions fits the element of `by`; `fits` is told whether
    /// it is that of bags.
    fn along_bags(
        &mut self,
        of: &NodeInput<'a>,
        by: &NodeInput<'a>,
        fits: impl Fn(bool, &Size, &Size) -> bool,
    ) -> Found<Repeated> {
        let (sizes, found) = (self.kept(of)?, self.sizes.read(by)?.elements);
        holds(sizes.len() == found.len())?;
        let bags = sizes.len().checked_sub(2).known()?;
        let mut pairs = sizes.iter().zip(&found).enumerate();
        holds(pairs.all(|(axis, (size, element))| fits(axis == bags, size, element)))?;
        self.left_out.push(by.tensor());
        Ok(Repeated::Tensor(of.tensor()))
    }

    /// The sizes of a tensor.
    fn kept(&mut self, of: &NodeInput<'a>) -> Found<Vec<Size>> {
        let graph = self.graph;
        if let Some(node) = source_of(graph, of).filter(|node| node.op == "Reshape") {
            let shape = graph.data_input(node, 1).known();
            if let Some(sizes) = if_known(shape.and_then(|shape| self.sizes.read(shape)))? {
                self.waits.extend(graph.waited(node));
                return Ok(sizes.elements);
            }
        }
        let sizes = dims(graph, of).known()?.into_iter();
        sizes.map(|size| size.map(Size::Known).known()).collect()
    }

    /// Whether a tensor is a scalar.
    fn is_scalar(&mut self, tensor: &NodeInput<'a>) -> Result<bool> {
        if dims(self.graph, tensor)?.is_some_and(|dims| dims.is_empty()) {
            return Ok(true);
        }
        let (Some(node), Some(budget)) =
            (source_of(self.graph, tensor), self.budget.checked_sub(1))
        else {
            return Ok(false);
        };
        self.budget = budget;
        let graph = self.graph;
        match (
            node.op,
            graph.data_input(node, 0),
            graph.data_input(node, 1),
        ) {
            ("Cast" | "Identity", Some(of), _) => self.is_scalar(of),
            ("FloorDiv" | "Maximum" | "RealDiv" | "Mul", Some(one), Some(other)) => {
                Ok(self.is_scalar(one)? && self.is_scalar(other)?)
            }
            // Of a shape, which is a vector.
            ("Prod", Some(of), Some(axes)) if !node.flag("keep_dims")? => {
                let is_shape = source_of(graph, of).is_some_and(|of| of.op == "Shape");
                Ok(is_shape && integers_of(graph, axes)?.as_deref() == Some(&[0]))
            }
            _ => Ok(false),
        }
    }
}
