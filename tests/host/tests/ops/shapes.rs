//! Static shapes: what TensorFlow knows of the ops before they run, and what it refuses then.

use crate::oracle::Random;
use crate::table::{reduce, Table, DIM, INVALID};
use mx_rec_host_tests::{Failure, Graph, Node, Output, Session, Shape, Tensor};
use mx_rec_tf_ops::{infer_shapes, Arg, Lengths, OpDef};
use serde_json::json;
use std::collections::HashMap;

/// The type of an input; `list` stands for that of each of its tensors.
fn dtype(arg: &Arg) -> &'static str {
    arg.dtype().split(" * ").last().expect("a type")
}

/// The number attribute of a list.
fn number_of(arg: &Arg) -> Option<&'static str> {
    arg.dtype().split_once(" * ").map(|(number, _)| number)
}

/// A placeholder for a tensor of an input.
fn placeholder<'g>(graph: &'g Graph, arg: &Arg, shape: &Shape) -> Output<'g> {
    match dtype(arg) {
        "float" => graph.placeholder::<f32>(shape),
        "int32" => graph.placeholder::<i32>(shape),
        "uint8" => graph.placeholder::<u8>(shape),
        "int64" | "T" => graph.placeholder::<i64>(shape),
        other => panic!("a type that this test does not know: {other}"),
    }
}

/// The attributes without a default, other than types and lengths of lists, which follow from
/// inputs.
fn attributes(def: &OpDef) -> impl Iterator<Item = &'static str> {
    let numbers: Vec<_> = def.inputs.iter().filter_map(number_of).collect();
    let specs = def.attrs.iter().map(|attr| attr.spec);
    specs.filter_map(move |spec| {
        let (name, kind) = spec.split_once(": ")?;
        let is_free = !numbers.contains(&name) && kind.starts_with("int") && !kind.contains(" = ");
        is_free.then_some(name)
    })
}

/// A node of `def` with a placeholder for each tensor; lists have `list` tensors.
fn node<'g>(
    graph: &'g Graph,
    def: &OpDef,
    shapes: &[Shape],
    list: usize,
) -> Result<Node<'g>, Failure> {
    let mut shapes = shapes.iter();
    let mut next = |arg| placeholder(graph, arg, shapes.next().expect("a shape for each tensor"));
    let mut node = graph.node(def.name);
    for arg in def.inputs {
        if number_of(arg).is_some() {
            let tensors: Vec<_> = (0..list).map(|_| next(arg)).collect();
            node = node.inputs(&tensors);
        } else {
            node = node.input(next(arg));
        }
    }
    for name in attributes(def) {
        node = node.int(name, 1);
    }
    node.finish()
}

