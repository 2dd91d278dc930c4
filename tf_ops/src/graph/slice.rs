//! The walk from ids back to the iterator: which nodes lie between, and the first that cannot move.
//!
//! Each node is judged once, however many lookups it feeds, and the walk keeps a stack of its own, so that the depth of
//! a graph does not matter. A node that cannot move ends the walk; so loops end it, whose nodes cannot move.

use super::graph_def::{item, Graph, Input, Node, Source};
use super::library::{unknown, Library, Ops};
use super::words::{node_words, quoted};
use mx_rec_kernels::Result;
use std::collections::HashMap;
use std::rc::Rc;

const CONTROL_FLOW: [&str; 18] = [
    "Switch",
    "Merge",
    "Enter",
    "Exit",
    "NextIteration",
    "LoopCond",
    "RefSwitch",
    "RefMerge",
    "RefEnter",
    "RefExit",
    "RefNextIteration",
    "If",
    "While",
    "StatelessIf",
    "StatelessWhile",
    "Case",
    "StatelessCase",
    "_SwitchN",
];

/// What the walk found on a node and all that it is computed from.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// It is made of constants.
    Constant,
    /// It is computed from this IteratorGetNext, by nodes that may move.
    From {
        get_next: usize,
        /// It is this component of the element, unchanged.
        component: Option<u64>,
    },
    /// It cannot move, for this reason.
    Stays(Rc<str>),
}

/// Whether a node of this op type reads an iterator.
pub(super) fn is_get_next(op: &str) -> bool {
    matches!(op, "IteratorGetNext" | "IteratorGetNextSync")
}

/// The verdicts on the nodes of a graph.
pub(super) struct Slices<'g, 'a> {
    graph: &'g Graph<'a>,
    ops: &'g Ops<'a>,
    places: Vec<Place>,
    components: HashMap<usize, u64>,
}

/// How far the walk is with a node.
#[derive(Clone)]
enum Place {
    Fresh,
    /// On the stack.
    Open,
    Judged(Verdict),
}

/// A node on the stack: how many of its inputs are judged, and what they say together.
struct Frame {
    node: usize,
    done: usize,
    sum: Verdict,
}

impl<'g, 'a> Slices<'g, 'a> {
    pub(super) fn new(graph: &'g Graph<'a>, ops: &'g Ops<'a>) -> Self {
        Self {
            graph,
            ops,
            places: vec![Place::Fresh; graph.nodes.len()],
            components: HashMap::new(),
        }
    }

    /// The verdict on the tensor that an input names.
    pub(super) fn judge(
        &mut self,
        reader: &Node<'a>,
        input: &Input<'a>,
        library: &mut Library<'a>,
    ) -> Result<Verdict> {
        let mut stack = Vec::new();
        if let Source::Node(node) = input.source {
            self.enter(node, &mut stack, library)?;
        }
        while let Some(frame) = stack.last_mut() {
            let node = self.graph.node(frame.node)?;
            if let Some(input) = self.graph.inputs(node).get(frame.done) {
                match input.source {
                    Source::Node(source) if matches!(item(&self.places, source)?, Place::Fresh) => {
                        self.enter(source, &mut stack, library)?;
                    }
                    _ => {
                        frame.done += 1;
                        let found = self.tensor(node, input)?;
                        let sum = std::mem::replace(&mut frame.sum, Verdict::Constant);
                        frame.sum = self.join(node, sum, found)?;
                        if matches!(frame.sum, Verdict::Stays(_)) {
                            self.leave(&mut stack)?;
                        }
                    }
                }
            } else {
                self.leave(&mut stack)?;
            }
        }
        self.tensor(reader, input)
    }

    /// Judges a node by itself, and puts it on the stack if its inputs matter.
    fn enter(
        &mut self,
        at: usize,
        stack: &mut Vec<Frame>,
        library: &mut Library<'a>,
    ) -> Result<()> {
        if !matches!(item(&self.places, at)?, Place::Fresh) {
            return Ok(());
        }
        let node = self.graph.node(at)?;
        let place = if is_get_next(node.op) {
            Place::Judged(Verdict::From {
                get_next: at,
                component: None,
            })
        } else if let Some(fault) = self.fault(node, library)? {
            Place::Judged(Verdict::Stays(fault.into()))
        } else {
            stack.push(Frame {
                node: at,
                done: 0,
                sum: Verdict::Constant,
            });
            Place::Open
        };
        self.set(at, place);
        Ok(())
    }

