//! The rules for updates of tables: gradients of ids are summed in the op that applies them, those
//! that are columns of the gradient of a concatenation are read there, and updates that every run
//! needs together share an op.

use super::alive::Alive;
use super::columns::sliced;
use super::consumers::same;
use super::graph_def::{Graph, InputSource, Node, NodeInput};
use super::known::{self, holds, if_known, Known};
use super::library::StatefulOps;
use super::lists::{length, members};
use super::numbers::{Number, Numbers};
use super::readers::source_of;
use super::tensors::{integers_of, tables_of};
use super::together::{PUSH, TABLE, UPDATE};
use mx_rec_kernels::Result;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Joins of gradients may be joined again: those of one loss by TensorFlow, those of two by
/// scripts.
const MOST_JOINED: usize = 8;

/// The handle, rows and gradient of a plain update, before its numbers.
const PLAIN_INPUTS: usize = 3;

/// The attribute of ops that do nothing but wait for the updates of a variable on all parameter
/// servers: the name of the variable; python/mx_rec/stock/server_rows.py sets it.
const UPDATE_OF: &str = "_mx_rec_update_of";

/// The attributes of an update on a parameter server.
const OF_PUSH: [&str; 5] = ["optimizer", "part", "parts", "count", "create"];

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
    /// Where others share its op, names of the nodes that wait for it, and by which others may not
    /// wait for it any more: a run may want them without the other updates.
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
pub(super) fn find(graph: &Graph<'_>, ops: &StatefulOps<'_>) -> Result<Found> {
    let mut found = Found::default();
    let updates = graph.nodes.iter().enumerate();
    let updates: Vec<_> = updates
        .filter(|(_, node)| [UPDATE, PUSH].contains(&node.op))
        .collect();
    if updates.is_empty() {
        return Ok(found);
    }
    let mut rule = Rule {
        graph,
        numbers: Numbers::new(graph, ops),
        alive: Alive::new(graph),
    };
    let mut groups: Vec<Vec<Update<'_>>> = Vec::new();
    let mut places: BTreeMap<Form<'_>, Vec<usize>> = BTreeMap::new();
    for (at, node) in updates {
        // Others have been made by a pass.
        let is_plain = node.op == PUSH || members(node)? == 1 && length(node, "R")? == 0;
        if !is_plain || graph.find(node.name) != InputSource::Node(at) {
            continue;
        }
        let Some(waiting) = rule.waiting(at)? else {
            continue;
        };
        let mut update = rule.update(at, waiting.ends, node)?;
        let form = rule.form(node, &mut update, waiting.by, &waiting.of)?;
        let mut alone = Vec::new();
        let places = match form {
            Some(form) if rule.alive.has(graph, at)? => places.entry(form).or_default(),
            _ => &mut alone,
        };
        // Of one table, they are two steps.
        let is_free = |group: &Vec<Update<'_>>| {
            let mut others = group.iter();
            others.all(|one| one.tables.is_disjoint(&update.tables))
        };
        let mut free = places.iter().copied();
        let place = free.find(|&place| groups.get(place).is_some_and(is_free));
        match place.and_then(|place| groups.get_mut(place)) {
            Some(group) => group.push(update),
            None => {
                places.push(groups.len());
                groups.push(vec![update]);
            }
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

/// What updates that share an op have in common: op, optimizer and other attributes, devices of the
/// op and of its table, numbers, whether gradients are of ids, and what waits for them. Every run
/// that needs one then needs all, and none depends on another one, for what waits for that waits
/// for both.
type Form<'a> = (
    &'a str,
    Vec<Option<i64>>,
    [&'a [u8]; 2],
    Vec<usize>,
    bool,
    BTreeSet<usize>,
);

/// What waits for an update.
#[derive(Default)]
struct Waiting<'a> {
    by: BTreeSet<usize>,
    /// The nodes that do nothing but wait, and those by which others wait.
    ends: Vec<usize>,
    /// The variables that the update is of, if that is known.
    of: BTreeSet<&'a [u8]>,
}

#[derive(Clone, Default)]
struct Update<'a> {
    at: usize,
    ends: Vec<usize>,
    /// The names of its tables, or of the variable that has a part of one.
    tables: BTreeSet<String>,
    numbers: Vec<Number<'a>>,
    members: Vec<PlannedMember>,
    left_out: Vec<String>,
    waits: Vec<String>,
}

