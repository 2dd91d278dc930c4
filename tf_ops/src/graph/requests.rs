//! The rule for lookups on parameter servers that share requests: each server is asked once for the
//! rows of all, and pushed their gradients once.
//!
//! A run that needs one of them then pulls the rows of all. So only lookups share whose ids come
//! from the same placeholders, iterators, queues and other ops that a run has to feed, or whose
//! running changes something: whoever can run one can run all, and nothing is read or changed that
//! the run would have left alone, but for rows of ids of the same batch. Such lookups cannot depend
//! on each other: what one pulls would be a source of the other.

use super::alive::MOST_STEPS;
use super::graph_def::{Graph, InputSource, Node, NodeInput};
use super::library::StatefulOps;
use super::lists::members;
use super::tensors::tables_of;
use super::together::PUSH;
use mx_rec_kernels::Result;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The op that makes the ids of lookups distinct and gives their requests.
pub(super) const SPLIT: &str = "MxRecDistinctSplit";

/// The values of `create` of MxRecPull with which keys get no rows: zeros, or initial values.
const GIVES_NO_ROWS: [i64; 2] = [0, 3];

/// What takes the gradients of a table for SyncReplicasOptimizer, and what may lie between it and
/// the keys.
const ACCUMULATE: &str = "SparseAccumulatorApplyGradient";
const PASSING: [&str; 3] = ["Identity", "ConcatV2", "Cast"];

/// What reads the outputs of a node whose keys are only pushed.
const PUSHED_BY: [&str; 4] = ["MxRecReduce", "MxRecPackGradients", "SplitV", PUSH];

/// Sums of more gradients of one table have other bits in another order.
const ORDERLESS: usize = 2;

const PLACEHOLDERS: [&str; 2] = ["Placeholder", "PlaceholderV2"];

/// Ops with a state that a run reads and does not change.
const READING: [&str; 12] = [
    "VariableV2",
    "VarHandleOp",
    "ReadVariableOp",
    "VarIsInitializedOp",
    "HashTable",
    "HashTableV2",
    "MutableHashTable",
    "MutableHashTableV2",
    "LookupTableFind",
    "LookupTableFindV2",
    "LookupTableSize",
    "LookupTableSizeV2",
];

/// Lookups that share requests.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedRequests {
    /// The iterator into whose pipeline they move, an index in [`super::Plan::iterators`]; `None`
    /// if they stay in the step.
    pub iterator: Option<usize>,
    /// Names of the nodes that make their ids distinct, in the order of their gradients in the
    /// update.
    pub nodes: Vec<String>,
    /// Why they share, a sentence.
    pub reason: String,
}

/// Finds the lookups that share requests, in the order of the graph; `moving` has the iterator of
/// each node all of whose lookups move, and only those share that move with the same one, and
/// `joined` for each update that shares an op the first of those that do.
///
/// # Errors
/// `InvalidArgument` if an attribute cannot be read.
pub(super) fn find(
    graph: &Graph<'_>,
    ops: &StatefulOps<'_>,
    moving: &HashMap<usize, usize>,
    joined: &HashMap<usize, usize>,
) -> Result<Vec<PlannedRequests>> {
    let mut rule = Rule {
        graph,
        ops,
        joined,
        steps: 0,
    };
    let mut alike: BTreeMap<(Form<'_>, Option<usize>), Vec<Lookup>> = BTreeMap::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        if node.op == SPLIT {
            if let Some((form, lookup)) = rule.lookup(at, node)? {
                let iterator = moving.get(&at).copied();
                alike.entry((form, iterator)).or_default().push(lookup);
            }
        }
    }
    let mut found = Vec::new();
    for ((form, iterator), lookups) in alike {
        if lookups.len() < 2 {
            continue;
        }
        let mut by_sources: BTreeMap<BTreeSet<usize>, Vec<Lookup>> = BTreeMap::new();
        for lookup in lookups {
            // What is only pushed is needed by every run that needs the update.
            let sources = match form.pulls[..] {
                [] => Some(BTreeSet::new()),
                _ => rule.sources(lookup.node)?,
            };
            if let Some(sources) = sources {
                by_sources.entry(sources).or_default().push(lookup);
            }
        }
        for same in by_sources.into_values() {
            for run in rule.in_order_of_push(same, form.pushes.first().copied())? {
                let first = run.iter().map(|one| one.node).min();
                if let (2.., Some(first)) = (run.len(), first) {
                    found.push((first, rule.planned(&run, &form, iterator)?));
                }
            }
        }
    }
    found.sort_by_key(|&(first, _)| first);
    Ok(found.into_iter().map(|(_, planned)| planned).collect())
}

/// A lookup that may share requests.
struct Lookup {
    /// The node that makes its ids distinct.
    node: usize,
    /// The request for the first server.
    request: (usize, u64),
}

