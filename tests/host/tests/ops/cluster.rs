//! Tables in parts: requests, pulls and pushes against the same ops on one table, and the life of a
//! part from its initialization to its restore.

use crate::oracle::{Random, OPTIMIZERS};
use crate::table::{reduce, settings, Table, DIM};
use mx_rec_host_tests::{Code, Graph, Node, Output, Session, Tensor};
use serde_json::json;
use std::collections::BTreeMap;

const PARTS: i64 = 2;

/// The ops of a table in two parts, all in this process.
struct Parts<'g> {
    graph: &'g Graph,
    /// What stands for each part.
    parts: [Node<'g>; 2],
    /// A list of one.
    configs: Output<'g>,
    variable: Output<'g>,
}

impl<'g> Parts<'g> {
    fn new(graph: &'g Graph, name: &str) -> Parts<'g> {
        let one = settings(name, json!({}));
        let text = |text: &str| graph.constant(&Tensor::vector(text.as_bytes()));
        let config = text(&one);
        let like = graph.constant(&Tensor::new::<f32>(&[0, DIM as i64], &[]));
        let table = graph.node("MxRecClusterTable").input(config).input(like);
        let table = table.int("parts", PARTS).made();
        let parts = [0, 1].map(|part| {
            let node = graph.node("MxRecPart").input(config);
            let node = node.int("part", part).int("parts", PARTS);
            node.made()
        });
        Parts {
            graph,
            parts,
            configs: text(&format!("[{one}]")),
            variable: table.output(0),
        }
    }

    /// A node of each part that takes its handle and other inputs.
    fn each(&self, op: &str, inputs: &[Output<'g>]) -> [Node<'g>; 2] {
        self.parts.map(|part| {
            let node = self.graph.node(op).input(part.output(0));
            let node = inputs.iter().fold(node, |node, &input| node.input(input));
            node.finish().expect(op)
        })
    }

    /// The rows of a request, and their births.
    fn pull(&self, request: Output<'g>, part: i64, create: i64) -> [Output<'g>; 2] {
        let node = self.graph.node("MxRecPull").input(self.configs);
        let node = node.input(request).int("part", part);
        let node = node.int("parts", PARTS).int("create", create);
        let pull = node.made();
        [0, 1].map(|at| pull.output(at))
    }
}

/// What MxRecDistinctSplit gives for one lookup, and the request of each part.
struct Split<'g> {
    keys: Output<'g>,
    places: Output<'g>,
    counts: Output<'g>,
    requests: [Output<'g>; 2],
}

fn split<'g>(graph: &'g Graph, ids: Output<'g>) -> Split<'g> {
    let node = graph.node("MxRecDistinctSplit").inputs(&[ids]);
    let node = node.int("parts", PARTS).made();
    let axis = graph.constant(&Tensor::scalar(0_i32));
    let parts = graph.node("SplitV").input(node.output(3));
    let parts = parts.input(node.output(4)).input(axis);
    let parts = parts.int("num_split", PARTS).made();
    Split {
        keys: node.output(0),
        places: node.output(1),
        counts: node.output(2),
        requests: [0, 1].map(|part| parts.output(part)),
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn every_optimizer_does_in_parts_what_it_does_in_one_table() {
    // Either the pull makes rows, or the push makes them.
    let all = OPTIMIZERS
        .iter()
        .flat_map(|one| [(one, false), (one, true)]);
    for (number, (optimizer, creates)) in all.enumerate() {
        let create = if creates { 3 } else { 1 };
        let graph = Graph::new();
        let parts = Parts::new(&graph, &format!("parts_{number}"));
        let whole = Table::new(&graph, "whole", json!({}));
        let ids = graph.placeholder::<i64>(&Some(vec![40]));
        let grad = graph.placeholder::<f32>(&Some(vec![40, DIM as i64]));
        let hyper = graph.placeholder::<f32>(&Some(vec![-1]));
        let arguments = (optimizer.arguments)(1);
        let scalars: Vec<Output<'_>> = arguments
            .iter()
            .map(|_| graph.placeholder::<f32>(&Some(vec![])))
            .collect();
        let reference = whole.update_ids(ids, grad, optimizer.number, &scalars);
        let found = split(&graph, ids);
        let pulls = [0, 1].map(|part| parts.pull(found.requests[part as usize], part, create));
        let rows = pulls.map(|[rows, _]| rows);
        let axis = graph.constant(&Tensor::scalar(0_i32));
        let joined = graph.node("ConcatV2").inputs(&rows).input(axis).finish();
        let stitch = graph.node("MxRecStitch").inputs(&[parts.variable]);
        let stitch = stitch.inputs(&[found.keys]).inputs(&[found.counts]);
        // No row types: all rows come as float32.
        let stitch = stitch.inputs(&[found.places]).inputs(&[]);
        let embedding = stitch.input(joined.expect("rows").output(0)).first();
        let sums = reduce(&graph, grad, (found.keys, found.places));
        let pushes = [0, 1].map(|part| {
            let packed = graph.node("MxRecPackGradients").inputs(&[sums]);
            let packed = packed.inputs(&[found.counts]).int("part", part);
            let packed = packed.first();
            let push = graph.node("MxRecPush").inputs(&[parts.configs]);
            let push = push.inputs(&[found.requests[part as usize]]);
            let push = push.inputs(&[pulls[part as usize][1]]).input(packed);
            let push = push.input(hyper).int("part", part).int("parts", PARTS);
            let push = push.after(embedding.node());
            let push = push.int("create", i64::from(creates));
            push.int("optimizer", optimizer.number).first()
        });
        let init = parts.each("MxRecPartInit", &[]);
        let session = Session::new(&graph).expect("a session");
        session.run(&[], &[], &init).expect("two parts");
        let mut random = Random(number as u64);
        for step in 1..=6 {
            let batch: Vec<i64> = (0..40).map(|_| random.below(50) as i64 - 1).collect();
            let slopes: Vec<f32> = (0..40 * DIM).map(|_| random.gradient()).collect();
            let (batch, slopes) = (
                Tensor::vector(&batch),
                Tensor::new(&[40, DIM as i64], &slopes),
            );
            let now = (optimizer.arguments)(step);
            let numbers = Tensor::vector(&now);
            let values: Vec<Tensor> = now.into_iter().map(Tensor::scalar).collect();
            let mut feeds = vec![(ids, &batch), (grad, &slopes), (hyper, &numbers)];
            feeds.extend(scalars.iter().copied().zip(&values));
            let results = session.get(&feeds, &[embedding, reference, pushes[0], pushes[1]]);
            let updated: i64 = results[2].value::<i64>() + results[3].value::<i64>();
            assert_eq!(updated, results[1].value::<i64>(), "{}", optimizer.name);
            // What evaluation reads from the parts is what the table has.
            let find = [0, 1].map(|part| parts.pull(found.requests[part as usize], part, 0)[0]);
            let read = session.get(&feeds[..1], &[find[0], find[1], found.keys]);
            let of_whole: BTreeMap<i64, Vec<f32>> = whole.rows(&session).into_iter().collect();
            let all: Vec<f32> = read[2]
                .values::<i64>()
                .iter()
                .flat_map(|key| of_whole[key].clone())
                .collect();
            let parts: Vec<f32> = [&read[0], &read[1]]
                .iter()
                .flat_map(|rows| rows.values::<f32>().to_vec())
                .collect();
            let bits = |values: &[f32]| values.iter().map(|one| one.to_bits()).collect::<Vec<_>>();
            if optimizer.changes_all_rows() {
                // To look at the whole table lets its rows catch up in place, rounded.
                for (one, other) in parts.iter().zip(&all) {
                    assert!((one - other).abs() < 1e-5, "{one} {other} step {step}");
                }
            } else {
                assert_eq!(bits(&parts), bits(&all), "{} step {step}", optimizer.name);
            }
        }
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_part_is_there_when_it_was_initialized_or_published_and_only_then() {
    let graph = Graph::new();
    let parts = Parts::new(&graph, "life");
    let ids = graph.constant(&Tensor::vector(&[1_i64, 2, 3, 4, 5, 6, 7, 8]));
    let found = split(&graph, ids);
    let pulls = [0, 1].map(|part| parts.pull(found.requests[part as usize], part, 1)[0]);
    let ready = parts.parts.map(|node| node.output(1));
    let stats = parts.each("MxRecTableStats", &[]);
    let stats = stats.map(|node| node.output(0));
    let (init, discard) = (
        parts.each("MxRecPartInit", &[]),
        parts.each("MxRecPartDiscard", &[]),
    );
    let publish = parts.each("MxRecPartPublish", &[]);
    let path = graph.placeholder::<u8>(&Some(vec![-1]));
    let [since, least] = [-1_i64, 0].map(|number| graph.constant(&Tensor::scalar(number)));
    let save = parts.each("MxRecSave", &[path, since, least]);
    let save = save.map(|node| node.output(0));
    let stage = parts.each("MxRecPartStage", &[path]);
    let stage = stage.map(|node| node.output(0));
    let session = Session::new(&graph).expect("a session");
    let is_ready = || {
        let found = session.get(&[], &ready);
        [found[0].value::<i32>(), found[1].value::<i32>()]
    };
    let refused = |fetches: &[Output<'_>], code: Code| {
        let error = session.run(&[], fetches, &[]).err().expect("an error");
        assert_eq!(error.code, code, "{error}");
        assert!(error.to_string().contains("'life'"), "{error}");
    };
    assert_eq!(is_ready(), [0, 0]);
    refused(&pulls[..1], Code::TF_ABORTED);
    refused(&stats[..1], Code::TF_ABORTED);
    refused(&[publish[0].output(0)], Code::TF_ABORTED);
    session.run(&[], &[], &init).expect("parts");
    session.get(&[], &pulls);
    let rows = || {
        let found = session.get(&[], &stats);
        found[0].values::<i64>()[0] + found[1].values::<i64>()[0]
    };
    assert_eq!((is_ready(), rows()), ([1, 1], 8));
    let root = std::env::temp_dir().join(format!("mx_rec-parts-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("a directory");
    for (part, &save) in save.iter().enumerate().take(2) {
        let directory = root.join(format!("life-part-0000{part}-of-00002"));
        let bytes = Tensor::vector(directory.to_str().expect("text").as_bytes());
        session.get(&[(path, &bytes)], &[save]);
    }
    let nowhere = root.join("missing").join("life");
    let nowhere = Tensor::vector(nowhere.to_str().expect("text").as_bytes());
    let error = session.run(&[(path, &nowhere)], &[save[0]], &[]);
    let error = error.err().expect("an error");
    assert!(error.to_string().contains("common file system"), "{error}");
    session.run(&[], &[], &init).expect("parts");
    assert_eq!(rows(), 0);
    let table = Tensor::vector(root.join("life").to_str().expect("text").as_bytes());
    let staged = session.get(&[(path, &table)], &stage);
    assert_eq!(staged[0].value::<i64>() + staged[1].value::<i64>(), 8);
    assert_eq!((is_ready(), rows()), ([1, 1], 0));
    session.run(&[], &[], &discard).expect("forgotten");
    refused(&[publish[0].output(0)], Code::TF_ABORTED);
    session.get(&[(path, &table)], &stage);
    assert_eq!((is_ready(), rows()), ([1, 1], 0));
    session.run(&[], &[], &publish).expect("published");
    assert_eq!((is_ready(), rows()), ([1, 1], 8));
    let _ = std::fs::remove_dir_all(&root);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_key_of_a_part_gets_a_row_when_it_was_counted_often_enough_and_loses_it_when_it_is_old() {
    let graph = Graph::new();
    let parts = Parts::new(&graph, "admitted");
    let ids = graph.placeholder::<i64>(&Some(vec![-1]));
    let time = graph.placeholder::<i64>(&Some(vec![]));
    let value = graph.placeholder::<i32>(&Some(vec![]));
    // One request for both parts.
    let split = graph.node("MxRecDistinctSplit").inputs(&[ids]);
    let split = split.int("parts", PARTS).int("together", PARTS);
    let split = split.int("counted", 1).made();
    let (request, times) = (split.output(3), split.output(5));
    let both = |op: &str| {
        let node = graph.node(op).input(parts.configs).input(request);
        node.int("part", 0).int("parts", PARTS).int("count", PARTS)
    };
    let weight = graph.constant(&Tensor::scalar(1_i32));
    let observe = both("MxRecPartObserve").input(times).input(weight);
    let observe = observe.input(time).int("access_threshold", 3);
    let observed = observe.int("eviction_threshold", 50).first();
    let pull = both("MxRecPull").int("create", 2).after(observed.node());
    let pull = pull.first();
    let thresholds = parts.each("MxRecSetThreshold", &[value]);
    let thresholds = thresholds.map(|node| node.output(0));
    let evict = parts.each("MxRecEvict", &[]).map(|node| node.output(0));
    let init = parts.each("MxRecPartInit", &[]);
    let session = Session::new(&graph).expect("a session");
    session.run(&[], &[], &init).expect("parts");
    // How often the keys of the request occur in all, and how many of them have rows.
    let step = |seconds: i64, batch: &[i64]| -> (i32, usize) {
        let (batch, seconds) = (Tensor::vector(batch), Tensor::scalar(seconds));
        let feeds = [(ids, &batch), (time, &seconds)];
        let found = session.get(&feeds, &[times, observed, pull]);
        let (times, rows) = (found[0].values::<i32>(), found[2].values::<f32>());
        assert_eq!(found[1].value::<i64>(), times.len() as i64);
        assert_eq!(rows.len(), times.len() * DIM);
        let admitted = rows.chunks(DIM).filter(|row| row[0] == 0.5).count();
        (times.iter().sum(), admitted)
    };
    assert_eq!(step(100, &[1, 2, 1, -1]), (3, 0));
    assert_eq!(step(110, &[1, 2]), (2, 1));
    let two = Tensor::scalar(2_i32);
    let set = session.get(&[(value, &two)], &thresholds);
    assert_eq!([set[0].value::<i32>(), set[1].value::<i32>()], [2, 2]);
    assert_eq!(step(155, &[2]), (1, 1));
    // Key 1 was last seen at 110, which is old in its part, too.
    assert_eq!(step(161, &[2, 3]), (2, 1));
    let gone = session.get(&[], &evict);
    let sums = [0, 1].map(|at| gone[0].values::<i64>()[at] + gone[1].values::<i64>()[at]);
    assert_eq!(sums, [1, 2]);
    assert_eq!(step(162, &[1, 2]), (2, 1));
}
