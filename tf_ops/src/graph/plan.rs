//! The plan: which lookups move into which pipeline with which nodes, and why the others stay.

use super::bags::{self, MovingBags};
use super::concats::{self, PlannedConcat};
use super::describe::{described, quoted, several};
use super::graph_def::{item, read_ops, Graph, InputSource, Node, NodeInput, ShapeOf};
use super::iterators::{ExtendableIterator, Iterators};
use super::library::{Library, StatefulOps};
use super::lists::members;
use super::readers::source_of;
use super::requests::{self, PlannedRequests, SPLIT};
use super::slice::{Slicer, Verdict};
use super::sums::{self, PlannedSums};
use super::together::{self, PlannedGroup};
use super::updates::{self, PlannedUpdates};
use crate::guard::guarded;
use mx_rec_kernels::{Error, Kind, Result};
use serde::Serialize;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// The attribute that marks lookups for the pass; python/mx_rec/ops/lookups.py sets it.
const MOVABLE: &str = "_mx_rec_movable";

/// The limit of all copies together, in sizes of the graph: nodes that feed several iterators are
/// copied for each.
const MOST_COPIES: usize = 8;

/// The kind of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LookupKind {
    /// MxRecIdOffset of one table with create=1.
    Train,
    /// MxRecFind of one table.
    Eval,
    /// MxRecObserve: counts keys, which is allowed only in the step that uses the batch.
    Admit,
    /// One lookup of an MxRecDistinctSplit, of a table on parameter servers: needs no table.
    Split,
}

/// How an iterator starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IteratorKind {
    /// Its MakeIterator ops start it.
    Initializable,
    /// It starts itself.
    OneShot,
}

/// One marked lookup.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedLookup {
    /// Name of the marked node.
    pub node: String,
    /// Which of its lookups this is.
    pub member: usize,
    /// Its kind.
    pub kind: LookupKind,
    /// Name of its table.
    pub table: String,
    /// Tensor of its table's handle.
    pub handle: String,
    /// Tensor of its ids.
    pub ids: String,
    /// Whether it moves.
    pub moves: bool,
    /// Index in [`Plan::iterators`] if it moves.
    pub iterator: Option<usize>,
    /// Why it moves or stays, a sentence.
    pub reason: String,
}

/// Ids of one or several lookups that move.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedIds {
    /// The tensor.
    pub tensor: String,
    /// The component of the element that they are; `None` if moved nodes compute them.
    pub component: Option<u64>,
    /// Their data type, as the number of TensorFlow's enum.
    pub dtype: u64,
}

/// An iterator whose pipeline is extended.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedIterator {
    /// Name of the only node that reads it.
    pub get_next: String,
    /// Name of its node.
    pub iterator: String,
    /// How it starts.
    pub kind: IteratorKind,
    /// Names of its MakeIterator nodes.
    pub initializers: Vec<String>,
    /// The number of components of its element.
    pub components: u64,
    /// Indices in [`Plan::lookups`].
    pub lookups: Vec<usize>,
    /// Distinct ids of these lookups.
    pub ids: Vec<PlannedIds>,
    /// Tensors that describe bags of these lookups and move with their ids.
    pub bags: Vec<String>,
    /// Names of the nodes to copy, inputs before consumers.
    pub nodes: Vec<String>,
    /// Offset and length of their GraphDef in [`Plan::graphs`].
    pub graph: [usize; 2],
}

/// What moves, and how.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The version of this encoding, 1.
    pub version: u32,
    /// The number of nodes of the graph.
    pub nodes: usize,
    /// All marked lookups, in the order of the graph.
    pub lookups: Vec<PlannedLookup>,
    /// The iterators that feed those that move, in the order of their first lookups.
    pub iterators: Vec<PlannedIterator>,
    /// The lookups whose rows are summed over bags, in the order of the graph.
    pub sums: Vec<PlannedSums>,
    /// The concatenations of lookups, in the order of the graph.
    pub concats: Vec<PlannedConcat>,
    /// The updates that change.
    pub updates: Vec<PlannedUpdates>,
    /// The lookups that share an op.
    pub together: Vec<PlannedGroup>,
    /// The lookups on parameter servers that share requests.
    pub requests: Vec<PlannedRequests>,
    /// The rules that failed, which change nothing: what they are for, and why, a sentence each.
    pub left_out: Vec<String>,
    /// The GraphDefs of the nodes to copy.
    #[serde(skip)]
    pub graphs: Vec<u8>,
}

