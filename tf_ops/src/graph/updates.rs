//! The rules for updates of tables: gradients of ids are summed in the op that applies them, those
//! that are columns of the gradient of a concatenation are read there, and updates that every run
//! needs together share an op.

use super::columns::sliced;
use super::consumers::same;
use super::graph_def::{Graph, InputSource, Node, NodeInput};
use super::lists::{length, members};
use super::readers::source_of;
use super::tensors::constant;
use super::together::{BRANCHES, JOINS, MOST_STEPS, TABLE, UPDATE};
use mx_rec_kernels::Result;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Joins of gradients may be joined again: those of one loss by TensorFlow, those of two by
/// scripts.
const MOST_JOINED: usize = 8;

/// One gradient that an update takes.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedMember {
    /// Which member of the update it is now, or is part of.
    pub place: usize,
    /// Name of the node that sums it, whose inputs the update takes; `None` if that stays.
    pub sum: Option<String>,
    /// The gradient that it is columns of, if that is read instead.
    pub whole: Option<String>,
    /// The first of these columns.
    pub first: i64,
}

/// An update that changes.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedUpdate {
    /// Name of its node.
    pub node: String,
    /// What it takes, those of one table in order.
    pub members: Vec<PlannedMember>,
    /// Tensors that it does not read any more.
    pub left_out: Vec<String>,
    /// Names of the nodes that these wait for.
    pub waits: Vec<String>,
}

/// Updates that become one op.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedUpdates {
    /// The updates, in the order of the graph.
    pub updates: Vec<PlannedUpdate>,
    /// Why, a sentence.
    pub reason: String,
}

/// What is planned for the updates of a graph.
#[derive(Default)]
pub(super) struct Found {
    pub(super) planned: Vec<PlannedUpdates>,
    /// For each update that shares an op the first of those that do.
    pub(super) first: HashMap<usize, usize>,
}

/// Finds the updates that change, in the order of the graph.
///
/// # Errors
/// `InvalidArgument` if an attribute cannot be read.
pub(super) fn find(graph: &Graph<'_>) -> Result<Found> {
    let mut rule = Rule::new(graph);
    let mut groups: Vec<Vec<Update>> = Vec::new();
    let mut places: BTreeMap<Form<'_>, usize> = BTreeMap::new();
    for (&at, waiting) in &rule.waiting.clone() {
        let node = graph.node(at)?;
        if waiting.is_read || graph.find(node.name) != InputSource::Node(at) {
            continue;
        }
        let update = rule.update(at, node)?;
        match rule.form(node, &update, &waiting.by)? {
            Some(form) if rule.is_alive(at)? => {
                let place = *places.entry(form).or_insert(groups.len());
                match groups.get_mut(place) {
                    Some(group) => group.push(update),
                    None => groups.push(vec![update]),
                }
            }
            _ => groups.push(vec![update]),
        }
    }
    let mut found = Found::default();
    for group in groups {
        let nodes: Vec<usize> = group.iter().map(|update| update.at).collect();
        if let [first, _, ..] = nodes[..] {
            found.first.extend(nodes.iter().map(|&at| (at, first)));
        }
        if group.len() > 1 || group.iter().any(Update::is_changed) {
            found.planned.push(rule.planned(group)?);
        }
    }
    Ok(found)
}

/// What waits for an update.
#[derive(Clone, Default)]
struct Waiting {
    by: BTreeSet<usize>,
    /// Whether its output is read.
    is_read: bool,
}

/// What updates that share an op have in common: optimizer, devices of the op and of its tables,
/// numbers, what gradients are of, and what waits for them. Every run that needs one then needs
/// all, and none depends on another one, for what waits for that waits for both.
type Form<'a> = (
    Option<i64>,
    BTreeSet<&'a [u8]>,
    &'a [u8],
    Vec<(usize, Option<u64>)>,
    Kind,
    BTreeSet<usize>,
);

/// What gradients are of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Rows,
    Ids,
    Bags,
}

struct Update {
    at: usize,
    kind: Kind,
    members: Vec<PlannedMember>,
    left_out: Vec<String>,
    waits: Vec<String>,
}

impl Update {
    fn is_changed(&self) -> bool {
        let mut members = self.members.iter();
        members.any(|one| one.sum.is_some() || one.whole.is_some())
    }

    /// Leaves nodes out that control inputs may hold back.
    fn leave_out(&mut self, graph: &Graph<'_>, tensor: &NodeInput<'_>) {
        self.left_out.push(tensor.tensor());
        let node = source_of(graph, tensor);
        let inputs = node.map(|node| graph.inputs(node)).unwrap_or_default();
        let waits = inputs.iter().filter(|input| input.is_control());
        self.waits.extend(waits.map(|input| input.node.to_owned()));
    }
}

struct Rule<'g, 'a> {
    graph: &'g Graph<'a>,
    waiting: BTreeMap<usize, Waiting>,
    /// The nodes that have a value in each run.
    alive: Vec<bool>,
    /// The nodes that walks have met.
    steps: usize,
}