/// What lookups that share requests have in common, but for where their ids come from.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Form<'a> {
    /// How the tables are cut, and the limit of distinct keys.
    attributes: [Option<i64>; 3],
    device: &'a [u8],
    /// For each server whether keys get rows, and where it is; nothing for gradients of what was
    /// not looked up.
    pulls: Vec<(i64, &'a [u8])>,
    /// What these wait for.
    waits: BTreeSet<usize>,
    /// The update of each server that takes their gradients, of those that share an op the first.
    pushes: Vec<usize>,
    /// Whether their gradients go to accumulators.
    accumulates: bool,
}

struct Rule<'g, 'a> {
    graph: &'g Graph<'a>,
    ops: &'g StatefulOps<'a>,
    joined: &'g HashMap<usize, usize>,
    /// The nodes that walks have met.
    steps: usize,
}

impl<'g, 'a> Rule<'g, 'a> {
    /// A lookup that may share requests; `None` if something waits, is counted, is read by others
    /// or is pushed in another way than that of one lookup.
    fn lookup(&mut self, at: usize, node: &Node<'a>) -> Result<Option<(Form<'a>, Lookup)>> {
        let graph = self.graph;
        let is_alone = graph.find(node.name) != InputSource::Node(at)
            || node.int("counted")?.unwrap_or(0) != 0;
        let requests = self.requests(at, node)?;
        let (Some(&request), false) = (requests.first(), is_alone) else {
            return Ok(None);
        };
        let stitches = self.readers((at, 0), "MxRecStitch")?;
        let is_looked_up = !stitches.is_empty();
        match stitches[..] {
            [] if self.is_only_pushed(at)? => {}
            [stitch] if !self.waits(stitch)? && !self.waits(at)? => {}
            _ => return Ok(None),
        }
        let (mut pulls, mut pushes) = (Vec::new(), Vec::new());
        let mut is_training = false;
        for &one in &requests {
            match self.readers(one, "MxRecPull")?[..] {
                [pull] if is_looked_up && !self.waits(pull)? => {
                    let create = graph.node(pull)?.int("create")?.unwrap_or(0);
                    is_training |= !GIVES_NO_ROWS.contains(&create);
                    pulls.push((create, graph.node(pull)?.device()?));
                }
                [] if !is_looked_up => {}
                _ => return Ok(None),
            }
            let mut taking = self.readers(one, PUSH)?;
            // What another push has taken the place of does not run.
            taking.retain(|&push| !graph.all_readers(push).is_empty());
            match taking[..] {
                [] => {}
                [push] if self.takes(push, &requests)? == 1 => {
                    pushes.push(self.joined.get(&push).copied().unwrap_or(push));
                }
                _ => return Ok(None),
            }
        }
        if !is_looked_up && pushes.is_empty() {
            return Ok(None);
        }
        let accumulates = is_training && pushes.is_empty() && self.accumulates(at, node)?;
        if is_training && pushes.is_empty() && !accumulates {
            // A run need not need it with any other, and what is pulled may get a row.
            return Ok(None);
        }
        let waits = graph.waits(node);
        let waits = waits.filter_map(|input| input.source.at());
        let form = Form {
            attributes: [
                node.int("parts")?,
                node.int("together")?,
                node.int("limit")?,
            ],
            device: node.device()?,
            pulls,
            waits: waits.collect(),
            pushes,
            accumulates,
        };
        Ok(Some((form, Lookup { node: at, request })))
    }

    /// The tensors of the request for each server.
    fn requests(&self, at: usize, node: &Node<'a>) -> Result<Vec<(usize, u64)>> {
        let output = 3 * members(node)? as u64;
        let cut = self.readers((at, output), "SplitV")?.first().copied();
        let Some(cut) = cut else {
            return Ok(vec![(at, output)]);
        };
        let servers = self.graph.node(cut)?.int("num_split")?;
        // A server that does not pull is none.
        let servers = u64::try_from(servers.unwrap_or(0)).unwrap_or(0);
        let known = self.graph.all_readers(cut).len() as u64;
        Ok((0..servers.min(known + 1)).map(|one| (cut, one)).collect())
    }