impl Update<'_> {
    fn sums_ids(&self) -> bool {
        !self.members.is_empty()
    }

    /// Leaves nodes out that control inputs may hold back.
    fn leave_out(&mut self, graph: &Graph<'_>, tensor: &NodeInput<'_>) {
        self.left_out.push(tensor.tensor());
        let node = source_of(graph, tensor);
        self.waits
            .extend(node.into_iter().flat_map(|node| graph.waited(node)));
    }
}

struct Rule<'g, 'a> {
    graph: &'g Graph<'a>,
    numbers: Numbers<'g, 'a>,
    alive: Alive,
}

impl<'g, 'a> Rule<'g, 'a> {
    /// What waits for an update; `None` if its output is read, or if nothing waits for it, as for
    /// what a pass has replaced.
    fn waiting(&self, at: usize) -> Result<Option<Waiting<'a>>> {
        let (mut found, mut passing) = (Waiting::default(), vec![at]);
        let mut seen = BTreeSet::new();
        while let Some(at) = passing.pop() {
            for &(reader, place) in self.graph.all_readers(at) {
                let node = self.graph.node(reader)?;
                let inputs = self.graph.inputs(node);
                if !inputs.get(place).is_some_and(NodeInput::is_control) {
                    return Ok(None);
                }
                if !seen.insert(reader) {
                    continue;
                }
                let of = node.string(UPDATE_OF)?;
                let is_last = self.graph.all_readers(reader).is_empty();
                match node.op {
                    "NoOp" if !of.is_empty() => {
                        found.of.insert(of);
                        found.ends.push(reader);
                        passing.push(reader);
                    }
                    "NoOp" if self.is_of_device(reader)? => passing.push(reader),
                    "NoOp" if is_last && inputs.len() == 1 => found.ends.push(reader),
                    "ReadVariableOp" if is_last => found.ends.push(reader),
                    _ => {
                        found.by.insert(reader);
                    }
                }
            }
        }
        let is_left_over = seen.is_empty();
        Ok((!is_left_over).then_some(found))
    }

    /// Whether a node is one that tf.group has made for its ops of one device.
    fn is_of_device(&self, at: usize) -> Result<bool> {
        let node = self.graph.node(at)?;
        let Some((whole, own)) = node.name.rsplit_once('/') else {
            return Ok(false);
        };
        Ok(match self.graph.all_readers(at) {
            [(reader, _)] if own.starts_with("NoOp") => {
                let reader = self.graph.node(*reader)?;
                reader.op == "NoOp" && reader.name == whole
            }
            _ => false,
        })
    }

    /// What an update takes, with sums and slices left out where that can be.
    fn update(&self, at: usize, ends: Vec<usize>, node: &Node<'a>) -> Result<Update<'a>> {
        let plain = Update {
            at,
            ends,
            ..Update::default()
        };
        let given = |place| self.graph.data_input(node, place);
        let (UPDATE, Some(rows), Some(grad)) = (node.op, given(1), given(2)) else {
            return Ok(plain);
        };
        let mut update = plain.clone();
        let sums = if_known(self.add_sums((rows, grad), &mut update, 0))?;
        Ok(sums.map_or(plain, |()| update))
    }

    /// Adds the sums that a gradient of rows is made of, which no op between may change, if there
    /// is nothing else.
    fn add_sums(
        &self,
        (rows, grad): (&NodeInput<'a>, &NodeInput<'a>),
        update: &mut Update<'_>,
        depth: usize,
    ) -> known::Found<()> {
        let graph = self.graph;
        let node = source_of(graph, grad).known()?;
        // So many members have few nodes each: a graph that joins its joins again and again is none
        // of TensorFlow's.
        holds(depth <= MOST_JOINED && update.members.len() <= graph.nodes.len())?;
        update.leave_out(graph, grad);
        let data: Vec<&NodeInput<'a>> = graph.data(node).collect();
        if matches!(
            node.op,
            "MxRecReduce" | "MxRecReducePooled" | "MxRecReduceColumns"
        ) {
            let (of, last) = (data.first().known()?, data.last().known()?);
            let mut member = PlannedMember {
                sum: grad.tensor(),
                whole: None,
                first: -1,
            };
            if node.op != "MxRecReduceColumns" {
                self.read_in_whole(of, &mut member, update)?;
            }
            update.members.push(member);
            return holds(same(last, rows) && graph.find(node.name) == grad.source);
        }
        let of = source_of(graph, rows).known()?;
        let rows_data: Vec<&NodeInput<'a>> = data_of_join(graph, of)?;
        holds(data_of_join(graph, node)?.len() == rows_data.len() && !rows_data.is_empty())?;
        update.leave_out(graph, rows);
        let axes = [data.last().copied(), graph.data(of).last()];
        for axis in axes.into_iter().flatten() {
            update.leave_out(graph, axis);
        }
        for (&some_rows, &some_grad) in rows_data.iter().zip(&data) {
            self.add_sums((some_rows, some_grad), update, depth + 1)?;
        }
        Ok(())
    }

    /// Makes a member take columns of a wider gradient, if its own is a slice of one.
    fn read_in_whole(
        &self,
        grad: &NodeInput<'a>,
        member: &mut PlannedMember,
        update: &mut Update<'_>,
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
        &mut self,
        node: &Node<'a>,
        update: &mut Update<'a>,
        waiting: BTreeSet<usize>,
        of: &BTreeSet<&'a [u8]>,
    ) -> Result<Option<Form<'a>>> {
        let graph = self.graph;
        let inputs = graph
            .data(node)
            .filter_map(|input| Some((input.node, input.output?)));
        let mut inputs: Vec<Number<'a>> = inputs.collect();
        let mut attributes = vec![node.int("optimizer")?];
        let mut device: &[u8] = &[];
        if node.op == PUSH {
            for name in OF_PUSH {
                attributes.push(node.int(name)?);
            }
            for config in graph.data(node).take(members(node)?) {
                let Some(names) = tables_of(graph, config)? else {
                    return Ok(None);
                };
                update.tables.extend(names);
            }
            if !of.is_empty() {
                // Variables that share a table have other rows of it.
                let names = of
                    .iter()
                    .map(|name| String::from_utf8_lossy(name).into_owned());
                update.tables = names.collect();
            }
            update.numbers.extend(inputs.pop());
        } else {
            let handle = graph.data_input(node, 0);
            let table = handle.and_then(|handle| source_of(graph, handle));
            // In a branch or a loop, the handle is passed on.
            let Some(table) = table.filter(|table| table.op == TABLE) else {
                return Ok(None);
            };
            device = table.device()?;
            update.tables.insert(table.name.to_owned());
            update.numbers.extend(inputs.into_iter().skip(PLAIN_INPUTS));
        }
        if waiting.is_empty() {
            return Ok(None);
        }
        let numbers = update.numbers.iter().map(|&one| self.numbers.key(one));
        Ok(Some((
            node.op,
            attributes,
            [device, node.device()?],
            numbers.collect::<Result<_>>()?,
            update.sums_ids(),
            waiting,
        )))
    }

    fn planned(&self, mut group: Vec<Update<'a>>) -> Result<PlannedUpdates> {
        let mut reasons = Vec::new();
        // One op has one of the tensors of a number: no other value can be given to one of them.
        if let Some((first, others)) = group.split_first_mut() {
            let mut of_first = BTreeSet::new();
            for other in others {
                for (&one, &own) in first.numbers.iter().zip(&other.numbers) {
                    let [left_out, of_other] = self.numbers.differing(one, own);
                    of_first.extend(left_out);
                    other.left_out.extend(of_other);
                }
            }
            first.left_out.extend(of_first);
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
            let ends = update.ends.into_iter().filter(|_| is_shared);
            updates.push(PlannedUpdate {
                node: self.graph.node(update.at)?.name.to_owned(),
                members: update.members,
                left_out: update.left_out,
                waits: waits.into_iter().collect(),
                ends: self.graph.names(ends)?,
            });
        }
        Ok(PlannedUpdates {
            updates,
            reason: reasons.join(", and "),
        })
    }
}

/// What a node joins along the first dimension; nothing if it does not.
fn data_of_join<'g, 'a>(graph: &'g Graph<'a>, node: &Node<'a>) -> Result<Vec<&'g NodeInput<'a>>> {
    let mut data: Vec<_> = graph.data(node).collect();
    let axis = data.pop().map(|axis| integers_of(graph, axis));
    Ok(match (node.op, axis.transpose()?.flatten().as_deref()) {
        ("ConcatV2", Some([0])) => data,
        _ => Vec::new(),
    })
}
