//! The rule for lookups that share an op: those of one verb that every run needs together. The bags
//! of sparse ids are such a verb, too.
//!
//! A run needs them together if the same updates of tables depend on them; without an update, if
//! the same ends of the graph do. They are joined only if none depends on another lookup of the
//! verb, and if all depend on the same groups of other verbs, so that no circle can arise. A run
//! that fetches what lies between, or feeds it, may need fewer: python/mx_rec/graph/needs.py
//! computes it as the graph was before.

use super::alive::{Alive, MOST_STEPS};
use super::graph_def::{Graph, InputSource, Node};
use super::library::StatefulOps;
use super::lists::{length, members};
use super::readers::source_of;
use mx_rec_kernels::Result;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The attribute that lookups of one call, and those that were one op before they were taken apart,
/// have in common; python/mx_rec/ops/lookups.py sets it.
const GROUP: &str = "_mx_rec_group";

/// The op of a table, which a run can always have.
pub(super) const TABLE: &str = "MxRecTable";

/// The op that updates tables.
pub(super) const UPDATE: &str = "MxRecUpdate";

/// The op that updates tables on a parameter server.
pub(super) const PUSH: &str = "MxRecPush";

/// The op that makes the bags of sparse ids.
pub(super) const SPARSE_BAGS: &str = "MxRecSparseBagsMany";

/// What reads a tensor and not its values, and may be left over.
const SHAPES: [&str; 4] = ["Shape", "ShapeN", "Size", "Rank"];

/// How the names of scopes end in which TensorFlow computes gradients. What nobody reads there, as
/// the gradient of weights that are not trained, nobody asks for.
const GRADIENT_SCOPE: &str = "_grad";

/// Lookups of one verb that share an op.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedGroup {
    /// The type of their ops.
    pub op: String,
    /// Names of their nodes, in the order of the graph.
    pub nodes: Vec<String>,
    /// Why they share an op, a sentence.
    pub reason: String,
}

/// Finds the lookups that share an op, in the order of the graph; `updates` has for each update
/// that shares an op the first of those that do.
///
/// # Errors
/// `InvalidArgument` if an attribute cannot be read.
pub(super) fn find(
    graph: &Graph<'_>,
    ops: &StatefulOps<'_>,
    updates: &HashMap<usize, usize>,
) -> Result<Vec<PlannedGroup>> {
    let mut lookups = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        if is_lookup(node)? && stands_free(graph, at, node)? {
            lookups.push(at);
        }
    }
    if lookups.is_empty() {
        return Ok(Vec::new());
    }
    let mut parts: BTreeMap<Group<'_>, Vec<usize>> = BTreeMap::new();
    for &at in &lookups {
        let node = graph.node(at)?;
        let group = node.string(GROUP)?;
        if !group.is_empty() {
            parts.entry((group, node.op)).or_default().push(at);
        }
    }
    let mut rule = Rule {
        graph,
        ops,
        updates,
        parts: HashMap::new(),
        lookups: lookups.iter().copied().collect(),
        joined: HashMap::new(),
        groups: Vec::new(),
        below: HashMap::new(),
        seen: vec![0; graph.nodes.len()],
        alive: Alive::new(graph),
        walks: 0,
        steps: 0,
    };
    for (group, members) in parts {
        // A copy of a part of a graph has the groups of the part: one may depend on the other.
        if !rule.depends_on_itself(&members)? {
            rule.parts.insert(group, members);
        }
    }
    let mut found = Vec::new();
    // Those that resolve keys come first: lookups that read what they find depend on them. Bags
    // come last: lookups by bags of several forms, and those without, may share an op all the same.
    for verb in ["MxRecIdOffset", "MxRecFind", "MxRecRead", SPARSE_BAGS] {
        let of_verb = lookups.iter().copied();
        let of_verb = of_verb.filter(|&at| graph.nodes.get(at).is_some_and(|one| one.op == verb));
        for together in rule.groups(of_verb)? {
            found.push(rule.planned(verb, &together)?);
            rule.note(verb, &together)?;
        }
    }
    Ok(found)
}

/// The name and the verb of lookups that were asked for together, or were one op before.
type Group<'a> = (&'a [u8], &'a str);

/// What lookups that share an op have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Common {
    /// Their group.
    Group(Vec<u8>),
    /// The groups of other verbs that they depend on, and what depends on them.
    Runs {
        groups: BTreeSet<usize>,
        ends: BTreeSet<usize>,
    },
}

struct Rule<'g, 'a> {
    graph: &'g Graph<'a>,
    ops: &'g StatefulOps<'a>,
    updates: &'g HashMap<usize, usize>,
    lookups: HashSet<usize>,
    /// The lookups of a group: what depends on one of them depends on all.
    parts: HashMap<Group<'a>, Vec<usize>>,
    /// For each lookup that shares an op which of the groups it is in.
    joined: HashMap<usize, usize>,
    /// For each group the groups that its lookups depend on.
    groups: Vec<BTreeSet<usize>>,
    /// What lies below lookups that were looked at: those that they read need not walk there again.
    below: HashMap<usize, Below>,
    /// For each node the last walk that met it.
    seen: Vec<usize>,
    alive: Alive,
    walks: usize,
    /// The nodes that walks have met.
    steps: usize,
}

