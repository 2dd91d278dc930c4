//! Who reads the tensors of a graph.

use super::graph_def::{Graph, InputSource, NodeInput};
use mx_rec_kernels::Result;

/// The inputs of all nodes, by the node that they come from.
pub(super) struct Consumers {
    /// For each node the readers of its outputs: the node, and which of its inputs it is.
    readers: Vec<Vec<(usize, usize)>>,
}

/// One input of a node that comes from a certain tensor.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    /// The node that reads.
    pub(super) node: usize,
    /// Which of its inputs it is; data inputs come first.
    pub(super) place: usize,
}

impl Consumers {
    pub(super) fn new(graph: &Graph<'_>) -> Self {
        let mut readers = vec![Vec::new(); graph.nodes.len()];
        for (at, node) in graph.nodes.iter().enumerate() {
            for (place, input) in graph.inputs(node).iter().enumerate() {
                if let InputSource::Node(source) = input.source {
                    if let Some(readers) = readers.get_mut(source) {
                        readers.push((at, place));
                    }
                }
            }
        }
        Self { readers }
    }

    /// All that reads a node or waits for it: the node, and which of its inputs it is.
    pub(super) fn all(&self, node: usize) -> &[(usize, usize)] {
        self.readers.get(node).map_or(&[], Vec::as_slice)
    }

    /// The nodes that read an output of a node.
    pub(super) fn of(&self, graph: &Graph<'_>, node: usize, output: u64) -> Result<Vec<Reading>> {
        self.reading(graph, node, Some(output))
    }

    /// The first node that waits for a node without reading it.
    pub(super) fn waiting(&self, graph: &Graph<'_>, node: usize) -> Result<Option<usize>> {
        let found = self.reading(graph, node, None)?;
        Ok(found.first().map(|reading| reading.node))
    }

    fn reading(&self, graph: &Graph<'_>, of: usize, output: Option<u64>) -> Result<Vec<Reading>> {
        let mut found = Vec::new();
        for &(node, place) in self.readers.get(of).into_iter().flatten() {
            let input = graph.inputs(graph.node(node)?).get(place);
            if input.is_some_and(|input| input.output == output) {
                found.push(Reading { node, place });
            }
        }
        Ok(found)
    }
}

/// Whether two inputs are the same tensor.
pub(super) fn same(one: &NodeInput<'_>, other: &NodeInput<'_>) -> bool {
    matches!(one.source, InputSource::Node(_))
        && one.source == other.source
        && one.output == other.output
}
