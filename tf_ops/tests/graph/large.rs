//! A large graph takes time in proportion to its size.

use super::notation::{op_list, GraphText, NodeText};
use mx_rec_tf_ops::graph::Plan;
use std::time::Instant;

/// `depth` ops in a row behind one iterator, `lookups` lookups that read the last of them, and
/// `others` nodes of a model beside it.
fn graph(depth: usize, lookups: usize, others: usize) -> Vec<u8> {
    let mut text = String::from(
        "user = MxRecTable\n\
         it = IteratorV2 {output_types=[int64]}\n\
         data = MakeDataset\n\
         start = MakeIterator(data, it)\n\
         op_0 = IteratorGetNext(it) {output_types=[int64]}\n",
    );
    for at in 1..=depth {
        let before = at - 1;
        text += &format!("op_{at} = Add(op_{before}, op_{before}) {{T=int64}}\n");
    }
    for at in 0..lookups {
        text += &format!("user//sparse_lookup_{at}/ids = Identity(op_{depth}) {{T=int64}}\n");
        text += &format!(
            "user//sparse_lookup_{at}/id_offset = \
             MxRecIdOffset(user:1, user//sparse_lookup_{at}/ids) \
             {{T=int64, create=1, limit=0, _mx_rec_movable=true, N=1, P=0}}\n"
        );
    }
    let mut graph = GraphText::parse(&text);
    for at in 0..others {
        let input = |back: usize| format!("gradients/layer_{}/MatMul", at.saturating_sub(back));
        graph.nodes.push(NodeText {
            name: format!("gradients/layer_{at}/MatMul"),
            op: "Mul".into(),
            inputs: vec![input(1), input(7), format!("^{}", input(100))],
            device: Some("/device:CPU:0".into()),
            attrs: vec![
                ("T".into(), "float".into()),
                ("_class".into(), "<0a0812066c6f633a4061>".into()),
            ],
        });
    }
    graph.encode()
}

fn measure(what: &str, depth: usize, lookups: usize, others: usize) -> Plan {
    let (graph, ops) = (graph(depth, lookups, others), op_list());
    let (plan, took) = (0..5)
        .map(|_| {
            let start = Instant::now();
            let plan = Plan::make(&graph, &ops, true, None).expect("a plan");
            let _ = plan.encode().expect("bytes");
            (plan, start.elapsed())
        })
        .min_by_key(|(_, took)| *took)
        .expect("it ran");
    println!(
        "{what}: {} nodes, {} bytes, planned in {:.1} ms (least of 5)",
        plan.nodes,
        graph.len(),
        took.as_secs_f64() * 1e3
    );
    plan
}

#[test]
fn a_graph_of_100_000_nodes_is_planned() {
    let plan = measure("a model", 50, 100, 100_000);
    assert!(plan.lookups.iter().all(|lookup| lookup.moves));
    assert_eq!(plan.iterators[0].nodes.len(), 150);
}

/// Walked once for each lookup, these nodes would be 2.5 thousand million steps.
#[test]
fn lookups_that_share_a_deep_slice_walk_it_once() {
    let plan = measure("one deep slice", 50_000, 50_000, 0);
    assert!(plan.lookups.iter().all(|lookup| lookup.moves));
    assert_eq!(plan.iterators[0].nodes.len(), 100_000);
}

/// What all iterators share would be copied for each: 2,000 times 20,000 nodes.
#[test]
fn what_many_iterators_share_is_not_copied_without_limit() {
    let mut text = String::from("user = MxRecTable\nop_0 = Const\n");
    for at in 1..20_000 {
        text += &format!("op_{at} = Add(op_{0}, op_{0})\n", at - 1);
    }
    for at in 0..2_000 {
        text += &format!(
            "it_{at} = OneShotIterator {{output_types=[int64]}}\n\
             next_{at} = IteratorGetNext(it_{at}) {{output_types=[int64]}}\n\
             sum_{at} = Add(next_{at}, op_19999)\n\
             user//{at}/id_offset = MxRecIdOffset(user:1, sum_{at}) \
             {{T=int64, create=1, _mx_rec_movable=true, N=1, P=0}}\n"
        );
    }
    let graph = GraphText::parse(&text).encode();
    let plan = Plan::make(&graph, &op_list(), true, None).expect("a plan");
    let moved = plan.lookups.iter().filter(|lookup| lookup.moves).count();
    assert!((1..100).contains(&moved), "{moved}");
    assert!(plan.graphs.len() < 10 * graph.len());
    let last = plan.lookups.last().expect("lookups");
    assert!(
        last.reason
            .contains("'next_1999' is too large to be copied"),
        "{}",
        last.reason
    );
}

/// A rate of a loss was followed along every way there is: a deep network had no end.
#[test]
fn numbers_that_are_computed_from_a_deep_network_are_compared_once() {
    const DEPTH: usize = 20_000;
    let rate = |name: &str, last: &str| {
        let mut text = format!("{name}_0 = Identity(loss)\n");
        for at in 1..=DEPTH {
            let before = at - 1;
            text += &format!("{name}_{at} = Add({name}_{before}, {name}_{before}) {{T=float}}\n");
        }
        text + &format!(
            "{name}/rate = Mul({name}_{DEPTH}, {last})\n\
             {name} = MxRecTable\n\
             {name}/update = MxRecUpdate({name}:1, rows, grads, {name}/rate) \
             {{B=0, C=0, H=1, N=1, R=0, optimizer=0}}\n"
        )
    };
    let text = String::from(
        "loss = VariableV2\n\
         two = Const {value=scalar[2]}\n\
         three = Const {value=scalar[3]}\n",
    );
    let text = text + &rate("a", "two") + &rate("b", "two") + &rate("c", "three");
    let text = text + "train = NoOp(^a/update, ^b/update, ^c/update)\n";
    let graph = GraphText::parse(&text).encode();
    let plan = Plan::make(&graph, &op_list(), false, None).expect("a plan");
    let groups = plan.updates.iter().map(|group| &group.updates);
    let nodes: Vec<Vec<&str>> = groups
        .map(|group| group.iter().map(|one| one.node.as_str()).collect())
        .collect();
    assert_eq!(nodes, [["a/update", "b/update"]]);
}
