//! Who reads the tensors of a graph.

use super::graph_def::{Graph, NodeInput};
use mx_rec_kernels::Result;

/// One input of a node that comes from a certain tensor.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    /// The node that reads.
    pub(super) node: usize,
    /// Which of its inputs it is; data inputs come first.
    pub(super) place: usize,
}

impl Graph<'_> {
    /// All that reads a node or waits for it: the node, and which of its inputs it is.
    pub(super) fn all_readers(&self, node: usize) -> &[(usize, usize)] {
        let all = self.consumers.get_or_init(|| {
            let mut readers = vec![Vec::new(); self.nodes.len()];
            for (at, node) in self.nodes.iter().enumerate() {
                for (place, input) in self.inputs(node).iter().enumerate() {
                    let source = input.source.at();
                    if let Some(readers) = source.and_then(|source| readers.get_mut(source)) {
                        readers.push((at, place));
                    }
                }
            }
            readers
        });
        all.get(node).map_or(&[], Vec::as_slice)
    }

    /// The nodes that read an output of a node.
    pub(super) fn readers(&self, node: usize, output: u64) -> Result<Vec<Reading>> {
        self.reading(node, Some(output))
    }

    /// The first node that waits for a node without reading it.
    pub(super) fn waiting(&self, node: usize) -> Result<Option<usize>> {
        let found = self.reading(node, None)?;
        Ok(found.first().map(|reading| reading.node))
    }

    fn reading(&self, of: usize, output: Option<u64>) -> Result<Vec<Reading>> {
        let mut found = Vec::new();
        for &(node, place) in self.all_readers(of) {
            let input = self.inputs(self.node(node)?).get(place);
            if input.is_some_and(|input| input.output == output) {
                found.push(Reading { node, place });
            }
        }
        Ok(found)
    }
}

/// Whether two inputs are the same tensor.
pub(super) fn same(one: &NodeInput<'_>, other: &NodeInput<'_>) -> bool {
    one.source.at().is_some() && one.source == other.source && one.output == other.output
}