impl Plan {
    /// Plans a serialized GraphDef; `ops` is a serialized OpList, which says what ops are stateful.
    /// Without `moves` nothing is to move, and there are no lookups and iterators in the plan.
    /// `shape_of` is asked for the few static shapes that the rules need; without it they are what
    /// attributes state (`_output_shapes`).
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are not such messages. An unusual graph is not an error: its
    /// lookups stay.
    pub fn make(
        graph: &[u8],
        ops: &[u8],
        moves: bool,
        shape_of: Option<&ShapeOf<'_>>,
    ) -> Result<Self> {
        let ops = read_ops(ops)?;
        let graph = Graph::parse(graph)?.with_shapes(shape_of);
        let mut left_out = Vec::new();
        let updates = found("updates", &mut left_out, || updates::find(&graph, &ops));
        let mut plan = Self {
            version: 1,
            nodes: graph.nodes.len(),
            lookups: Vec::new(),
            iterators: Vec::new(),
            sums: found("sums over bags", &mut left_out, || sums::find(&graph)),
            concats: found("concatenations", &mut left_out, || concats::find(&graph)),
            together: found("lookups that share an op", &mut left_out, || {
                together::find(&graph, &ops, &updates.first)
            }),
            updates: updates.planned,
            requests: Vec::new(),
            left_out,
            graphs: Vec::new(),
        };
        let marked = if moves { marked(&graph)? } else { Vec::new() };
        if !marked.is_empty() {
            Planner::new(&graph, &ops)?.fill(&marked, &mut plan)?;
        }
        let moving = moving(&marked, &plan.lookups);
        plan.requests = found("requests that lookups share", &mut plan.left_out, || {
            requests::find(&graph, &ops, &moving, &updates.first)
        });
        Ok(plan)
    }

    /// The encoding for the C interface: the length of the JSON (8 bytes, little-endian), the JSON,
    /// the GraphDefs.
    ///
    /// # Errors
    /// `Internal` if the JSON cannot be written.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let json = serde_json::to_vec(self).map_err(|cause| {
            Error::new(
                Kind::Internal,
                format!("the plan cannot be written: {cause}"),
            )
        })?;
        let mut bytes = Vec::with_capacity(8 + json.len() + self.graphs.len());
        bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&json);
        bytes.extend_from_slice(&self.graphs);
        Ok(bytes)
    }
}

/// What a rule finds: nothing, and why, if it fails. The others hold without it.
fn found<T: Default>(of: &str, left_out: &mut Vec<String>, rule: impl FnOnce() -> Result<T>) -> T {
    guarded(rule).unwrap_or_else(|error| {
        left_out.push(format!("{of}: {error}"));
        T::default()
    })
}

/// A marked lookup: its node, its kind, and which of the lookups of its node it is.
type Marked = (usize, LookupKind, usize);

/// The marked lookups.
fn marked(graph: &Graph<'_>) -> Result<Vec<Marked>> {
    let mut found = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let kind = match node.op {
            "MxRecIdOffset" => LookupKind::Train,
            "MxRecFind" => LookupKind::Eval,
            "MxRecObserve" => LookupKind::Admit,
            SPLIT => LookupKind::Split,
            _ => continue,
        };
        let is_lookup = match kind {
            LookupKind::Train => node.int("create")? == Some(1) && members(node)? == 1,
            LookupKind::Eval => members(node)? == 1,
            LookupKind::Admit | LookupKind::Split => true,
        };
        if node.flag(MOVABLE)? && is_lookup {
            let count = match kind {
                LookupKind::Split => members(node)?,
                _ => 1,
            };
            found.extend((0..count).map(|member| (at, kind, member)));
        }
    }
    Ok(found)
}

/// The iterators of those nodes for lookups on parameter servers of which all lookups move with
/// one.
fn moving(marked: &[Marked], lookups: &[PlannedLookup]) -> HashMap<usize, usize> {
    let mut found: HashMap<usize, Option<usize>> = HashMap::new();
    for (&(at, kind, _), lookup) in marked.iter().zip(lookups) {
        if kind == LookupKind::Split {
            let known = found.entry(at).or_insert(lookup.iterator);
            *known = known.filter(|_| *known == lookup.iterator);
        }
    }
    let all = found.into_iter();
    all.filter_map(|(at, iterator)| Some((at, iterator?)))
        .collect()
}

/// A lookup that moves.
struct MovingLookup {
    lookup: usize,
    /// The node of its ids.
    ids: usize,
    component: Option<u64>,
    dtype: u64,
    bags: Vec<MovingBags>,
}