impl<'g, 'a> Rule<'g, 'a> {
    fn new(graph: &'g Graph<'a>) -> Self {
        let mut rule = Rule {
            graph,
            waiting: BTreeMap::new(),
            alive: vec![false; graph.nodes.len()],
            steps: 0,
        };
        for (at, node) in graph.nodes.iter().enumerate() {
            if node.op == UPDATE {
                rule.waiting.insert(at, Waiting::default());
            }
        }
        if rule.waiting.is_empty() {
            return rule;
        }
        for (at, node) in graph.nodes.iter().enumerate() {
            for input in graph.inputs(node) {
                if let InputSource::Node(source) = input.source {
                    if let Some(waiting) = rule.waiting.get_mut(&source) {
                        waiting.by.insert(at);
                        waiting.is_read |= !input.is_control();
                    }
                }
            }
        }
        rule
    }

    /// What an update takes, with sums and slices left out where that can be.
    fn update(&self, at: usize, node: &Node<'a>) -> Result<Update> {
        let inputs = self.graph.inputs(node);
        let each = members(node)?;
        let mut update = Update {
            at,
            kind: Kind::Rows,
            members: Vec::new(),
            left_out: Vec::new(),
            waits: Vec::new(),
        };
        let (inverses, bags) = (length(node, "R")?, length(node, "B")?);
        if inverses == 0 {
            for place in 0..each {
                let (rows, grad) = (inputs.get(each + place), inputs.get(2 * each + place));
                let (Some(rows), Some(grad)) = (rows, grad) else {
                    return Ok(unchanged(at, Kind::Rows, each));
                };
                if !self.add_sums(place, (rows, grad), &mut update, 0)? {
                    return Ok(unchanged(at, Kind::Rows, each));
                }
            }
        } else {
            let columns = inputs.get(3 * each + inverses + 3 * bags);
            let columns = columns.filter(|_| node.int("C").is_ok_and(|count| count == Some(1)));
            let columns = columns.and_then(|columns| source_of(self.graph, columns));
            let columns = columns.map(constant).transpose()?.flatten();
            let columns = columns.and_then(|columns| columns.integers);
            update.kind = if bags > 0 { Kind::Bags } else { Kind::Ids };
            for place in 0..each {
                let mut member = member(place, None);
                let is_wide = match (length(node, "C")?, &columns) {
                    (0, _) => false,
                    (_, Some(columns)) => columns.get(place) != Some(&-1),
                    (_, None) => true,
                };
                if let (Some(grad), false) = (inputs.get(2 * each + inverses + place), is_wide) {
                    self.read_in_whole(grad, &mut member, &mut update)?;
                }
                update.members.push(member);
            }
        }
        Ok(update)
    }