/// What lies below a lookup.
#[derive(Default)]
struct Below {
    /// What depends on it and has nothing that depends on it.
    ends: BTreeSet<usize>,
    /// The updates that depend on it.
    updates: BTreeSet<usize>,
}

/// What lies above a lookup.
struct Above {
    /// The groups that it depends on.
    groups: BTreeSet<usize>,
    /// Whether it depends on another lookup of its verb, or will.
    is_later: bool,
}

impl<'a> Rule<'_, 'a> {
    fn groups(&mut self, lookups: impl Iterator<Item = usize>) -> Result<Vec<Vec<usize>>> {
        type Key<'a> = (Form<'a>, Common);
        let mut same: BTreeMap<Key<'a>, Vec<usize>> = BTreeMap::new();
        for at in lookups {
            if self.graph.all_readers(at).is_empty() {
                // Nobody reads what was taken apart.
                continue;
            }
            let node = self.graph.node(at)?;
            let common = if let Some((name, _)) = self.group_of(node)? {
                Common::Group(name.to_vec())
            } else {
                if self.steps > MOST_STEPS {
                    continue;
                }
                let above = self.above(at, node.op)?;
                let ends = self.ends(at)?;
                if above.is_later || ends.is_empty() || !self.alive.has(self.graph, at)? {
                    continue;
                }
                let groups = above.groups;
                Common::Runs { groups, ends }
            };
            same.entry((form(node)?, common)).or_default().push(at);
        }
        let mut groups = Vec::new();
        for group in same.into_values() {
            if group.len() > 1 {
                groups.push(group);
            }
        }
        groups.sort();
        Ok(groups)
    }

    /// The group of a lookup, if it has one.
    fn group_of(&self, node: &Node<'a>) -> Result<Option<Group<'a>>> {
        let group = (node.string(GROUP)?, node.op);
        Ok(self.parts.contains_key(&group).then_some(group))
    }

    /// Whether one of some nodes depends on another one.
    fn depends_on_itself(&mut self, members: &[usize]) -> Result<bool> {
        self.walks += 1;
        let mut waiting = Vec::new();
        for &at in members {
            self.go_up(self.graph.node(at)?, &mut waiting);
        }
        while let Some(at) = waiting.pop() {
            self.steps += 1;
            if members.contains(&at) {
                return Ok(true);
            }
            self.go_up_together(at, &mut waiting)?;
        }
        Ok(false)
    }

    /// Notes that some lookups share an op.
    fn note(&mut self, verb: &str, together: &[usize]) -> Result<()> {
        let mut groups = BTreeSet::new();
        for &at in together {
            groups.extend(self.above(at, verb)?.groups);
        }
        let group = self.groups.len();
        self.joined.extend(together.iter().map(|&at| (at, group)));
        self.groups.push(groups);
        Ok(())
    }

    /// Begins a walk, at a node.
    fn begin(&mut self, at: usize) -> Vec<usize> {
        self.walks += 1;
        self.is_new(at);
        vec![at]
    }

    /// Whether a walk meets a node for the first time.
    fn is_new(&mut self, at: usize) -> bool {
        mark(&mut self.seen, self.walks, at)
    }

    /// Goes on with a walk to what a node reads and waits for.
    fn go_up(&mut self, node: &Node<'a>, waiting: &mut Vec<usize>) {
        let graph = self.graph;
        waiting.extend(graph.sources(node).filter(|&source| self.is_new(source)));
    }

    /// The same, of a lookup also what the others of its group read.
    fn go_up_together(&mut self, at: usize, waiting: &mut Vec<usize>) -> Result<()> {
        let node = self.graph.node(at)?;
        if self.lookups.contains(&at) {
            let group = self.group_of(node)?;
            let parts = group.and_then(|group| self.parts.get(&group)).cloned();
            let parts = parts.into_iter().flatten();
            waiting.extend(parts.filter(|&at| self.is_new(at)));
        }
        self.go_up(node, waiting);
        Ok(())
    }

    /// What a lookup depends on.
    fn above(&mut self, of: usize, verb: &str) -> Result<Above> {
        let mut found = Above {
            groups: BTreeSet::new(),
            is_later: false,
        };
        let mut waiting = self.begin(of);
        while let Some(at) = waiting.pop() {
            self.steps += 1;
            let node = self.graph.node(at)?;
            if at != of {
                found.is_later |= node.op == verb && self.lookups.contains(&at);
                // An update comes to wait for what reads its rows, where sums of these are fused.
                found.is_later |= node.op == UPDATE && verb == "MxRecRead";
                if let Some(&group) = self.joined.get(&at) {
                    // What depends on one of these depends on all of them.
                    found.groups.insert(group);
                    found
                        .groups
                        .extend(self.groups.get(group).into_iter().flatten());
                    continue;
                }
            }
            self.go_up_together(at, &mut waiting)?;
        }
        Ok(found)
    }

    /// The updates that depend on a lookup; without any what depends on it and has nothing that
    /// depends on it.
    fn ends(&mut self, of: usize) -> Result<BTreeSet<usize>> {
        let mut found = Below::default();
        let mut waiting = self.begin(of);
        while let Some(at) = waiting.pop() {
            self.steps += 1;
            if let Some(below) = self.below.get(&at) {
                found.ends.extend(&below.ends);
                found.updates.extend(&below.updates);
                continue;
            }
            let node = self.graph.node(at)?;
            if node.op == UPDATE {
                found
                    .updates
                    .insert(self.updates.get(&at).copied().unwrap_or(at));
            }
            let mut is_end = true;
            for &(reader, _) in self.graph.all_readers(at) {
                is_end = false;
                if mark(&mut self.seen, self.walks, reader) {
                    waiting.push(reader);
                }
            }
            if is_end && !self.is_left_over(node) {
                found.ends.insert(at);
            }
        }
        let ends = match found.updates.is_empty() {
            true => found.ends.clone(),
            false => found.updates.clone(),
        };
        self.below.insert(of, found);
        Ok(ends)
    }

    /// Whether nobody asks for what nobody reads.
    fn is_left_over(&self, node: &Node<'a>) -> bool {
        let is_gradient = || {
            let mut scopes = node.name.split('/').rev().skip(1);
            scopes.any(|scope| scope.ends_with(GRADIENT_SCOPE) || scope_is_numbered(scope))
        };
        let is_stateless = !self.ops.get(node.op).copied().unwrap_or(true);
        SHAPES.contains(&node.op) || (is_stateless && is_gradient())
    }

    fn planned(&self, verb: &str, together: &[usize]) -> Result<PlannedGroup> {
        let first = together.first().copied().unwrap_or_default();
        let was_one = self.group_of(self.graph.node(first)?)?.is_some();
        Ok(PlannedGroup {
            op: verb.to_owned(),
            nodes: self.graph.names(together.iter().copied())?,
            reason: match was_one {
                true => "the script made them together".to_owned(),
                false => "every run that needs one needs all".to_owned(),
            },
        })
    }
}