/// An iterator and the lookups that it feeds.
struct FeedingIterator {
    get_next: usize,
    usable: Rc<ExtendableIterator>,
    lookups: Vec<MovingLookup>,
}

struct Planner<'g, 'a> {
    graph: &'g Graph<'a>,
    library: Library<'a>,
    slices: Slicer<'g, 'a>,
    iterators: Iterators<'g, 'a>,
    /// For each node, the iterator that copied it last: its index in the plan plus one.
    stamps: Vec<usize>,
    /// The number of bytes that may still be copied.
    budget: usize,
}

impl<'g, 'a> Planner<'g, 'a> {
    fn new(graph: &'g Graph<'a>, ops: &'g StatefulOps<'a>) -> Result<Self> {
        let nodes: usize = graph.nodes.iter().map(|node| node.bytes.len()).sum();
        let functions: usize = graph.functions.iter().map(|bytes| bytes.len()).sum();
        Ok(Self {
            graph,
            library: Library::new(&graph.functions)?,
            slices: Slicer::new(graph, ops),
            iterators: Iterators::new(graph)?,
            stamps: vec![0; graph.nodes.len()],
            budget: (nodes + functions).saturating_mul(MOST_COPIES),
        })
    }

    fn fill(&mut self, marked: &[Marked], plan: &mut Plan) -> Result<()> {
        let mut fed: Vec<FeedingIterator> = Vec::new();
        let mut places: HashMap<usize, usize> = HashMap::new();
        for (place, &(at, kind, member)) in marked.iter().enumerate() {
            let node = self.graph.node(at)?;
            let decision = self.decide((place, at), node, (kind, member))?;
            let mut lookup = undecided(self.graph, node, (kind, member));
            match decision {
                Err(why) => lookup.reason = why.to_string(),
                Ok(feeding) => {
                    for moving in &feeding.lookups {
                        lookup.reason =
                            self.why_it_moves(kind, feeding.get_next, moving.component)?;
                        if !moving.bags.is_empty() {
                            lookup.reason += "; what describes its bags moves with them";
                        }
                    }
                    match places.entry(feeding.get_next) {
                        Entry::Occupied(entry) => {
                            if let Some(fed) = fed.get_mut(*entry.get()) {
                                fed.lookups.extend(feeding.lookups);
                            }
                        }
                        Entry::Vacant(entry) => {
                            entry.insert(fed.len());
                            fed.push(feeding);
                        }
                    }
                }
            }
            plan.lookups.push(lookup);
        }
        for fed in &fed {
            self.add_iterator(fed, plan)?;
        }
        Ok(())
    }

    /// The iterator of a lookup that moves, or why it stays; `place` is that of the lookup.
    fn decide(
        &mut self,
        (place, at): (usize, usize),
        node: &Node<'a>,
        (kind, member): (LookupKind, usize),
    ) -> Result<std::result::Result<FeedingIterator, Rc<str>>> {
        let graph = self.graph;
        if graph.find(node.name) != InputSource::Node(at) {
            return Ok(Err(several(node).into()));
        }
        let no_ids = || format!("{} has no input of ids", described(node)).into();
        let Some(ids) = ids_input(graph, node, (kind, member)) else {
            return Ok(Err(no_ids()));
        };
        let (get_next, component) = match self.slices.judge(node, ids, &mut self.library)? {
            Verdict::Stays(why) => return Ok(Err(why)),
            Verdict::Constant => {
                let tensor = quoted(ids.node);
                let why = format!(
                    "its ids {tensor} are constant and come from no iterator: nothing to move"
                );
                return Ok(Err(why.into()));
            }
            Verdict::From {
                get_next,
                component,
            } => (get_next, component),
        };
        let usable = match self.iterators.judge(get_next)? {
            Ok(usable) => usable,
            Err(why) => return Ok(Err(why)),
        };
        if let Some(why) = wrong_handle(graph, node, kind) {
            return Ok(Err(why.into()));
        }
        let Some(dtype) = node.dtype("T")? else {
            let why = format!("{} does not state the type of its ids", described(node));
            return Ok(Err(why.into()));
        };
        let InputSource::Node(ids) = ids.source else {
            return Ok(Err(no_ids()));
        };
        // Ids that are ready made can be fed; then their bags have to follow.
        let bags = match component {
            Some(_) => Vec::new(),
            None => bags::moving(graph, &mut self.slices, &mut self.library, (at, get_next))?,
        };
        Ok(Ok(FeedingIterator {
            get_next,
            usable,
            lookups: vec![MovingLookup {
                lookup: place,
                ids,
                component,
                dtype,
                bags,
            }],
        }))
    }

