//! How nodes and names appear in the reasons of a plan.

use super::graph_def::Node;

/// Reasons repeat at most so many bytes of a name.
const LONGEST: usize = 200;

/// `'name' (Op)`.
pub(super) fn described(node: &Node<'_>) -> String {
    format!("{} ({})", quoted(node.name), shortened(node.op))
}

/// Why a node is not found by its name.
pub(super) fn several(node: &Node<'_>) -> String {
    format!("there are several nodes of the name {}", quoted(node.name))
}

/// `'name'`.
pub(super) fn quoted(name: &str) -> String {
    format!("'{}'", shortened(name))
}

fn shortened(name: &str) -> String {
    if name.len() <= LONGEST {
        return name.to_owned();
    }
    let kept: String = name
        .char_indices()
        .take_while(|(at, _)| *at < LONGEST)
        .map(|(_, character)| character)
        .collect();
    format!("{kept}...")
}