    /// Adds the sums that a gradient of rows is made of, which no op between may change; says
    /// whether there is nothing else.
    fn add_sums(
        &self,
        place: usize,
        (rows, grad): (&NodeInput<'a>, &NodeInput<'a>),
        update: &mut Update,
        depth: usize,
    ) -> Result<bool> {
        let graph = self.graph;
        let Some(node) = source_of(graph, grad) else {
            return Ok(false);
        };
        // So many members have few nodes each: a graph that joins its joins again and again is none
        // of TensorFlow's.
        if depth > MOST_JOINED || update.members.len() > graph.nodes.len() {
            return Ok(false);
        }
        update.leave_out(graph, grad);
        let data: Vec<&NodeInput<'a>> = data(graph, node).collect();
        if matches!(
            node.op,
            "MxRecReduce" | "MxRecReducePooled" | "MxRecReduceColumns"
        ) {
            let (Some(of), Some(last)) = (data.first(), data.last()) else {
                return Ok(false);
            };
            let mut member = member(place, Some(node.name.to_owned()));
            match node.op {
                "MxRecReducePooled" => update.kind = Kind::Bags,
                _ if update.kind == Kind::Rows => update.kind = Kind::Ids,
                _ => {}
            }
            if node.op != "MxRecReduceColumns" {
                self.read_in_whole(of, &mut member, update)?;
            }
            update.members.push(member);
            return Ok(same(last, rows) && graph.find(node.name) == grad.source);
        }
        let Some(of) = source_of(graph, rows) else {
            return Ok(false);
        };
        let rows_data: Vec<&NodeInput<'a>> = data_of_join(graph, of)?;
        if data_of_join(graph, node)?.len() != rows_data.len() || rows_data.is_empty() {
            return Ok(false);
        }
        update.leave_out(graph, rows);
        let axes = [data.last().copied(), data_last(graph, of)];
        for axis in axes.into_iter().flatten() {
            update.leave_out(graph, axis);
        }
        for (&some_rows, &some_grad) in rows_data.iter().zip(&data) {
            if !self.add_sums(place, (some_rows, some_grad), update, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a member take columns of a wider gradient, if its own is a slice of one.
    fn read_in_whole(
        &self,
        grad: &NodeInput<'a>,
        member: &mut PlannedMember,
        update: &mut Update,
    ) -> Result<()> {
        if let Some(found) = sliced(self.graph, grad)? {
            member.whole = Some(found.whole);
            member.first = found.first;
            update.left_out.extend(found.left_out);
            // The gradient of rows has their sizes, so that no update comes before they are read.
            update.waits.extend(found.waits);
            update.waits.extend(found.shapes);
        }
        Ok(())
    }

    /// What updates that share an op with this one have in common with it; `None` if none can.
    fn form(
        &self,
        node: &Node<'a>,
        update: &Update,
        waiting: &BTreeSet<usize>,
    ) -> Result<Option<Form<'a>>> {
        let graph = self.graph;
        let mut devices = BTreeSet::new();
        for handle in graph.inputs(node).iter().take(members(node)?) {
            match source_of(graph, handle) {
                // In a branch or a loop, the handle is passed on.
                Some(table) if table.op == TABLE => devices.insert(table.device()?),
                _ => return Ok(None),
            };
        }
        if waiting.is_empty() || devices.len() != 1 {
            return Ok(None);
        }
        let data: Vec<_> = data(graph, node).collect();
        let numbers = data.len().saturating_sub(length(node, "H")?);
        let mut hyper = Vec::new();
        for number in data.iter().skip(numbers) {
            let InputSource::Node(source) = number.source else {
                return Ok(None);
            };
            hyper.push((source, number.output));
        }
        Ok(Some((
            node.int("optimizer")?,
            devices,
            node.device()?,
            hyper,
            update.kind,
            waiting.clone(),
        )))
    }

    /// Whether a node has a value in each run: none of what it needs is in a branch that is not
    /// taken.
    fn is_alive(&mut self, of: usize) -> Result<bool> {
        let mut seen = BTreeSet::from([of]);
        let mut waiting = vec![of];
        while let Some(at) = waiting.pop() {
            self.steps += 1;
            let node = self.graph.node(at)?;
            if BRANCHES.contains(&node.op) || self.steps > MOST_STEPS {
                return Ok(false);
            }
            if JOINS.contains(&node.op) {
                continue;
            }
            for input in self.graph.inputs(node) {
                if let InputSource::Node(source) = input.source {
                    let is_known = self.alive.get(source).copied().unwrap_or(true);
                    if !is_known && seen.insert(source) {
                        waiting.push(source);
                    }
                }
            }
        }
        for at in seen {
            if let Some(alive) = self.alive.get_mut(at) {
                *alive = true;
            }
        }
        Ok(true)
    }

    fn planned(&self, group: Vec<Update>) -> Result<PlannedUpdates> {
        let mut reasons = Vec::new();
        if group.iter().any(Update::is_changed) {
            reasons.push("gradients of ids are summed where they are applied");
        }
        if group.len() > 1 {
            reasons.push("every run that needs one needs all");
        }
        let mut updates = Vec::new();
        for update in group {
            let waits: BTreeSet<String> = update.waits.into_iter().collect();
            updates.push(PlannedUpdate {
                node: self.graph.node(update.at)?.name.to_owned(),
                members: update.members,
                left_out: update.left_out,
                waits: waits.into_iter().collect(),
            });
        }
        Ok(PlannedUpdates {
            updates,
            reason: reasons.join(", and "),
        })
    }
}

fn member(place: usize, sum: Option<String>) -> PlannedMember {
    PlannedMember {
        place,
        sum,
        whole: None,
        first: -1,
    }
}

/// An update that takes what it does now.
fn unchanged(at: usize, kind: Kind, members: usize) -> Update {
    Update {
        at,
        kind,
        members: (0..members).map(|place| member(place, None)).collect(),
        left_out: Vec::new(),
        waits: Vec::new(),
    }
}

fn data<'g, 'a>(graph: &'g Graph<'a>, node: &Node<'a>) -> impl Iterator<Item = &'g NodeInput<'a>> {
    graph
        .inputs(node)
        .iter()
        .filter(|input| !input.is_control())
}

fn data_last<'g, 'a>(graph: &'g Graph<'a>, node: &Node<'a>) -> Option<&'g NodeInput<'a>> {
    data(graph, node).last()
}

/// What a node joins along the first dimension; nothing if it does not.
fn data_of_join<'g, 'a>(graph: &'g Graph<'a>, node: &Node<'a>) -> Result<Vec<&'g NodeInput<'a>>> {
    let mut data: Vec<_> = data(graph, node).collect();
    let axis = data.pop().and_then(|axis| source_of(graph, axis));
    let found = axis.map(constant).transpose()?.flatten();
    let axis = found.and_then(|found| found.integers);
    Ok(match (node.op, axis.as_deref()) {
        ("ConcatV2", Some([0])) => data,
        _ => Vec::new(),
    })
}