    /// The nodes of a type that read a tensor, each once.
    fn readers(&self, (node, output): (usize, u64), op: &str) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        for reading in self.graph.readers(node, output)? {
            if self.graph.node(reading.node)?.op == op && !found.contains(&reading.node) {
                found.push(reading.node);
            }
        }
        Ok(found)
    }

    /// Whether nothing else is made of the keys of a node than sums of gradients.
    fn is_only_pushed(&self, at: usize) -> Result<bool> {
        for &(reader, place) in self.graph.all_readers(at) {
            let node = self.graph.node(reader)?;
            let input = self.graph.inputs(node).get(place);
            if !PUSHED_BY.contains(&node.op) || input.is_none_or(NodeInput::is_control) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn waits(&self, at: usize) -> Result<bool> {
        Ok(self.graph.waits(self.graph.node(at)?).next().is_some())
    }

    /// How many inputs of a node are among some tensors.
    fn takes(&self, at: usize, tensors: &[(usize, u64)]) -> Result<usize> {
        let inputs = self.graph.inputs(self.graph.node(at)?);
        let taken = inputs.iter().filter_map(NodeInput::place);
        Ok(taken.filter(|one| tensors.contains(one)).count())
    }

    /// Whether the gradients of all lookups of a node go to accumulators.
    fn accumulates(&mut self, at: usize, node: &Node<'a>) -> Result<bool> {
        for keys in 0..members(node)? as u64 {
            let (mut waiting, mut seen) = (vec![(at, Some(keys))], HashSet::new());
            let mut is_found = false;
            while let (Some((from, output)), false) = (waiting.pop(), is_found) {
                for &(reader, place) in self.graph.all_readers(from) {
                    let node = self.graph.node(reader)?;
                    let input = self.graph.inputs(node).get(place);
                    let reads = input.is_some_and(|input| {
                        !input.is_control() && (output.is_none() || input.output == output)
                    });
                    self.steps += 1;
                    if reads && PASSING.contains(&node.op) && seen.insert(reader) {
                        waiting.push((reader, None));
                    }
                    is_found |= reads && node.op == ACCUMULATE;
                }
            }
            if !is_found || self.steps > MOST_STEPS {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The nodes that the ids of a lookup come from which are fed, or whose running changes
    /// something; `None` if the graph is too large to find out.
    fn sources(&mut self, of: usize) -> Result<Option<BTreeSet<usize>>> {
        let (mut found, mut waiting, mut seen) = (BTreeSet::new(), vec![of], HashSet::from([of]));
        while let Some(at) = waiting.pop() {
            self.steps += 1;
            if self.steps > MOST_STEPS {
                return Ok(None);
            }
            let node = self.graph.node(at)?;
            let changes = || {
                let is_stateful = self.ops.get(node.op).copied().unwrap_or(true);
                is_stateful && !READING.contains(&node.op)
            };
            if at != of && (PLACEHOLDERS.contains(&node.op) || changes()) {
                found.insert(at);
            }
            let sources = self.graph.sources(node);
            waiting.extend(sources.filter(|&source| seen.insert(source)));
        }
        Ok(Some(found))
    }

    /// Lookups that come to share requests, in the order of their gradients in the update.
    ///
    /// What would pass another gradient of its table does not share, if there are so many that the
    /// order of the sum has a meaning.
    fn in_order_of_push(
        &self,
        lookups: Vec<Lookup>,
        push: Option<usize>,
    ) -> Result<Vec<Vec<Lookup>>> {
        let Some(first) = push else {
            return Ok(vec![lookups]);
        };
        let mut pushes = vec![first];
        let others = self.joined.iter().filter(|&(_, &of)| of == first);
        pushes.extend(others.map(|(&push, _)| push).filter(|&push| push != first));
        pushes.sort_unstable();
        let (mut tables, mut places) = (Vec::new(), HashMap::new());
        for push in pushes {
            let node = self.graph.node(push)?;
            let count = members(node)?;
            let inputs = self.graph.inputs(node);
            for (config, request) in inputs.iter().zip(inputs.iter().skip(count)).take(count) {
                let Some(names) = tables_of(self.graph, config)? else {
                    return Ok(Vec::new());
                };
                places.insert(request.place(), tables.len());
                tables.push(names);
            }
        }
        let mut times: HashMap<&str, usize> = HashMap::new();
        for name in tables.iter().flatten() {
            *times.entry(name).or_default() += 1;
        }
        let mut by_place: BTreeMap<usize, Lookup> = BTreeMap::new();
        for lookup in lookups {
            if let Some(&place) = places.get(&Some(lookup.request)) {
                by_place.insert(place, lookup);
            }
        }
        let (mut runs, mut passed) = (Vec::<Vec<Lookup>>::new(), HashSet::new());
        for (place, names) in tables.iter().enumerate() {
            let Some(lookup) = by_place.remove(&place) else {
                passed.extend(names);
                continue;
            };
            let is_ordered = names.iter().any(|name| {
                passed.contains(name) && times.get(name.as_str()).copied() > Some(ORDERLESS)
            });
            match runs.last_mut() {
                Some(run) if !is_ordered => run.push(lookup),
                _ => {
                    runs.push(vec![lookup]);
                    passed.clear();
                }
            }
        }
        Ok(runs)
    }

    fn planned(
        &self,
        run: &[Lookup],
        form: &Form<'a>,
        iterator: Option<usize>,
    ) -> Result<PlannedRequests> {
        let gradients = match (form.pushes.is_empty(), form.accumulates) {
            (false, _) => "one update takes their gradients, and ",
            (true, true) => "accumulators take their gradients, and ",
            (true, false) => "",
        };
        Ok(PlannedRequests {
            iterator,
            nodes: self.graph.names(run.iter().map(|one| one.node))?,
            reason: format!("{gradients}a run that can have one can have all"),
        })
    }
}