    fn leave(&mut self, stack: &mut Vec<Frame>) -> Result<()> {
        if let Some(frame) = stack.pop() {
            let mut verdict = frame.sum;
            let node = self.graph.node(frame.node)?;
            if let Verdict::From { component, .. } = &mut verdict {
                if node.op != "Identity" || self.graph.inputs(node).len() != 1 {
                    *component = None;
                }
            }
            self.set(frame.node, Place::Judged(verdict));
        }
        Ok(())
    }

    fn set(&mut self, at: usize, place: Place) {
        if let Some(old) = self.places.get_mut(at) {
            *old = place;
        }
    }

    /// Why a node cannot move, whatever it is computed from.
    fn fault(&self, node: &Node<'a>, library: &mut Library<'a>) -> Result<Option<String>> {
        let words = || node_words(node);
        if node.op.starts_with("Placeholder") {
            return Ok(Some(format!(
                "it comes from the placeholder {}: nothing to move",
                quoted(node.name)
            )));
        }
        if CONTROL_FLOW.contains(&node.op) {
            return Ok(Some(format!(
                "{} is part of a loop or a condition",
                words()
            )));
        }
        match self.ops.get(node.op) {
            Some(true) => return Ok(Some(format!("{} keeps state", words()))),
            None if !library.has(node.op) => return Ok(Some(unknown(node))),
            _ => {}
        }
        if let Some(fault) = control_input(self.graph, node) {
            return Ok(Some(fault));
        }
        let fault = library.fault_of_calls(node, self.ops);
        fault.map_err(|error| error.with("node", quoted(node.name)))
    }

    /// The verdict on one output of a node that is judged.
    fn tensor(&mut self, reader: &Node<'a>, input: &Input<'a>) -> Result<Verdict> {
        let source = match input.source {
            Source::Node(source) => source,
            Source::Missing => {
                return Ok(stays(format!(
                    "{} reads {}, which is not in the graph",
                    node_words(reader),
                    quoted(input.node)
                )));
            }
            Source::Ambiguous => {
                return Ok(stays(format!(
                    "{} reads {}, and the graph has several nodes of that name",
                    node_words(reader),
                    quoted(input.node)
                )));
            }
        };
        let output = input.output.unwrap_or_default();
        Ok(match item(&self.places, source)? {
            Place::Fresh | Place::Open => stays(format!(
                "{} is computed from itself",
                node_words(self.graph.node(source)?)
            )),
            Place::Judged(Verdict::From { get_next, .. }) if *get_next == source => {
                let count = self.components(source)?;
                if output >= count {
                    stays(format!(
                        "{} reads component {output} of {}, which has {count}",
                        node_words(reader),
                        node_words(self.graph.node(source)?)
                    ))
                } else {
                    Verdict::From {
                        get_next: source,
                        component: Some(output),
                    }
                }
            }
            Place::Judged(Verdict::From { get_next, .. }) if output != 0 => Verdict::From {
                get_next: *get_next,
                component: None,
            },
            Place::Judged(verdict) => verdict.clone(),
        })
    }

    /// How many components the element of an IteratorGetNext has.
    pub(super) fn components(&mut self, get_next: usize) -> Result<u64> {
        if let Some(&count) = self.components.get(&get_next) {
            return Ok(count);
        }
        let count = self.graph.node(get_next)?.count_types("output_types")?;
        self.components.insert(get_next, count);
        Ok(count)
    }

    /// The verdict on a node that reads two tensors.
    fn join(&self, node: &Node<'a>, one: Verdict, other: Verdict) -> Result<Verdict> {
        Ok(match (one, other) {
            (Verdict::Stays(why), _) | (_, Verdict::Stays(why)) => Verdict::Stays(why),
            (Verdict::Constant, other) => other,
            (one, Verdict::Constant) => one,
            (
                Verdict::From { get_next, .. },
                Verdict::From {
                    get_next: second, ..
                },
            ) => {
                if get_next == second {
                    Verdict::From {
                        get_next,
                        component: None,
                    }
                } else {
                    stays(format!(
                        "{} joins what comes from {} and from {}",
                        node_words(node),
                        quoted(self.graph.node(get_next)?.name),
                        quoted(self.graph.node(second)?.name)
                    ))
                }
            }
        })
    }
}

fn stays(why: String) -> Verdict {
    Verdict::Stays(why.into())
}

/// Why a node with a control input cannot move.
pub(super) fn control_input<'a>(graph: &Graph<'a>, node: &Node<'a>) -> Option<String> {
    let input = graph.inputs(node).iter().find(|input| input.is_control())?;
    let other = match input.source {
        Source::Node(source) => graph.nodes.get(source),
        _ => None,
    };
    let other = other.map_or_else(|| quoted(input.node), node_words);
    Some(format!(
        "{} has a control dependency on {other}",
        node_words(node)
    ))
}