    fn why_it_moves(
        &self,
        kind: LookupKind,
        get_next: usize,
        component: Option<u64>,
    ) -> Result<String> {
        let from = quoted(self.graph.node(get_next)?.name);
        let origin = match component {
            Some(component) => format!("its ids are component {component} of {from}"),
            None => format!("its ids are computed from {from} by ops without state"),
        };
        let ids = match component {
            Some(_) => "ready made",
            None => "which move",
        };
        Ok(match (kind, component) {
            (LookupKind::Train, Some(_)) => format!("{origin}: the search for their rows moves"),
            (LookupKind::Train, None) => {
                format!("{origin}: they move, and the search for rows with them")
            }
            (LookupKind::Eval, _) => format!("{origin}, {ids}; rows are looked up in the step"),
            (LookupKind::Admit, _) => format!("{origin}, {ids}; keys are counted in the step"),
            (LookupKind::Split, _) => {
                format!("{origin}, {ids}; they are made distinct there, for the parameter servers")
            }
        })
    }

    /// Adds an iterator to the plan. If its copies would be too large, its lookups stay instead.
    fn add_iterator(&mut self, fed: &FeedingIterator, plan: &mut Plan) -> Result<()> {
        let graph = self.graph;
        let get_next = graph.node(fed.get_next)?;
        let moved = self.moved_nodes(fed, plan.iterators.len() + 1)?;
        for moving in &fed.lookups {
            if let Some(lookup) = plan.lookups.get_mut(moving.lookup) {
                lookup.moves = moved.is_some();
                lookup.iterator = moved.is_some().then_some(plan.iterators.len());
                if moved.is_none() {
                    let name = quoted(get_next.name);
                    lookup.reason = format!(
                        "what computes the ids from {name} is too large to be copied once more"
                    );
                }
            }
        }
        let Some((nodes, bytes)) = moved else {
            // Later iterators are not tried: each attempt could walk the same nodes again.
            self.budget = 0;
            return Ok(());
        };
        let (mut ids, mut known) = (Vec::new(), HashSet::new());
        for moving in &fed.lookups {
            let tensor = item(&plan.lookups, moving.lookup)?.ids.as_str();
            if known.insert(tensor) {
                ids.push(PlannedIds {
                    tensor: tensor.to_owned(),
                    component: moving.component,
                    dtype: moving.dtype,
                });
            }
        }
        let mut described: Vec<String> = Vec::new();
        for MovingBags { tensor, .. } in fed.lookups.iter().flat_map(|moving| &moving.bags) {
            if known.insert(tensor) {
                described.push(tensor.clone());
            }
        }
        plan.iterators.push(PlannedIterator {
            get_next: get_next.name.to_owned(),
            iterator: graph.node(fed.usable.iterator)?.name.to_owned(),
            kind: match fed.usable.one_shot {
                true => IteratorKind::OneShot,
                false => IteratorKind::Initializable,
            },
            initializers: graph.names(fed.usable.initializers.iter().copied())?,
            components: self.slices.components(fed.get_next)?,
            lookups: fed.lookups.iter().map(|moving| moving.lookup).collect(),
            ids,
            bags: described,
            nodes: graph.names(nodes)?,
            graph: [plan.graphs.len(), bytes.len()],
        });
        plan.graphs.extend_from_slice(&bytes);
        Ok(())
    }

    /// The nodes that compute the ids of an iterator's lookups, inputs first, and their GraphDef;
    /// `None` if they exceed the budget of copies.
    fn moved_nodes(
        &mut self,
        fed: &FeedingIterator,
        stamp: usize,
    ) -> Result<Option<(Vec<usize>, Vec<u8>)>> {
        let graph = self.graph;
        if !self.spend(graph.versions_size()) {
            return Ok(None);
        }
        let mut nodes = Vec::new();
        let computed = fed
            .lookups
            .iter()
            .filter(|moving| moving.component.is_none());
        for moving in computed {
            let bags = moving.bags.iter().map(|one| one.node);
            for root in std::iter::once(moving.ids).chain(bags) {
                if !self.collect(root, fed.get_next, stamp, &mut nodes)? {
                    return Ok(None);
                }
            }
        }
        let (mut definitions, mut calls) = (Vec::with_capacity(nodes.len()), Vec::new());
        for &at in &nodes {
            let node = graph.node(at)?;
            definitions.push(node.unplaced()?);
            calls.extend(self.library.called_by(node)?.unwrap_or_default());
        }
        let mut functions = Vec::new();
        for at in self.library.closure(calls)? {
            let definition = self.library.definition(at)?;
            if !self.spend(definition.len()) {
                return Ok(None);
            }
            functions.push(definition);
        }
        let bytes = graph.with_nodes(&definitions, &functions);
        Ok(Some((nodes, bytes)))
    }