/// Shapes that fit the inputs of an op, in which some sizes, ranks or all is unknown. One shape in
/// so many is spoiled: it may contradict the others.
fn fitting(def: &OpDef, list: usize, random: &mut Random) -> Vec<Shape> {
    let mut names: HashMap<(String, usize), Vec<i64>> = HashMap::new();
    let mut shapes = Vec::new();
    for arg in def.inputs {
        for place in 0..if number_of(arg).is_some() { list } else { 1 } {
            let text = arg.shape.split(" times ").last().expect("a shape");
            let text = text.split(" or ").next().expect("a shape");
            let mut dims = Vec::new();
            for size in text.trim_matches(['(', ')']).split(", ") {
                let count = if size.ends_with("...") {
                    random.below(3)
                } else {
                    1
                };
                let drawn = (0..count).map(|_| random.below(4) as i64).collect();
                let key = (size.to_owned(), place);
                match size.parse() {
                    _ if size.is_empty() => {}
                    Ok(number) => dims.push(number),
                    Err(_) => dims.extend(names.entry(key).or_insert(drawn).clone()),
                }
            }
            for dim in &mut dims {
                match random.below(8) {
                    0 | 1 => *dim = -1,
                    2 if random.below(2) == 0 => *dim += 1,
                    _ => {}
                }
            }
            shapes.push((random.below(6) > 0).then_some(dims));
        }
    }
    shapes
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn tensorflow_knows_of_every_op_what_its_definition_says_and_refuses_the_same() {
    let mut random = Random(1);
    let (mut known, mut refused) = (0, 0);
    for def in mx_rec_tf_ops::ops::definitions() {
        for round in 0..40 {
            let list = 1 + round % 3;
            let shapes = fitting(def, list, &mut random);
            let numbers = def.inputs.iter().filter_map(number_of);
            let mut lists: Lengths = numbers.map(|name| (name.to_owned(), list)).collect();
            // TensorFlow does not say how long lists of several lengths are: no input is looked at,
            // and only the first output is surely there.
            let are_read = lists.len() < 2;
            for name in def.outputs.iter().filter_map(number_of) {
                lists.entry(name.to_owned()).or_insert(1);
            }
            let asked: Vec<_> = shapes
                .iter()
                .map(|shape| {
                    let dims = shape.iter().flatten();
                    let dims = dims.map(|&dim| (dim >= 0).then_some(dim)).collect();
                    (are_read && shape.is_some()).then_some(dims)
                })
                .collect();
            let expected = infer_shapes(def, &asked, &lists);
            let graph = Graph::new();
            let made = node(&graph, def, &shapes, list);
            let what = format!("{} of {shapes:?}", def.name);
            match (made, expected) {
                (Ok(node), Ok(expected)) => {
                    for (at, shape) in expected.into_iter().enumerate() {
                        let shape = shape.filter(|_| are_read || at == 0);
                        known += usize::from(shape.is_some());
                        let dims = |shape: Vec<Option<i64>>| {
                            shape.into_iter().map(|dim| dim.unwrap_or(-1)).collect()
                        };
                        let found = graph.shape(node.output(at));
                        assert_eq!(found, shape.map(dims), "output {at}: {what}");
                    }
                }
                (Err(failure), Err(error)) => {
                    refused += 1;
                    assert_eq!(failure.code, INVALID, "{what}");
                    let text = format!("{}: {error}", def.name);
                    assert!(failure.message.contains(&text), "{text}: {failure}");
                }
                (Ok(_), Err(error)) => panic!("TensorFlow accepts {what}: {error}"),
                (Err(failure), Ok(_)) => panic!("TensorFlow refuses {what}: {failure}"),
            }
        }
    }
    assert!(known > 1000 && refused > 50, "{known} {refused}");
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn shapes_follow_a_training_step_from_its_ids_to_its_update() {
    let dim = DIM as i64;
    for (ids, embedding) in [
        (None, None),
        (Some(vec![]), Some(vec![dim])),
        (Some(vec![-1]), Some(vec![-1, dim])),
        (Some(vec![3, -1, 2]), Some(vec![3, -1, 2, dim])),
    ] {
        let graph = Graph::new();
        let table = Table::new(&graph, "t", json!({}));
        assert_eq!(graph.shape(table.variable), Some(vec![0, dim]));
        assert_eq!(graph.shape(table.handle), Some(vec![]));
        let (offsets, inverse) = table.id_offset(graph.placeholder::<i64>(&ids));
        assert_eq!(graph.shape(offsets), Some(vec![-1]));
        // What lists of several lengths say, Python states.
        graph.state_shape(inverse, &ids).expect("a shape");
        let found = table.embed((offsets, inverse));
        graph.state_shape(found, &embedding).expect("a shape");
        let reduced = reduce(&graph, found, (offsets, inverse));
        let known = if embedding.is_some() { dim } else { -1 };
        assert_eq!(graph.shape(reduced), Some(vec![-1, known]));
        let updated = table.descend(offsets, reduced);
        assert_eq!(graph.shape(updated), Some(vec![]));
        // A graph that went through a file knows the same but for what was stated.
        let copy = Graph::from_bytes(&graph.to_bytes().expect("a GraphDef"));
        let copy = copy.expect("a graph");
        for output in [offsets, updated] {
            let there = copy.find(&output.node().name()).expect("the node");
            assert_eq!(copy.shape(there.output(0)), graph.shape(output));
        }
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn what_is_stated_of_an_output_is_merged_with_what_follows_from_inputs() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i64>(&None);
    let (_, inverse) = table.id_offset(ids);
    graph
        .state_shape(inverse, &Some(vec![-1, 4]))
        .expect("a shape");
    let rows = graph.placeholder::<f32>(&Some(vec![-1, DIM as i64]));
    let node = graph.node("MxRecRestore").input(rows).input(inverse);
    let embedding = node.first();
    let dim = DIM as i64;
    assert_eq!(graph.shape(embedding), Some(vec![-1, 4, dim]));
    let stated = graph.state_shape(embedding, &Some(vec![6, -1, -1]));
    stated.expect("it fits");
    assert_eq!(graph.shape(embedding), Some(vec![6, 4, dim]));
    for wrong in [vec![6, 5, dim], vec![6, 4], vec![-1, -1, dim + 1]] {
        let refused = graph.state_shape(embedding, &Some(wrong.clone()));
        let refused = refused.expect_err("a contradiction");
        assert_eq!(refused.code, INVALID, "{wrong:?}");
    }
    assert_eq!(graph.shape(embedding), Some(vec![6, 4, dim]));
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_contradiction_is_an_error_when_the_graph_is_built_and_names_the_input() {
    let graph = Graph::new();
    let longs = |dims: &[i64]| graph.placeholder::<i64>(&Some(dims.to_vec()));
    let places = |dims: &[i64]| graph.placeholder::<i32>(&Some(dims.to_vec()));
    let floats = |dims: &[i64]| graph.placeholder::<f32>(&Some(dims.to_vec()));
    for (node, message) in [
        (
            graph
                .node("MxRecClear")
                .input(longs(&[1]))
                .inputs(&[])
                .input(floats(&[0]))
                .input(longs(&[0])),
            "MxRecClear: handle must have rank 0, but has shape (1)".to_owned(),
        ),
        (
            graph
                .node("MxRecReduce")
                .input(floats(&[2, 3, 4]))
                .input(places(&[2, -1, 3]))
                .input(longs(&[5])),
            "MxRecReduce: s must agree, but is (2, 3) in grad and (2, ?, 3) in inverse".to_owned(),
        ),
    ] {
        let failure = node.finish().err().expect("a contradiction");
        assert_eq!(failure.code, INVALID, "{failure}");
        assert!(failure.message.contains(&message), "{message}: {failure}");
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_graph_of_partial_shapes_runs_with_batches_of_any_length() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i64>(&Some(vec![-1, 2]));
    let embedding = table.embed(table.id_offset(ids));
    let dim = DIM as i64;
    let stated = graph.state_shape(embedding, &Some(vec![-1, 2, dim]));
    stated.expect("a shape");
    // TensorFlow may compute this from static shapes.
    let shape = graph.node("Shape").input(embedding).first();
    let session = Session::new(&graph).expect("a session");
    for length in [0_i64, 1, 5] {
        let keys: Vec<i64> = (0..length * 2).collect();
        let keys = Tensor::new(&[length, 2], &keys);
        let got = session.get(&[(ids, &keys)], &[embedding, shape]);
        assert_eq!(got[0].dims(), [length, 2, dim]);
        assert_eq!(got[1].values::<i32>(), [length as i32, 2, dim as i32]);
    }
}
