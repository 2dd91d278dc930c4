//! The nodes that give a row for each id: what they read, and the gradients of what they give.

use super::consumers::same;
use super::describe::described;
use super::graph_def::{Graph, Node, NodeInput};
use super::lists::{finds_ids, reads_distinct, reads_ids};
use mx_rec_kernels::Result;

/// A node that gives a row for each id of one table.
#[derive(Clone, Copy)]
pub(super) struct RowReader<'a> {
    /// The node.
    pub(super) node: usize,
    /// The handle of its table; `None` if the node does not read one.
    handle: Option<NodeInput<'a>>,
    /// The offsets that its rows belong to; `None` if it takes keys.
    pub(super) offsets: Option<NodeInput<'a>>,
    /// Its ids: places among the offsets, or keys.
    pub(super) ids: NodeInput<'a>,
}

/// What a node reads that gives a row for each id; `None` for others.
pub(super) fn row_reader<'a>(graph: &Graph<'a>, at: usize) -> Result<Option<RowReader<'a>>> {
    let node = graph.node(at)?;
    let input = |place| graph.data_input(node, place).copied();
    let (handle, offsets, ids) = match node.op {
        "MxRecFind" if finds_ids(node)? => (input(0), None, input(2)),
        "MxRecRestore" => {
            let looked_up = input(0).map(|rows| behind_identities(graph, rows));
            let source = looked_up.and_then(|rows| source_of(graph, &rows));
            match source {
                Some(source) if reads_distinct(source)? => {
                    let of = |place| graph.data_input(source, place).copied();
                    (of(0), of(2), input(1))
                }
                _ => return Ok(None),
            }
        }
        "MxRecRead" if reads_ids(node)? => (input(0), input(2), input(3)),
        _ => return Ok(None),
    };
    Ok(ids.map(|ids| RowReader {
        node: at,
        handle,
        offsets,
        ids,
    }))
}

impl<'a> RowReader<'a> {
    /// The name of its table.
    pub(super) fn table(&self) -> String {
        let handle = self.handle.map_or("", |handle| handle.node);
        handle.split('/').next().unwrap_or(handle).to_owned()
    }

    /// Why rows that it reads cannot be read another way: because it stands in a branch or a loop.
    pub(super) fn misplaced(&self, graph: &Graph<'a>) -> Result<Option<String>> {
        // In branches and loops, the handle is passed on.
        let source = self.handle.and_then(|handle| source_of(graph, &handle));
        if source.is_some_and(|source| source.op == "MxRecTable") {
            return Ok(None);
        }
        let this = described(graph.node(self.node)?);
        Ok(Some(format!("{this} stands in a branch or a loop")))
    }

    /// The gradients of its rows, one for each id, with the names of the nodes that sum them.
    pub(super) fn gradients(&self, graph: &Graph<'a>) -> Result<Vec<(NodeInput<'a>, Vec<String>)>> {
        let (Some(offsets), Some((source, output))) = (self.offsets, self.ids.place()) else {
            return Ok(Vec::new());
        };
        let mut found: Vec<(NodeInput<'a>, Vec<String>)> = Vec::new();
        for reading in graph.readers(source, output)? {
            let node = graph.node(reading.node)?;
            let inputs = (graph.data_input(node, 0), graph.data_input(node, 2));
            let ("MxRecReduce", 1, (Some(gradient), Some(rows))) = (node.op, reading.place, inputs)
            else {
                continue;
            };
            if same(rows, &offsets) {
                let name = node.name.to_owned();
                match found.iter_mut().find(|(known, _)| same(known, gradient)) {
                    Some((_, readers)) => readers.push(name),
                    None => found.push((*gradient, vec![name])),
                }
            }
        }
        Ok(found)
    }
}

/// The node that a tensor comes from.
pub(super) fn source_of<'g, 'a>(
    graph: &'g Graph<'a>,
    input: &NodeInput<'a>,
) -> Option<&'g Node<'a>> {
    graph.nodes.get(input.source.at()?)
}

/// The tensor that ops Identity pass on as this one.
fn behind_identities<'a>(graph: &Graph<'a>, mut tensor: NodeInput<'a>) -> NodeInput<'a> {
    for _ in 0..8 {
        let copy = source_of(graph, &tensor).filter(|node| node.op == "Identity");
        match copy.and_then(|node| graph.data_input(node, 0)) {
            Some(before) => tensor = *before,
            None => break,
        }
    }
    tensor
}