    /// Appends a node and all that it is computed from, inputs first, except for nodes that have
    /// the stamp already. False if they exceed the budget of copies.
    fn collect(
        &mut self,
        root: usize,
        get_next: usize,
        stamp: usize,
        nodes: &mut Vec<usize>,
    ) -> Result<bool> {
        let graph = self.graph;
        let mut stack = Vec::new();
        if !self.take(root, get_next, stamp, &mut stack)? {
            return Ok(false);
        }
        while let Some((at, done)) = stack.last_mut() {
            let Some(input) = graph.inputs(graph.node(*at)?).get(*done) else {
                nodes.push(*at);
                stack.pop();
                continue;
            };
            *done += 1;
            if let InputSource::Node(source) = input.source {
                if !self.take(source, get_next, stamp, &mut stack)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn take(
        &mut self,
        at: usize,
        get_next: usize,
        stamp: usize,
        stack: &mut Vec<(usize, usize)>,
    ) -> Result<bool> {
        let Some(old) = self.stamps.get_mut(at) else {
            return Ok(true);
        };
        if at == get_next || *old == stamp {
            return Ok(true);
        }
        *old = stamp;
        stack.push((at, 0));
        let size = self.graph.node(at)?.bytes.len();
        Ok(self.spend(size))
    }

    fn spend(&mut self, bytes: usize) -> bool {
        match self.budget.checked_sub(bytes) {
            Some(left) => {
                self.budget = left;
                true
            }
            None => false,
        }
    }
}

/// The entry of a lookup before the decision.
fn undecided(
    graph: &Graph<'_>,
    node: &Node<'_>,
    (kind, member): (LookupKind, usize),
) -> PlannedLookup {
    let handle = graph
        .data_input(node, 0)
        .filter(|_| kind != LookupKind::Split);
    let table = match (node.name.split_once("//"), handle) {
        (Some((scope, _)), _) => scope.rsplit('/').next().unwrap_or(scope),
        (None, Some(handle)) => handle.node,
        (None, None) => "",
    };
    let tensor = |input: Option<&NodeInput<'_>>| input.map(NodeInput::tensor).unwrap_or_default();
    PlannedLookup {
        node: node.name.to_owned(),
        member,
        kind,
        table: table.to_owned(),
        handle: tensor(handle),
        ids: tensor(ids_input(graph, node, (kind, member))),
        moves: false,
        iterator: None,
        reason: String::new(),
    }
}

fn ids_input<'g, 'a>(
    graph: &'g Graph<'a>,
    node: &Node<'a>,
    (kind, member): (LookupKind, usize),
) -> Option<&'g NodeInput<'a>> {
    let place = match kind {
        LookupKind::Train | LookupKind::Admit => 1,
        LookupKind::Eval => 2,
        LookupKind::Split => member,
    };
    graph.data_input(node, place)
}

/// Why the handle of a training lookup cannot be used in the pipeline.
fn wrong_handle(graph: &Graph<'_>, node: &Node<'_>, kind: LookupKind) -> Option<String> {
    if kind != LookupKind::Train {
        return None;
    }
    let handle = graph.data_input(node, 0)?;
    let tensor = quoted(&handle.tensor());
    match source_of(graph, handle) {
        Some(table) if table.op == "MxRecTable" && handle.output == Some(1) => None,
        Some(other) => Some(format!(
            "its handle {tensor}, of {}, is not that of an op MxRecTable",
            described(other)
        )),
        None => Some(format!("its handle {tensor} is not in the graph")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::panic, reason = "the panic is what the test is about")]
    fn a_rule_that_fails_is_left_out_and_says_why() {
        let mut left_out = Vec::new();
        assert_eq!(found("one", &mut left_out, || Ok(vec![1])), [1]);
        let failed: Vec<u8> = found("two", &mut left_out, || Err(Error::invalid("no attribute")));
        assert!(failed.is_empty());
        let failed: Vec<u8> = found("three", &mut left_out, || panic!("no node"));
        assert!(failed.is_empty());
        let [two, three] = left_out.as_slice() else {
            panic!("{left_out:?}")
        };
        assert!(
            two.starts_with("two: ") && two.contains("no attribute"),
            "{two}"
        );
        assert!(
            three.starts_with("three: ") && three.contains("no node"),
            "{three}"
        );
    }
}
