//! Hostile input: random graphs, broken bytes. The pass answers or refuses, in time and in memory,
//! and what it moves may move.
//!
//! `MX_REC_FUZZ_SECONDS=600 cargo test --release -p mx_rec_tf_ops --test graph -- --ignored` is the
//! long form; `scripts/stress fuzz` runs it.

use super::notation::{op_list, FunctionText, GraphText, NodeText};
use mx_rec_kernels::Kind;
use mx_rec_tf_ops::graph::graph_def::{read_ops, Function, Graph, InputSource, Node};
use mx_rec_tf_ops::graph::{Plan, PlannedIterator};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// What one call may take; a hang takes longer.
const LONGEST: Duration = Duration::from_secs(10);

/// Op types that random graphs draw from: what moves, what stays, iterators and lookups.
const OPS: &str = "Add Add Add Add Cast Cast Const Identity Identity Identity Pack \
    PartitionedCall f0 f1 Placeholder Switch Merge NextIteration LookupTableFindV2 Unregistered \
    IteratorV2 OneShotIterator MakeIterator IteratorGetNext IteratorToStringHandle \
    MxRecFind MxRecFind MxRecIdOffset MxRecIdOffset MxRecIdOffset \
    MxRecDistinctSplit MxRecDistinctSplit MxRecPull MxRecPull MxRecStitch MxRecPush SplitV";

type Checked = Result<(), TestCaseError>;

/// Runs the pass and checks what it says.
fn check(graph: &[u8], ops: &[u8]) -> Checked {
    let start = Instant::now();
    let planned = Plan::make(graph, ops, true, None);
    let took = start.elapsed();
    prop_assert!(took < LONGEST, "{took:?}");
    let plan = match planned {
        Ok(plan) => plan,
        Err(error) => {
            prop_assert_eq!(error.kind(), Kind::InvalidArgument, "{}", error);
            return Ok(());
        }
    };
    let size = plan
        .encode()
        .map_err(|error| TestCaseError::fail(error.to_string()))?
        .len();
    prop_assert!(
        size < 100 * (graph.len() + 100),
        "{} from {}",
        size,
        graph.len()
    );
    let original = Graph::parse(graph).expect("it was read");
    let ops = read_ops(ops).expect("they were read");
    for (place, iterator) in plan.iterators.iter().enumerate() {
        for &lookup in &iterator.lookups {
            prop_assert_eq!(plan.lookups[lookup].iterator, Some(place));
        }
        check_iterator(&plan, iterator, &original, &ops)?;
    }
    for (at, lookup) in plan.lookups.iter().enumerate() {
        prop_assert!(!lookup.reason.is_empty());
        prop_assert_eq!(lookup.moves, lookup.iterator.is_some());
        if let Some(iterator) = lookup.iterator {
            prop_assert!(plan.iterators[iterator].lookups.contains(&at));
            let ids = &plan.iterators[iterator].ids;
            prop_assert!(ids.iter().any(|ids| ids.tensor == lookup.ids));
        }
    }
    Ok(())
}

/// What moves is closed, in order, without state; and only one op reads the iterator.
fn check_iterator(
    plan: &Plan,
    iterator: &PlannedIterator,
    original: &Graph<'_>,
    ops: &HashMap<&str, bool>,
) -> Checked {
    let [start, length] = iterator.graph;
    let moved = Graph::parse(&plan.graphs[start..start + length]).expect("what moves is a graph");
    let names: Vec<&str> = moved.nodes.iter().map(|node| node.name).collect();
    prop_assert_eq!(&names, &iterator.nodes);
    let functions: Vec<Function<'_>> = moved
        .functions
        .iter()
        .map(|bytes| Function::parse(bytes).expect("a function that was read"))
        .collect();
    let known: HashSet<&str> = functions.iter().map(|function| function.name).collect();
    let may_move = |node: &Node<'_>| {
        let called = node.functions().expect("attributes that were read");
        let is_function = known.contains(node.op);
        prop_assert!(
            is_function || ops.contains_key(node.op),
            "{} is unknown",
            node.op
        );
        prop_assert!(ops.get(node.op) != Some(&true), "{} keeps state", node.op);
        prop_assert!(called.iter().all(|name| known.contains(name)), "{called:?}");
        Ok(())
    };
    let mut before = HashSet::new();
    for node in &moved.nodes {
        may_move(node)?;
        prop_assert!(!["Switch", "Merge", "NextIteration", "Placeholder"].contains(&node.op));
        prop_assert!(node
            .attr("_class")
            .expect("attributes that were read")
            .is_none());
        for input in moved.inputs(node) {
            let from_iterator = input.node == iterator.get_next
                && input
                    .output
                    .is_some_and(|output| output < iterator.components);
            prop_assert!(!input.is_control());
            prop_assert!(
                from_iterator || before.contains(input.node),
                "{}",
                input.node
            );
        }
        prop_assert!(before.insert(node.name));
    }
    for function in &functions {
        prop_assert!(!function.stateful);
        for node in function.body() {
            may_move(&node.expect("a body that was read"))?;
        }
    }
    for bags in &iterator.bags {
        let name = bags.split(':').next().unwrap_or_default();
        prop_assert!(before.contains(name), "{bags}");
    }
    for ids in &iterator.ids {
        match ids.component {
            Some(component) => prop_assert!(component < iterator.components),
            None => {
                let node = ids.tensor.rsplit_once(':').map_or("", |(node, _)| node);
                prop_assert!(before.contains(node), "{} is not computed", ids.tensor);
            }
        }
    }
    let InputSource::Node(handle) = original.find(&iterator.iterator) else {
        return Err(TestCaseError::fail("the iterator is not in the graph"));
    };
    let readers: Vec<&str> = original
        .nodes
        .iter()
        .filter(|node| {
            let inputs = original.inputs(node).iter();
            let mut data = inputs.filter(|input| !input.is_control());
            data.any(|input| input.source == InputSource::Node(handle))
        })
        .map(|node| node.op)
        .filter(|op| !["MakeIterator", "IteratorToStringHandle"].contains(op))
        .collect();
    prop_assert_eq!(readers.len(), 1, "{:?}", readers);
    Ok(())
}