/// Marks a node as met by a walk; says whether it was not before.
fn mark(seen: &mut [usize], walk: usize, at: usize) -> bool {
    let last = seen.get_mut(at);
    last.is_some_and(|last| std::mem::replace(last, walk) != walk)
}

/// Whether a scope is one of gradients of which TensorFlow has made several, as `mul_grad_1`.
fn scope_is_numbered(scope: &str) -> bool {
    let number = scope.rsplit_once('_');
    number.is_some_and(|(rest, number)| {
        rest.ends_with(GRADIENT_SCOPE) && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// What lookups that share an op have in common of their own: device and attributes.
type Form<'a> = (&'a [u8], Vec<u64>);

fn form<'a>(node: &Node<'a>) -> Result<Form<'a>> {
    let number = |name: &str| Ok(node.int(name)?.map_or(0, i64::cast_unsigned));
    let of_each = |name: &str| Ok(u64::from(length(node, name)? > 0));
    let attributes = match node.op {
        "MxRecIdOffset" => vec![number("create")?, number("limit")?, of_each("P")?],
        "MxRecFind" => vec![of_each("B")?],
        SPARSE_BAGS => vec![number("leave_out")?, number("fill")?],
        _ => vec![of_each("B")?, of_each("R")?],
    };
    let dtype = node.dtype("T")?.unwrap_or(0);
    let all = std::iter::once(dtype).chain(attributes).collect();
    Ok((node.device()?, all))
}

/// Whether a node is a lookup of one table that may share an op.
fn is_lookup(node: &Node<'_>) -> Result<bool> {
    let has_form = match node.op {
        "MxRecIdOffset" => length(node, "P")? == 0,
        "MxRecFind" => length(node, "initial")? == 0,
        // The rows of distinct keys are no lookup.
        "MxRecRead" => length(node, "R")? > 0,
        SPARSE_BAGS => true,
        _ => return Ok(false),
    };
    Ok(has_form && members(node)? == 1)
}

/// Whether a node waits for nothing, is found by its name, and reads the handle of its table as
/// this gives it, which a branch or a loop does not. What makes bags has no table: in a branch it
/// has no value in some runs, and in a loop it waits for this or reads what has none at its end.
fn stands_free(graph: &Graph<'_>, at: usize, node: &Node<'_>) -> Result<bool> {
    if graph.find(node.name) != InputSource::Node(at) || graph.waits(node).next().is_some() {
        return Ok(false);
    }
    if node.op == SPARSE_BAGS {
        return Ok(true);
    }
    let table = graph.data_input(node, 0);
    Ok(table.is_some_and(|handle| source_of(graph, handle).is_some_and(|of| of.op == TABLE)))
}
