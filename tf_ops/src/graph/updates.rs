//! The rules for updates of tables: gradients of ids are summed in the op that applies them, those
//! that are columns of the gradient of a concatenation are read there, and updates that every run
//! needs together share an op.

use super::alive::Alive;
use super::columns::sliced;
use super::consumers::same;
use super::graph_def::{Graph, InputSource, Node, NodeInput};
use super::lists::{length, members};
use super::readers::source_of;
use super::tensors::constant;
use super::together::{TABLE, UPDATE};
use mx_rec_kernels::Result;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Joins of gradients may be joined again: those of one loss by TensorFlow, those of two by
/// scripts.
const MOST_JOINED: usize = 8;

/// The handle, rows and gradient of a plain update, before its numbers.
const PLAIN_INPUTS: usize = 3;

/// A gradient of ids that an update sums itself.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedMember {
    /// The tensor of sums; the update takes the inputs of its node.
    pub sum: String,
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
    /// What it takes, in order; nothing if it takes the gradient that it has.
    pub members: Vec<PlannedMember>,
    /// Tensors that it does not read any more.
    pub left_out: Vec<String>,
    /// Names of the nodes that these wait for.
    pub waits: Vec<String>,
    /// Where others share its op, names of the nodes that wait for it alone: a run may want them
    /// without the others.
    pub ends: Vec<String>,
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
    let mut found = Found::default();
    let updates = graph.nodes.iter().enumerate();
    let updates: Vec<_> = updates.filter(|(_, node)| node.op == UPDATE).collect();
    if updates.is_empty() {
        return Ok(found);
    }
    let mut rule = Rule {
        graph,
        alive: Alive::new(graph),
    };
    let mut groups: Vec<Vec<Update>> = Vec::new();
    let mut places: BTreeMap<Form<'_>, usize> = BTreeMap::new();
    for (at, node) in updates {
        // Others have been made by a pass.
        let is_plain = members(node)? == 1 && length(node, "R")? == 0;
        if !is_plain || graph.find(node.name) != InputSource::Node(at) {
            continue;
        }
        let Some((waiting, ends)) = rule.waiting(at)? else {
            continue;
        };
        let mut update = rule.update(at, ends, node)?;
        let mut place = groups.len();
        if let Some(form) = rule.form(node, &mut update, waiting)? {
            if rule.alive.has(graph, at)? {
                place = *places.entry(form).or_insert(place);
            }
        }
        match groups.get_mut(place) {
            // Of one table, they are two steps.
            Some(group) if group.iter().all(|one| one.table != update.table) => group.push(update),
            _ => groups.push(vec![update]),
        }
    }
    for group in groups {
        let nodes: Vec<usize> = group.iter().map(|update| update.at).collect();
        if let [first, _, ..] = nodes[..] {
            found.first.extend(nodes.iter().map(|&at| (at, first)));
        }
        if group.len() > 1 || group.iter().any(Update::sums_ids) {
            found.planned.push(rule.planned(group)?);
        }
    }
    Ok(found)
}

/// What updates that share an op have in common: optimizer, devices of the op and of its table,
/// numbers, whether gradients are of ids, and what waits for them. Every run that needs one then
/// needs all, and none depends on another one, for what waits for that waits for both.
type Form<'a> = (
    Option<i64>,
    &'a [u8],
    &'a [u8],
    Vec<Number<'a>>,
    bool,
    BTreeSet<usize>,
);

