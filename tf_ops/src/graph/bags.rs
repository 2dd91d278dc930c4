//! What describes the bags of pooled lookups, and moves with ids that are computed: where bags end,
//! and what their sums are divided by. Where the step computed it, it would compute once more what
//! ids are taken from, such as which entries of a SparseTensor are left.
//!
//! What depends on weights stays: whoever feeds these would otherwise not reach it.

use super::graph_def::Graph;
use super::library::Library;
use super::lists::{length, members};
use super::slice::{Slicer, Verdict};
use super::together::SPARSE_BAGS;
use mx_rec_kernels::Result;
use std::collections::HashSet;

/// A tensor that moves.
pub(super) struct MovingBags {
    /// Its node.
    pub(super) node: usize,
    /// Its name.
    pub(super) tensor: String,
}

/// The tensors that describe the bags of a lookup and are computed from `get_next` alone, by nodes
/// that can move.
pub(super) fn moving<'a>(
    graph: &Graph<'a>,
    slices: &mut Slicer<'_, 'a>,
    library: &mut Library<'a>,
    (lookup, get_next): (usize, usize),
) -> Result<Vec<MovingBags>> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for (reader, place) in described(graph, lookup)? {
        let node = graph.node(reader)?;
        let input = graph.data_input(node, place);
        let Some((input, source)) = input.and_then(|input| Some((input, input.source.at()?)))
        else {
            continue;
        };
        let maker = graph.node(source)?;
        let is_known = match maker.op {
            "MxRecBagEnds" | "MxRecSparseBagEnds" | "MxRecRaggedBagEnds" | SPARSE_BAGS => true,
            "MxRecBagDivisors" => match graph.data_input(maker, 2) {
                Some(weights) => {
                    matches!(slices.judge(maker, weights, library)?, Verdict::Constant)
                }
                None => false,
            },
            _ => false,
        };
        if !is_known || !seen.insert((source, input.output)) {
            continue;
        }
        match slices.judge(node, input, library)? {
            Verdict::From { get_next: from, .. } if from == get_next => found.push(MovingBags {
                node: source,
                tensor: input.tensor(),
            }),
            _ => {}
        }
    }
    Ok(found)
}

/// The inputs that describe the bags of a lookup: the nodes that read them, and which of their
/// inputs these are.
fn described(graph: &Graph<'_>, lookup: usize) -> Result<Vec<(usize, usize)>> {
    let resolvers = match graph.node(lookup)?.op {
        "MxRecFind" => {
            let node = graph.node(lookup)?;
            let ends = 3 + length(node, "A")?;
            return Ok(match length(node, "B")? {
                0 => Vec::new(),
                _ => vec![(lookup, ends), (lookup, ends + 2)],
            });
        }
        "MxRecIdOffset" => vec![lookup],
        "MxRecObserve" => {
            let readings = graph.readers(lookup, 1)?;
            let places = readings.iter().filter(|one| one.place == 2);
            let mut found = Vec::new();
            for reading in places {
                if graph.node(reading.node)?.op == "MxRecAdmit" {
                    found.push(reading.node);
                }
            }
            found
        }
        _ => Vec::new(),
    };
    let mut found = Vec::new();
    for resolver in resolvers {
        for reading in graph.readers(resolver, 1)? {
            let node = graph.node(reading.node)?;
            let (inverse, ends) = match node.op {
                "MxRecRead" if length(node, "B")? > 0 && members(node)? == 1 => (3, 4),
                "MxRecRestorePooled" => (1, 2),
                _ => continue,
            };
            if reading.place == inverse {
                found.extend([(reading.node, ends), (reading.node, ends + 2)]);
            }
        }
    }
    Ok(found)
}
