//! Which tensors are the same number: optimizers make some of theirs once for each variable, or for
//! each device, of the same variables and constants by the same ops.

use super::graph_def::{Graph, Node};
use super::library::StatefulOps;
use mx_rec_kernels::Result;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Ops that give on what they are given.
const COPIES: [&str; 3] = ["DeepCopy", "Identity", "ReadVariableOp"];

/// What they give is not in their inputs alone.
const NOT_COMPUTED: [&str; 6] = [
    "PlaceholderWithDefault",
    "Switch",
    "Merge",
    "Enter",
    "Exit",
    "NextIteration",
];

/// The name of a node, and which of its outputs.
pub(super) type Number<'a> = (&'a str, u64);

/// What a number is made of.
#[derive(PartialEq, Eq, Hash)]
enum Made<'a> {
    /// Of what does not tell.
    Itself(Number<'a>),
    /// By an op, with attributes, of other numbers.
    By {
        op: &'a str,
        output: u64,
        attributes: Vec<(&'a str, &'a [u8])>,
        of: Vec<usize>,
    },
}

pub(super) struct Numbers<'g, 'a> {
    graph: &'g Graph<'a>,
    ops: &'g StatefulOps<'a>,
    keys: HashMap<Number<'a>, usize>,
    known: HashMap<Made<'a>, usize>,
}

impl<'g, 'a> Numbers<'g, 'a> {
    pub(super) fn new(graph: &'g Graph<'a>, ops: &'g StatefulOps<'a>) -> Self {
        Self {
            graph,
            ops,
            keys: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// The same for tensors that are the same number.
    pub(super) fn key(&mut self, of: Number<'a>) -> Result<usize> {
        // A rate may be computed from a loss: the way there is long, and has many crossings.
        let (mut waiting, mut begun) = (vec![of], HashSet::new());
        while let Some(&one) = waiting.last() {
            if self.keys.contains_key(&one) {
                waiting.pop();
                continue;
            }
            let sources = self.sources(one);
            let missing = sources
                .iter()
                .filter(|source| !self.keys.contains_key(*source));
            let missing: Vec<Number<'a>> = missing.copied().collect();
            if missing.is_empty() || !begun.insert(one) {
                // What is missing the second time is computed from itself.
                let key = self.made(one, &sources, missing.is_empty())?;
                self.keys.insert(one, key);
            } else {
                waiting.extend(missing);
            }
        }
        Ok(self.keys.get(&of).copied().unwrap_or_default())
    }

    fn made(&mut self, one: Number<'a>, sources: &[Number<'a>], is_told: bool) -> Result<usize> {
        let keys = sources.iter().filter_map(|source| self.keys.get(source));
        let of: Vec<usize> = keys.copied().collect();
        let made = match self.node(one) {
            Some(node) if is_told && (!of.is_empty() || node.attr("value")?.is_some()) => {
                if let (true, [source]) = (self.is_copy(node), &of[..]) {
                    return Ok(*source);
                }
                let mut attributes = Vec::new();
                for attribute in node.attrs() {
                    let (name, value) = attribute?;
                    if !name.starts_with('_') {
                        attributes.push((name, value));
                    }
                }
                attributes.sort_unstable();
                Made::By {
                    op: node.op,
                    output: one.1,
                    attributes,
                    of,
                }
            }
            _ => Made::Itself(one),
        };
        let next = self.known.len();
        Ok(*self.known.entry(made).or_insert(next))
    }

    /// The tensors by which two that are the same number differ: of one, and of the other.
    pub(super) fn differing(&self, one: Number<'a>, other: Number<'a>) -> [BTreeSet<String>; 2] {
        let mut found = [BTreeSet::new(), BTreeSet::new()];
        let (mut waiting, mut seen) = (vec![(one, other)], HashSet::new());
        while let Some(pair) = waiting.pop() {
            if pair.0 == pair.1 || !seen.insert(pair) {
                continue;
            }
            let copies =
                [pair.0, pair.1].map(|of| self.node(of).is_some_and(|of| self.is_copy(of)));
            let name = |(node, output): Number<'_>| format!("{node}:{output}");
            if copies[0] || !copies[1] {
                found[0].insert(name(pair.0));
            }
            if !copies[0] {
                found[1].insert(name(pair.1));
            }
            match copies {
                [true, _] => waiting.extend(self.sources(pair.0).iter().map(|&of| (of, pair.1))),
                [_, true] => waiting.extend(self.sources(pair.1).iter().map(|&of| (pair.0, of))),
                _ => waiting.extend(self.sources(pair.0).into_iter().zip(self.sources(pair.1))),
            }
        }
        found
    }

    fn node(&self, (name, _): Number<'a>) -> Option<&'g Node<'a>> {
        self.graph.nodes.get(self.graph.find(name).at()?)
    }

    fn is_copy(&self, node: &Node<'a>) -> bool {
        COPIES.contains(&node.op) && self.graph.waits(node).next().is_none()
    }

    fn has_state(&self, of: Number<'a>) -> bool {
        let op = self.node(of).map(|node| node.op);
        op.and_then(|op| self.ops.get(op)) != Some(&false)
    }

    /// What a number is computed from; nothing if that does not tell what it is.
    fn sources(&self, of: Number<'a>) -> Vec<Number<'a>> {
        let Some(node) = self.node(of) else {
            return Vec::new();
        };
        let is_told = self.ops.get(node.op) == Some(&false) && !NOT_COMPUTED.contains(&node.op);
        let inputs = self.graph.inputs(node).iter();
        let data = inputs.filter_map(|input| Some((input.node, input.output?)));
        let data: Vec<Number<'a>> = data.collect();
        // What reads a variable after a change of it gives another value than what reads it before.
        let is_late = self.graph.waits(node).next().is_some()
            && data.iter().any(|&source| self.has_state(source));
        match (self.is_copy(node), is_told && !is_late) {
            (true, _) => data.into_iter().take(1).collect(),
            (_, true) => data,
            _ => Vec::new(),
        }
    }
}