/// A node with an op of `OPS` and inputs that are drawn from `count` nodes, some of them no good.
fn node(at: usize, count: usize) -> impl Strategy<Value = NodeText> {
    // Mostly the element, or a node before this one; now and then anything.
    let node = prop_oneof![
        12 => Just(3),
        12 => 1..at.max(2),
        1 => 0..count + 1,
    ];
    let input = (node, 0..3_usize, 0..60_u8).prop_map(|(node, output, kind)| match kind {
        0 => format!("^n{node}"),
        1 => format!("n{node}:"),
        2 => format!("n{node}:18446744073709551616"),
        3..=5 => format!("n{node}:{output}"),
        _ => format!("n{node}"),
    });
    let inputs = prop::collection::vec(input, 0..4);
    let ops: Vec<&str> = OPS.split_whitespace().collect();
    (prop::sample::select(ops), inputs, 0..40_usize).prop_map(move |(op, mut inputs, twist)| {
        let mut attrs = vec![("T".to_owned(), "int64".to_owned())];
        let mut add = |key: &str, value: &str| attrs.push((key.to_owned(), value.to_owned()));
        // Most nodes of these types get what they need, or graphs in which something moves would be
        // rare.
        match op {
            "IteratorGetNext" | "OneShotIterator" | "IteratorV2" => {
                add("output_types", "[int64, int32]");
                inputs.truncate(usize::from(op == "IteratorGetNext" || twist == 0));
            }
            "MakeIterator" => inputs.truncate(2),
            "MxRecIdOffset" => {
                inputs.insert(0, if twist == 0 { "table" } else { "table:1" }.to_owned());
                add("create", if twist == 1 { "0" } else { "1" });
                add("N", if twist == 6 { "2" } else { "1" });
                add("P", if twist == 7 { "1" } else { "0" });
                add("_mx_rec_movable", if twist == 2 { "false" } else { "true" });
            }
            "MxRecFind" => {
                inputs.splice(0..0, ["table:1".to_owned(), "table".to_owned()]);
                add("N", if twist == 6 { "2" } else { "1" });
                add("B", if twist == 7 { "1" } else { "0" });
                add("_mx_rec_movable", "true");
            }
            "PartitionedCall" => add("f", ["&f0", "&f1", "&f2", "&f3"][twist % 4]),
            _ => {}
        }
        if twist == 3 {
            add("_class", "<0a0812066c6f633a4061>");
        }
        NodeText {
            name: format!("n{}", if twist == 4 { at / 2 } else { at }),
            op: op.to_owned(),
            inputs,
            device: (twist == 5).then(|| "/device:CPU:0".to_owned()),
            attrs,
        }
    })
}

/// A graph of a table, an iterator that works, random nodes, and random functions.
fn graph() -> impl Strategy<Value = GraphText> {
    let sizes = (1..40_usize, 0..4_usize);
    sizes.prop_flat_map(|(count, functions)| {
        let nodes: Vec<_> = (4..count + 4).map(|at| node(at, count + 4)).collect();
        let bodies = prop::collection::vec(prop::collection::vec(node(0, 3), 0..4), functions);
        (nodes, bodies, prop::bool::weighted(0.1)).prop_map(|(nodes, bodies, stateful)| {
            let mut graph = GraphText::parse(
                "table = MxRecTable\n\
                 n0 = IteratorV2 {output_types=[int64, int32]}\n\
                 n1 = Const\n\
                 n2 = MakeIterator(n1, n0)\n\
                 n3 = IteratorGetNext(n0) {output_types=[int64, int32]}\n",
            );
            graph.nodes.extend(nodes);
            graph.functions = bodies
                .into_iter()
                .enumerate()
                .map(|(at, nodes)| FunctionText {
                    name: format!("f{at}"),
                    stateful: stateful && at == 1,
                    nodes,
                })
                .collect();
            graph
        })
    })
}

