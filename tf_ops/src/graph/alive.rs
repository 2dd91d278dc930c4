//! Which nodes have a value in each run.

use super::graph_def::Graph;
use mx_rec_kernels::Result;
use std::collections::BTreeSet;

/// Ops of which one output has no value in a run, and those that have one whatever their inputs
/// have.
const BRANCHES: [&str; 2] = ["Switch", "RefSwitch"];
const JOINS: [&str; 4] = ["Merge", "RefMerge", "Exit", "RefExit"];

/// A rule looks at so many nodes, once for each lookup that they depend on or that depends on them.
/// What is left when they are spent keeps ops of its own.
pub(super) const MOST_STEPS: usize = 5_000_000;

/// The nodes that are known to have a value in each run.
pub(super) struct Alive {
    known: Vec<bool>,
    /// The nodes that walks have met.
    steps: usize,
}

impl Alive {
    pub(super) fn new(graph: &Graph<'_>) -> Self {
        Self {
            known: vec![false; graph.nodes.len()],
            steps: 0,
        }
    }

    /// Whether a node has a value in each run: none of what it needs is in a branch that is not
    /// taken.
    pub(super) fn has(&mut self, graph: &Graph<'_>, of: usize) -> Result<bool> {
        let mut seen = BTreeSet::from([of]);
        let mut waiting = vec![of];
        while let Some(at) = waiting.pop() {
            self.steps += 1;
            let node = graph.node(at)?;
            if BRANCHES.contains(&node.op) || self.steps > MOST_STEPS {
                return Ok(false);
            }
            if JOINS.contains(&node.op) {
                continue;
            }
            for source in graph.sources(node) {
                let is_known = self.known.get(source).copied().unwrap_or(true);
                if !is_known && seen.insert(source) {
                    waiting.push(source);
                }
            }
        }
        for at in seen {
            if let Some(known) = self.known.get_mut(at) {
                *known = true;
            }
        }
        Ok(true)
    }
}
