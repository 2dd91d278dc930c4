//! What describes the bags of pooled lookups, and moves with ids that are computed: where bags end,
//! and what their sums are divided by. Where the step computed it, it would compute once more what
//! ids are taken from, such as which entries of a SparseTensor are left.
//!
//! What depends on weights stays: whoever feeds these would otherwise not reach it.

use super::consumers::Consumers;
use super::graph_def::{Graph, InputSource};
use super::library::Library;
use super::lists::{length, members};
use super::slice::{Slicer, Verdict};
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
    consumers: &Consumers,
    slices: &mut Slicer<'_, 'a>,
    library: &mut Library<'a>,
    (lookup, get_next): (usize, usize),
) -> Result<Vec<MovingBags>> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for (reader, place) in described(graph, consumers, lookup)? {
        let node = graph.node(reader)?;
        let Some(input) = graph.data_input(node, place) else {
            continue;
        };
        let InputSource::Node(source) = input.source else {
            continue;
        };
        let maker = graph.node(source)?;
        let is_known = match maker.op {
            "MxRecBagEnds" | "MxRecSparseBagEnds" | "MxRecRaggedBagEnds" => true,
            "MxRecBagDivisors" => match graph.data_input(maker, 2) {
                Some(weights) => {
                    matches!(slices.judge(maker, weights, library)?, Verdict::Constant)
                }
                None => false,
            },
            _ => false,
        };
        if !is_known || !seen.insert(source) {
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
fn described(
    graph: &Graph<'_>,
    consumers: &Consumers,
    lookup: usize,
) -> Result<Vec<(usize, usize)>> {
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
            let readings = consumers.of(graph, lookup, 1)?;
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
        for reading in consumers.of(graph, resolver, 1)? {
            let node = graph.node(reading.node)?;
            // The lists of a node for many tables are as long as each other; of one they are 1.
            let members = match node.op {
                "MxRecRead" => members(node)?,
                _ => 1,
            };
            let (inverse, ends) = match node.op {
                "MxRecRead" if length(node, "B")? > 0 => (3, 4),
                "MxRecRestorePooled" => (1, 2),
                _ => continue,
            };
            let first = members.saturating_mul(inverse);
            let Some(member) = reading.place.checked_sub(first).filter(|&at| at < members) else {
                continue;
            };
            for list in [ends, ends + 2] {
                found.push((
                    reading.node,
                    members.saturating_mul(list).saturating_add(member),
                ));
            }
        }
    }
    Ok(found)
}
