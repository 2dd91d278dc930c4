//! Nodes that take lists of tensors: how long these are, and which forms of an op they are.

use super::graph_def::Node;
use mx_rec_kernels::Result;

/// Whether a node reads a row for each id of one table.
pub(super) fn reads_ids(node: &Node<'_>) -> Result<bool> {
    Ok(node.op == "MxRecRead"
        && members(node)? == 1
        && length(node, "R")? > 0
        && length(node, "B")? == 0)
}

/// Whether a node reads the rows of distinct keys of one table.
pub(super) fn reads_distinct(node: &Node<'_>) -> Result<bool> {
    Ok(node.op == "MxRecRead" && length(node, "R")? == 0 && members(node)? == 1)
}

/// Whether a node finds a row for each id of one table.
pub(super) fn finds_ids(node: &Node<'_>) -> Result<bool> {
    Ok(node.op == "MxRecFind"
        && members(node)? == 1
        && length(node, "B")? == 0
        && length(node, "initial")? == 0)
}

/// How many members a node for many tables has.
pub(super) fn members(node: &Node<'_>) -> Result<usize> {
    length(node, "N")
}

/// How many tensors the lists of a node have whose number attribute is `name`.
pub(super) fn length(node: &Node<'_>, name: &str) -> Result<usize> {
    let length = node
        .int(name)?
        .and_then(|count| usize::try_from(count).ok());
    // A node has as many inputs as it names; more members than bytes cannot be.
    Ok(length.unwrap_or(0).min(node.bytes.len()))
}