/// One change of bytes.
#[derive(Clone, Debug)]
enum Damage {
    Set(prop::sample::Index, u8),
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Remove(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Repeat(prop::sample::Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    let byte = prop_oneof![any::<u8>(), Just(0), Just(0x7f), Just(0x80), Just(0xff)];
    prop_oneof![
        4 => (at(), byte).prop_map(|(at, byte)| Damage::Set(at, byte)),
        4 => (at(), 0..8_u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        1 => at().prop_map(Damage::Cut),
        2 => (at(), 1..20_usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        2 => (at(), prop::collection::vec(any::<u8>(), 1..12))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        2 => (at(), 1..200_usize).prop_map(|(at, length)| Damage::Repeat(at, length)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    let length = bytes.len();
    match damage {
        Damage::Set(at, byte) => bytes[at.index(length)] = *byte,
        Damage::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
        Damage::Cut(at) => bytes.truncate(at.index(length)),
        Damage::Remove(at, count) => {
            let start = at.index(length);
            bytes.drain(start..length.min(start + count));
        }
        Damage::Insert(at, new) => {
            let start = at.index(length);
            bytes.splice(start..start, new.iter().copied());
        }
        Damage::Repeat(at, count) => {
            let start = at.index(length);
            let part = bytes[start..length.min(start + count)].to_vec();
            bytes.splice(start..start, part);
        }
    }
}

/// One hostile input: a graph and a list of ops, whole, damaged or of no sense at all.
fn hostile() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let damages = |most| prop::collection::vec(damage(), 0..most);
    let noise = || prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        6 => (graph(), damages(6), damages(2)).prop_map(|(graph, damages, of_ops)| {
            let (mut graph, mut ops) = (graph.encode(), op_list());
            damages.iter().for_each(|damage| apply(&mut graph, damage));
            of_ops.iter().for_each(|damage| apply(&mut ops, damage));
            (graph, ops)
        }),
        1 => (noise(), noise()),
    ]
}

/// Runs both properties on so many cases. Returns how many lookups moved.
fn run(cases: u32) -> usize {
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let moved = std::cell::Cell::new(0);
    let whole = TestRunner::new(config.clone()).run(&graph(), |graph| {
        let bytes = graph.encode();
        let plan = Plan::make(&bytes, &op_list(), true, None);
        let plan = plan.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let count = plan.lookups.iter().filter(|lookup| lookup.moves).count();
        moved.set(moved.get() + count);
        check(&bytes, &op_list())
    });
    whole.unwrap_or_else(|failure| panic!("{failure}"));
    let broken = TestRunner::new(config).run(&hostile(), |(graph, ops)| check(&graph, &ops));
    broken.unwrap_or_else(|failure| panic!("{failure}"));
    moved.get()
}

#[test]
fn a_random_graph_has_a_plan_that_holds_and_broken_bytes_are_refused_or_planned() {
    let moved = run(500);
    assert!(
        moved > 20,
        "only {moved} lookups moved: the graphs test too little"
    );
}

/// Every prefix of a graph, and every byte of it changed.
#[test]
fn no_single_byte_of_a_graph_matters_too_much() {
    let text = include_str!("golden/function_stateless.txt");
    let graph = text.split("== graph\n").nth(1).expect("a graph");
    let bytes = GraphText::parse(graph.split("\n== plan").next().expect("a graph")).encode();
    let ops = op_list();
    for at in 0..bytes.len() {
        check(&bytes[..at], &ops).unwrap_or_else(|failure| panic!("cut at {at}: {failure}"));
        for change in [0x01, 0x08, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            check(&changed, &ops).unwrap_or_else(|failure| panic!("{at} ^ {change}: {failure}"));
        }
    }
}

#[test]
#[ignore = "minutes: scripts/stress fuzz"]
fn hostile_graphs_for_a_while() {
    let seconds = std::env::var("MX_REC_FUZZ_SECONDS").map_or(Ok(60), |text| text.parse());
    let end = Instant::now() + Duration::from_secs(seconds.expect("a number of seconds"));
    let (mut cases, mut moved) = (0_u64, 0);
    while Instant::now() < end {
        moved += run(2_000);
        cases += 4_000;
        let peak = peak_memory();
        assert!(peak < 1 << 20, "the process took {peak} KiB");
    }
    println!(
        "{cases} inputs, {moved} lookups moved, at most {} KiB of memory",
        peak_memory()
    );
}

/// The most memory that the process had, in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let digits = line.and_then(|line| line.split_whitespace().next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}
