//! The iterators of a graph: which nodes use them, and whether their pipelines may be extended.

use super::describe::{described, quoted};
use super::graph_def::{Graph, InputSource, Node};
use super::slice::{control_input, is_get_next};
use mx_rec_kernels::Result;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// An iterator that exactly one IteratorGetNext reads, and no other op.
#[derive(Clone, Debug)]
pub(super) struct ExtendableIterator {
    /// The iterator's node.
    pub iterator: usize,
    /// Whether it is a one-shot iterator, which needs no initializer.
    pub one_shot: bool,
    /// The MakeIterator nodes.
    pub initializers: Vec<usize>,
}

/// The nodes that use an iterator.
#[derive(Default)]
struct IteratorUses {
    get_next: Vec<usize>,
    initializers: Vec<usize>,
    string_handles: Vec<usize>,
    other: Option<usize>,
}

/// All iterators of a graph.
pub(super) struct Iterators<'g, 'a> {
    graph: &'g Graph<'a>,
    uses: HashMap<usize, IteratorUses>,
    /// IteratorToStringHandle nodes whose output is read -> the first reader.
    read_handles: HashMap<usize, usize>,
    /// (container, shared_name) pairs of more than one iterator.
    shared: HashSet<(&'a [u8], &'a [u8])>,
    judged: HashMap<usize, std::result::Result<Rc<ExtendableIterator>, Rc<str>>>,
}

fn is_iterator(op: &str) -> bool {
    matches!(op, "IteratorV2" | "Iterator" | "OneShotIterator")
}

impl<'g, 'a> Iterators<'g, 'a> {
    pub(super) fn new(graph: &'g Graph<'a>) -> Result<Self> {
        let mut found = Self {
            graph,
            uses: HashMap::new(),
            read_handles: HashMap::new(),
            shared: HashSet::new(),
            judged: HashMap::new(),
        };
        let mut names = HashSet::new();
        let mut is_watched = vec![false; graph.nodes.len()];
        for (node, watched) in graph.nodes.iter().zip(&mut is_watched) {
            *watched = is_iterator(node.op) || node.op == "IteratorToStringHandle";
            if is_iterator(node.op) {
                let name = (node.string("container")?, node.string("shared_name")?);
                if !name.1.is_empty() && !names.insert(name) {
                    found.shared.insert(name);
                }
            }
        }
        for (reader, node) in graph.nodes.iter().enumerate() {
            for (place, input) in graph.inputs(node).iter().enumerate() {
                let InputSource::Node(source) = input.source else {
                    continue;
                };
                if is_watched.get(source) == Some(&true) && !input.is_control() {
                    found.add_use(source, reader, place)?;
                }
            }
        }
        Ok(found)
    }

    fn add_use(&mut self, source: usize, reader: usize, place: usize) -> Result<()> {
        if self.graph.node(source)?.op == "IteratorToStringHandle" {
            self.read_handles.entry(source).or_insert(reader);
            return Ok(());
        }
        let uses = self.uses.entry(source).or_default();
        match (self.graph.node(reader)?.op, place) {
            (op, 0) if is_get_next(op) => uses.get_next.push(reader),
            ("MakeIterator", 1) => uses.initializers.push(reader),
            ("IteratorToStringHandle", 0) => uses.string_handles.push(reader),
            _ => uses.other = uses.other.or(Some(reader)),
        }
        Ok(())
    }

    /// The iterator of an IteratorGetNext, or why its pipeline cannot be extended.
    pub(super) fn judge(
        &mut self,
        get_next: usize,
    ) -> Result<std::result::Result<Rc<ExtendableIterator>, Rc<str>>> {
        if let Some(known) = self.judged.get(&get_next) {
            return Ok(known.clone());
        }
        let judged = match self.look(self.graph.node(get_next)?)? {
            Ok(usable) => Ok(Rc::new(usable)),
            Err(why) => Err(why.into()),
        };
        self.judged.insert(get_next, judged.clone());
        Ok(judged)
    }

    fn look(&self, get_next: &Node<'a>) -> Result<std::result::Result<ExtendableIterator, String>> {
        let graph = self.graph;
        if let Some(fault) = control_input(graph, get_next) {
            return Ok(Err(fault));
        }
        let handle = graph.data_input(get_next, 0);
        let Some((handle, InputSource::Node(at))) = handle.map(|handle| (handle, handle.source))
        else {
            let why = format!(
                "the iterator of {} is not in the graph",
                described(get_next)
            );
            return Ok(Err(why));
        };
        let iterator = graph.node(at)?;
        if !is_iterator(iterator.op)
            || handle.output != Some(0)
            || graph.inputs(get_next).len() != 1
        {
            return Ok(Err(format!(
                "{} gets its iterator from {}: only an iterator that it reads directly \
                 can be extended",
                described(get_next),
                described(iterator)
            )));
        }
        if let Some(fault) = control_input(graph, iterator) {
            return Ok(Err(fault));
        }
        let none = IteratorUses::default();
        let uses = self.uses.get(&at).unwrap_or(&none);
        Ok(match self.misuse(iterator, uses)? {
            Some(why) => Err(format!("its iterator {} {why}", quoted(iterator.name))),
            None => Ok(ExtendableIterator {
                iterator: at,
                one_shot: iterator.op == "OneShotIterator",
                initializers: uses.initializers.clone(),
            }),
        })
    }

    /// The end of a sentence about a use of the iterator that would see the extended pipeline.
    fn misuse(&self, iterator: &Node<'a>, uses: &IteratorUses) -> Result<Option<String>> {
        let graph = self.graph;
        if let [one, other, ..] = uses.get_next.as_slice() {
            return Ok(Some(format!(
                "is read by {} get_next ops: {} and {}",
                uses.get_next.len(),
                quoted(graph.node(*one)?.name),
                quoted(graph.node(*other)?.name)
            )));
        }
        if let Some(other) = uses.other {
            return Ok(Some(format!(
                "is also used by {}",
                described(graph.node(other)?)
            )));
        }
        for handle in &uses.string_handles {
            if let Some(reader) = self.read_handles.get(handle) {
                return Ok(Some(format!(
                    "is also used by way of its string handle, which {} reads",
                    described(graph.node(*reader)?)
                )));
            }
        }
        let name = (
            iterator.string("container")?,
            iterator.string("shared_name")?,
        );
        if self.shared.contains(&name) {
            return Ok(Some(
                "has the same shared_name as another iterator".to_owned(),
            ));
        }
        let one_shot = iterator.op == "OneShotIterator";
        Ok(match uses.initializers.first() {
            None if !one_shot => Some("has no initializer (MakeIterator) in the graph".to_owned()),
            Some(&first) if one_shot => Some(format!(
                "starts by itself, but is also initialized by {}",
                described(graph.node(first)?)
            )),
            _ => None,
        })
    }
}
