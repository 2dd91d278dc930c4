//! The walk from ids back to the iterator: which nodes are in between, and the first that cannot
//! move.
//!
//! A depth-first search with an explicit stack, so that deep graphs cannot overflow the thread's
//! stack. It visits each node once, however many lookups the node feeds, and stops at nodes that
//! cannot move. The nodes of loops cannot move, so the search ends in graphs with loops too.

use super::describe::{described, quoted};
use super::graph_def::{item, Graph, InputSource, Node, NodeInput};
use super::library::{unknown, Library, StatefulOps};
use super::readers::source_of;
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

/// The result for a node and all that it is computed from.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// It is computed from constants only.
    Constant,
    /// It is computed from this IteratorGetNext by nodes that can move.
    From {
        get_next: usize,
        /// The component of the element that it is, if it is unchanged.
        component: Option<u64>,
    },
    /// It cannot move, for this reason.
    Stays(Rc<str>),
}

/// Whether a node of this op type reads an iterator.
pub(super) fn is_get_next(op: &str) -> bool {
    matches!(op, "IteratorGetNext" | "IteratorGetNextSync")
}

/// Finds and keeps the verdicts on the nodes of a graph.
pub(super) struct Slicer<'g, 'a> {
    graph: &'g Graph<'a>,
    ops: &'g StatefulOps<'a>,
    places: Vec<Progress>,
    components: HashMap<usize, u64>,
}

/// The state of the search at a node.
#[derive(Clone)]
enum Progress {
    NotVisited,
    OnStack,
    Judged(Verdict),
}

/// A node on the stack: how many of its inputs are done, and their joint verdict.
struct Frame {
    node: usize,
    done: usize,
    sum: Verdict,
}

impl<'g, 'a> Slicer<'g, 'a> {
    pub(super) fn new(graph: &'g Graph<'a>, ops: &'g StatefulOps<'a>) -> Self {
        Self {
            graph,
            ops,
            places: vec![Progress::NotVisited; graph.nodes.len()],
            components: HashMap::new(),
        }
    }

    /// The verdict on the tensor that an input names.
    pub(super) fn judge(
        &mut self,
        reader: &Node<'a>,
        input: &NodeInput<'a>,
        library: &mut Library<'a>,
    ) -> Result<Verdict> {
        let mut stack = Vec::new();
        if let InputSource::Node(node) = input.source {
            self.enter(node, &mut stack, library)?;
        }
        while let Some(frame) = stack.last_mut() {
            let node = self.graph.node(frame.node)?;
            if let Some(input) = self.graph.inputs(node).get(frame.done) {
                match input.source {
                    InputSource::Node(source)
                        if matches!(item(&self.places, source)?, Progress::NotVisited) =>
                    {
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

    /// Judges a node without its inputs, and pushes it if the verdict depends on these.
    fn enter(
        &mut self,
        at: usize,
        stack: &mut Vec<Frame>,
        library: &mut Library<'a>,
    ) -> Result<()> {
        if !matches!(item(&self.places, at)?, Progress::NotVisited) {
            return Ok(());
        }
        let node = self.graph.node(at)?;
        let place = if is_get_next(node.op) {
            Progress::Judged(Verdict::From {
                get_next: at,
                component: None,
            })
        } else if let Some(fault) = self.fault(node, library)? {
            Progress::Judged(Verdict::Stays(fault.into()))
        } else {
            stack.push(Frame {
                node: at,
                done: 0,
                sum: Verdict::Constant,
            });
            Progress::OnStack
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
            self.set(frame.node, Progress::Judged(verdict));
        }
        Ok(())
    }

    fn set(&mut self, at: usize, place: Progress) {
        if let Some(old) = self.places.get_mut(at) {
            *old = place;
        }
    }

    /// Why a node cannot move, whatever its inputs are.
    fn fault(&self, node: &Node<'a>, library: &mut Library<'a>) -> Result<Option<String>> {
        let this = || described(node);
        if node.op.starts_with("Placeholder") {
            return Ok(Some(format!(
                "it comes from the placeholder {}: nothing to move",
                quoted(node.name)
            )));
        }
        if CONTROL_FLOW.contains(&node.op) {
            return Ok(Some(format!("{} is part of a loop or a condition", this())));
        }
        match self.ops.get(node.op) {
            Some(true) => return Ok(Some(format!("{} keeps state", this()))),
            None if !library.has(node.op) => return Ok(Some(unknown(node))),
            _ => {}
        }
        if let Some(fault) = control_input(self.graph, node) {
            return Ok(Some(fault));
        }
        let fault = library.fault_of_calls(node, self.ops);
        fault.map_err(|error| error.with("node", quoted(node.name)))
    }

    /// The verdict on an input of `reader`, whose source has been visited.
    fn tensor(&mut self, reader: &Node<'a>, input: &NodeInput<'a>) -> Result<Verdict> {
        let source = match input.source {
            InputSource::Node(source) => source,
            InputSource::Missing => {
                return Ok(stays(format!(
                    "{} reads {}, which is not in the graph",
                    described(reader),
                    quoted(input.node)
                )));
            }
            InputSource::Ambiguous => {
                return Ok(stays(format!(
                    "{} reads {}, and the graph has several nodes of that name",
                    described(reader),
                    quoted(input.node)
                )));
            }
        };
        let output = input.output.unwrap_or_default();
        Ok(match item(&self.places, source)? {
            Progress::NotVisited | Progress::OnStack => stays(format!(
                "{} is computed from itself",
                described(self.graph.node(source)?)
            )),
            Progress::Judged(Verdict::From { get_next, .. }) if *get_next == source => {
                let count = self.components(source)?;
                if output >= count {
                    stays(format!(
                        "{} reads component {output} of {}, which has {count}",
                        described(reader),
                        described(self.graph.node(source)?)
                    ))
                } else {
                    Verdict::From {
                        get_next: source,
                        component: Some(output),
                    }
                }
            }
            Progress::Judged(Verdict::From { get_next, .. }) if output != 0 => Verdict::From {
                get_next: *get_next,
                component: None,
            },
            Progress::Judged(verdict) => verdict.clone(),
        })
    }

    /// The number of components of the element of an IteratorGetNext.
    pub(super) fn components(&mut self, get_next: usize) -> Result<u64> {
        if let Some(&count) = self.components.get(&get_next) {
            return Ok(count);
        }
        let count = self.graph.node(get_next)?.count_types("output_types")?;
        self.components.insert(get_next, count);
        Ok(count)
    }

    /// The joint verdict on two inputs of a node.
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
                        described(node),
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
    let input = graph.waits(node).next()?;
    let other = source_of(graph, input).map_or_else(|| quoted(input.node), described);
    Some(format!(
        "{} has a control dependency on {other}",
        described(node)
    ))
}