/// A number of an optimizer: a constant, or an output of a node.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Number<'a> {
    Is(&'a [u8]),
    Of(&'a str, Option<u64>),
}

#[derive(Default)]
struct Update {
    at: usize,
    /// The nodes that do nothing but wait for it, and that nothing waits for.
    ends: Vec<usize>,
    /// The node of its table.
    table: usize,
    /// For each of its numbers, the tensors that have no other value than what it is a copy of.
    copies: Vec<Vec<String>>,
    members: Vec<PlannedMember>,
    left_out: Vec<String>,
    waits: Vec<String>,
}

impl Update {
    fn sums_ids(&self) -> bool {
        !self.members.is_empty()
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
    alive: Alive,
}

impl<'g, 'a> Rule<'g, 'a> {
    /// What waits for an update, and its ends; `None` if its output is read, or if nothing waits
    /// for it, as for what a pass has replaced.
    fn waiting(&self, at: usize) -> Result<Option<(BTreeSet<usize>, Vec<usize>)>> {
        let (mut waiting, mut ends) = (BTreeSet::new(), Vec::new());
        for &(reader, place) in self.graph.all_readers(at) {
            let node = self.graph.node(reader)?;
            let inputs = self.graph.inputs(node);
            if !inputs.get(place).is_some_and(NodeInput::is_control) {
                return Ok(None);
            }
            match (node.op, inputs.len(), self.graph.all_readers(reader)) {
                ("NoOp", 1, []) => ends.push(reader),
                _ => waiting.extend([reader]),
            }
        }
        let is_left_over = waiting.is_empty() && ends.is_empty();
        Ok((!is_left_over).then_some((waiting, ends)))
    }

    /// What an update takes, with sums and slices left out where that can be.
    fn update(&self, at: usize, ends: Vec<usize>, node: &Node<'a>) -> Result<Update> {
        let plain = || Update {
            at,
            ends: ends.clone(),
            ..Update::default()
        };
        let mut update = plain();
        let given = |place| self.graph.data_input(node, place);
        let sums_ids = match (given(1), given(2)) {
            (Some(rows), Some(grad)) => self.add_sums((rows, grad), &mut update, 0)?,
            _ => false,
        };
        Ok(if sums_ids { update } else { plain() })
    }

    /// Adds the sums that a gradient of rows is made of, which no op between may change; says
    /// whether there is nothing else.
    fn add_sums(
        &self,
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
            let mut member = PlannedMember {
                sum: grad.tensor(),
                whole: None,
                first: -1,
            };
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
            if !self.add_sums((some_rows, some_grad), update, depth + 1)? {
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
        update: &mut Update,
        waiting: BTreeSet<usize>,
    ) -> Result<Option<Form<'a>>> {
        let graph = self.graph;
        let Some(InputSource::Node(at)) = graph.data_input(node, 0).map(|handle| handle.source)
        else {
            return Ok(None);
        };
        let table = graph.node(at)?;
        // In a branch or a loop, the handle is passed on.
        if table.op != TABLE || waiting.is_empty() {
            return Ok(None);
        }
        update.table = at;
        let mut numbers = Vec::new();
        for input in data(graph, node).skip(PLAIN_INPUTS) {
            let (number, copies) = self.number(*input)?;
            numbers.push(number);
            update.copies.push(copies);
        }
        Ok(Some((
            node.int("optimizer")?,
            table.device()?,
            node.device()?,
            numbers,
            update.sums_ids(),
            waiting,
        )))
    }

    /// What a number of an optimizer is, and the tensors that are copies of it.
    fn number(&self, mut input: NodeInput<'a>) -> Result<(Number<'a>, Vec<String>)> {
        let graph = self.graph;
        let mut copies = Vec::new();
        while let Some(node) = source_of(graph, &input) {
            let is_free = !graph.inputs(node).iter().any(NodeInput::is_control);
            match (node.op, graph.data_input(node, 0), node.attr("value")?) {
                ("Const", _, Some(value)) => {
                    copies.push(input.tensor());
                    return Ok((Number::Is(value), copies));
                }
                ("Identity" | "ReadVariableOp", Some(of), _)
                    if is_free && copies.len() < MOST_JOINED =>
                {
                    copies.push(input.tensor());
                    input = *of;
                }
                _ => break,
            }
        }
        Ok((Number::Of(input.node, input.output), copies))
    }

    fn planned(&self, mut group: Vec<Update>) -> Result<PlannedUpdates> {
        let mut reasons = Vec::new();
        // One op has one of the copies of a number: no other value can be given to one of them.
        for number in 0..group.first().map_or(0, |one| one.copies.len()) {
            let of_each = group.iter().map(|one| one.copies.get(number).cloned());
            let of_each: Vec<_> = of_each.map(Option::unwrap_or_default).collect();
            if of_each.iter().any(|one| Some(one) != of_each.first()) {
                for (update, copies) in group.iter_mut().zip(of_each) {
                    update.left_out.extend(copies);
                }
            }
        }
        if group.iter().any(Update::sums_ids) {
            reasons.push("gradients of ids are summed where they are applied");
        }
        let is_shared = group.len() > 1;
        if is_shared {
            reasons.push("every run that needs one needs all");
        }
        let mut updates = Vec::new();
        for update in group {
            let waits: BTreeSet<String> = update.waits.into_iter().collect();
            let ends = update.ends.iter().filter(|_| is_shared);
            let ends = ends.map(|&at| Ok(self.graph.node(at)?.name.to_owned()));
            updates.push(PlannedUpdate {
                node: self.graph.node(update.at)?.name.to_owned(),
                members: update.members,
                left_out: update.left_out,
                waits: waits.into_iter().collect(),
                ends: ends.collect::<Result<_>>()?,
            });
        }
        Ok(PlannedUpdates {
            updates,
            reason: reasons.join(", and "),
        })
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
