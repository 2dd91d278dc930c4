//! The library of functions: which of them are stateful, also by others that they call.

use super::describe::{described, quoted};
use super::graph_def::{item, Function, Node};
use mx_rec_kernels::Result;
use std::collections::HashMap;

/// Op type -> whether it is stateful, for all ops that the process knows.
pub(super) type StatefulOps<'a> = HashMap<&'a str, bool>;

/// The functions of a graph.
pub(super) struct Library<'a> {
    functions: Vec<Function<'a>>,
    /// Name -> index in `functions`; `None` if several functions have the name.
    by_name: HashMap<&'a str, Option<usize>>,
    bodies: Option<Bodies>,
}

/// What is known once all bodies are read.
struct Bodies {
    /// For each function, the functions that it calls directly.
    calls: Vec<Vec<usize>>,
    /// For each function, what in its own body cannot move: a clause that follows "in which".
    faults: Vec<Option<String>>,
    /// For each function, a function with a fault that it calls, directly or not, or is itself.
    reaches: Vec<Option<usize>>,
}

impl<'a> Library<'a> {
    pub(super) fn new(definitions: &[&'a [u8]]) -> Result<Self> {
        let functions: Vec<Function<'a>> = definitions
            .iter()
            .map(|bytes| Function::parse(bytes))
            .collect::<Result<_>>()?;
        let mut by_name = HashMap::with_capacity(functions.len());
        for (at, function) in functions.iter().enumerate() {
            by_name
                .entry(function.name)
                .and_modify(|place| *place = None)
                .or_insert(Some(at));
        }
        Ok(Self {
            functions,
            by_name,
            bodies: None,
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The FunctionDef at an index.
    pub(super) fn definition(&self, at: usize) -> Result<&'a [u8]> {
        Ok(item(&self.functions, at)?.bytes)
    }

    /// Indices of the functions that a node calls directly, or why they are unknown.
    pub(super) fn called_by(&self, node: &Node<'a>) -> Result<Result<Vec<usize>, String>> {
        let mut names = node.functions()?;
        if self.has(node.op) {
            names.push(node.op);
        }
        let mut places = Vec::with_capacity(names.len());
        for name in names {
            match self.by_name.get(name) {
                Some(Some(place)) => places.push(*place),
                Some(None) => {
                    let why = format!("there are two functions of the name {}", quoted(name));
                    return Ok(Err(why));
                }
                None => {
                    let why = format!("the graph has no function {}", quoted(name));
                    return Ok(Err(why));
                }
            }
        }
        Ok(Ok(places))
    }

    /// Why a node that calls functions cannot move; `None` if all of them are stateless.
    pub(super) fn fault_of_calls(
        &mut self,
        node: &Node<'a>,
        ops: &StatefulOps<'_>,
    ) -> Result<Option<String>> {
        let places = match self.called_by(node)? {
            Ok(places) => places,
            Err(why) => {
                return Ok(Some(format!(
                    "{} calls a function, but {why}",
                    described(node)
                )))
            }
        };
        for place in places {
            let bodies = match self.bodies.take() {
                Some(bodies) => bodies,
                None => self.read_bodies(ops)?,
            };
            let bodies = self.bodies.insert(bodies);
            if let Some(at) = *item(&bodies.reaches, place)? {
                let fault = item(&bodies.faults, at)?.as_deref().unwrap_or_default();
                let called = quoted(item(&self.functions, place)?.name);
                let caller = described(node);
                return Ok(Some(if at == place {
                    format!("{caller} calls the function {called}, in which {fault}")
                } else {
                    let inner = quoted(item(&self.functions, at)?.name);
                    format!(
                        "{caller} calls the function {called}, which reaches {inner}, \
                         in which {fault}"
                    )
                }));
            }
        }
        Ok(None)
    }

    /// These functions and all that they call, directly or not, in the order of the library.
    pub(super) fn closure(&self, roots: Vec<usize>) -> Result<Vec<usize>> {
        let Some(bodies) = &self.bodies else {
            return Ok(Vec::new());
        };
        let mut found = std::collections::BTreeSet::new();
        let mut todo = roots;
        while let Some(at) = todo.pop() {
            if found.insert(at) {
                todo.extend(item(&bodies.calls, at)?);
            }
        }
        Ok(found.into_iter().collect())
    }

    fn read_bodies(&self, ops: &StatefulOps<'_>) -> Result<Bodies> {
        let mut calls = Vec::with_capacity(self.functions.len());
        let mut faults = Vec::with_capacity(self.functions.len());
        let mut callers: Vec<Vec<usize>> = vec![Vec::new(); self.functions.len()];
        for (at, function) in self.functions.iter().enumerate() {
            let mut called = Vec::new();
            let mut fault = function
                .stateful
                .then(|| "something keeps state, as its signature says".to_owned());
            for node in function.body() {
                let node = node?;
                let inner = self.called_by(&node)?;
                let why = match ops.get(node.op) {
                    Some(true) => Some(format!("{} keeps state", described(&node))),
                    None if !self.has(node.op) => Some(unknown(&node)),
                    _ => inner.as_ref().err().cloned(),
                };
                // A stateful node is a better reason than the signature.
                if fault.is_none() || (function.stateful && called.is_empty()) {
                    fault = why.or(fault);
                }
                called.extend(inner.unwrap_or_default());
            }
            called.sort_unstable();
            called.dedup();
            for &inner in &called {
                if let Some(callers) = callers.get_mut(inner) {
                    callers.push(at);
                }
            }
            calls.push(called);
            faults.push(fault);
        }
        Ok(Bodies {
            reaches: spread(&faults, &callers),
            calls,
            faults,
        })
    }
}

/// Passes each fault from a function on to all of its callers.
fn spread(faults: &[Option<String>], callers: &[Vec<usize>]) -> Vec<Option<usize>> {
    let mut reaches: Vec<Option<usize>> = faults
        .iter()
        .enumerate()
        .map(|(at, fault)| fault.as_ref().map(|_| at))
        .collect();
    let mut todo: Vec<usize> = reaches.iter().copied().flatten().collect();
    while let Some(at) = todo.pop() {
        let origin = reaches.get(at).copied().flatten();
        for &caller in callers.get(at).map(Vec::as_slice).unwrap_or_default() {
            if let Some(place) = reaches.get_mut(caller).filter(|place| place.is_none()) {
                *place = origin;
                todo.push(caller);
            }
        }
    }
    reaches
}

/// The reason for a node whose op type the process does not know.
pub(super) fn unknown(node: &Node<'_>) -> String {
    format!(
        "{} is of an op type that is not known here",
        described(node)
    )
}
