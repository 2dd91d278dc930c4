//! Pooled lookups: bags of ids, the sums of their rows and the gradients of these, against sums of
//! numbers of 64 bits.

use crate::oracle::{Optimizer, Oracle, Random, OPTIMIZERS};
use crate::table::{Table, Update, DIM, INVALID};
use mx_rec_host_tests::{Graph, Output, Session, Tensor};
use serde_json::json;
use std::collections::BTreeMap;

/// A node with these inputs that is no table's.
fn node<'g>(graph: &'g Graph, op: &str, inputs: &[Output<'g>]) -> Output<'g> {
    let node = inputs
        .iter()
        .fold(graph.node(op), |node, &one| node.input(one));
    node.finish().expect(op).output(0)
}

/// A node of pooled rows without a greatest norm; `last` are behind the lists of norms and rows,
/// which an op without them does not have.
fn with_norms<'g>(
    graph: &'g Graph,
    op: &str,
    inputs: &[Output<'g>],
    last: &[Output<'g>],
) -> Output<'g> {
    let node = inputs
        .iter()
        .fold(graph.node(op), |node, &one| node.input(one));
    let node = last
        .iter()
        .fold(node.inputs(&[]), |node, &one| node.inputs(&[]).input(one));
    node.finish().expect(op).output(0)
}

/// What divides the sums: the sum of the weights (1), the root of the sum of their squares (2).
fn divisors<'g>(graph: &'g Graph, inputs: [Output<'g>; 3], combiner: i64) -> Output<'g> {
    let node = graph.node("MxRecBagDivisors");
    let node = inputs.iter().fold(node, |node, &one| node.input(one));
    node.int("combiner", combiner).first()
}

/// Fails unless each number is near the expected one.
fn compare(found: &Tensor, expected: &[f64], what: &str) {
    let found = found.values::<f32>();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let apart = (f64::from(found) - expected).abs();
        assert!(
            apart <= 1e-5 * expected.abs().max(0.1),
            "{what}: number {at} is {found}, and should be {expected}"
        );
    }
}

/// The number of the bag of each id.
fn bags(ends: &[i64]) -> Vec<usize> {
    let mut bags = Vec::new();
    for (bag, &end) in ends.iter().enumerate() {
        bags.resize(end as usize, bag);
    }
    bags
}

/// Ends of `count` bags of `ids` ids, of which the first, the last and others are empty.
fn ragged(ids: u64, count: usize, random: &mut Random) -> Vec<i64> {
    let mut ends: Vec<i64> = (3..count).map(|_| random.below(ids + 1) as i64).collect();
    ends.extend([0, ids as i64, ids as i64]);
    ends.sort_unstable();
    ends
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn bags_follow_from_dense_ragged_and_sparse_ids() {
    let graph = Graph::new();
    let (long, int) = (
        graph.placeholder::<i64>(&None),
        graph.placeholder::<i32>(&None),
    );
    let shape = graph.placeholder::<i64>(&None);
    let dense = [long, int].map(|ids| node(&graph, "MxRecBagEnds", &[ids]));
    let splits = [long, int].map(|splits| node(&graph, "MxRecRaggedBagEnds", &[splits]));
    let sparse = node(&graph, "MxRecSparseBagEnds", &[long, shape]);
    let session = Session::new(&graph).expect("a session");
    for (dims, ends) in [
        (&[2_i64, 3, 4][..], &[4_i64, 8, 12, 16, 20, 24][..]),
        (&[3], &[3]),
        (&[2, 0], &[0, 0]),
        (&[0, 5], &[]),
    ] {
        let count = dims.iter().product::<i64>() as usize;
        let fed = (
            Tensor::new(dims, &vec![7_i64; count]),
            Tensor::new(dims, &vec![7_i32; count]),
        );
        for got in session.get(&[(long, &fed.0), (int, &fed.1)], &dense) {
            assert_eq!(got.dims(), dims[..dims.len() - 1]);
            assert_eq!(got.values::<i64>(), ends);
        }
    }
    let fed = (
        Tensor::vector(&[0_i64, 2, 2, 5]),
        Tensor::vector(&[0_i32, 2, 2, 5]),
    );
    for got in session.get(&[(long, &fed.0), (int, &fed.1)], &splits) {
        assert_eq!(got.values::<i64>(), [2, 2, 5]);
    }
    let indices = Tensor::new(&[3, 2], &[1_i64, 0, 1, 4, 3, 2]);
    let dense_shape = Tensor::vector(&[5_i64, 5]);
    let got = session.get(&[(long, &indices), (shape, &dense_shape)], &[sparse]);
    assert_eq!(got[0].values::<i64>(), [0, 2, 2, 3, 3]);

    let refuse = |long_fed: &Tensor, shape_fed: &Tensor, fetch, op: &str| {
        let feeds = [(long, long_fed), (shape, shape_fed)];
        session.refuses(&feeds, fetch, INVALID, &[op]);
    };
    let scalar = Tensor::scalar(1_i64);
    refuse(&scalar, &scalar, dense[0], "MxRecBagEnds");
    for wrong in [&[1_i64, 2][..], &[]] {
        refuse(
            &Tensor::vector(wrong),
            &scalar,
            splits[0],
            "MxRecRaggedBagEnds",
        );
    }
    for wrong in [[1_i64, 0, 0, 1], [0, 0, 5, 0], [-1, 0, 0, 0]] {
        let indices = Tensor::new(&[2, 2], &wrong);
        refuse(&indices, &dense_shape, sparse, "MxRecSparseBagEnds");
    }
    let cube = Tensor::vector(&[5_i64, 5, 5]);
    refuse(&indices, &cube, sparse, "MxRecSparseBagEnds");
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn weights_and_divisors_of_bags_are_those_of_ids_without_padding() {
    let graph = Graph::new();
    let ids = graph.placeholder::<i64>(&None);
    let ends = graph.placeholder::<i64>(&None);
    let weights = graph.placeholder::<f32>(&None);
    let checked = node(&graph, "MxRecBagWeights", &[weights, ids]);
    let [mean, root] = [1, 2].map(|combiner| divisors(&graph, [ids, ends, weights], combiner));
    let session = Session::new(&graph).expect("a session");
    let keys = Tensor::new(&[2, 3], &[4_i64, -1, 4, 5, 6, -1]);
    let three = Tensor::vector(&[3_i64, 3, 5, 6]);
    let given = Tensor::new(&[2, 3], &[3.0_f32, 100.0, 4.0, 0.5, -0.25, 7.0]);
    let feeds = [(ids, &keys), (ends, &three), (weights, &given)];
    let got = session.get(&feeds, &[checked, mean, root]);
    assert_eq!(got[0].dims(), [2, 3]);
    assert_eq!(got[0].values::<f32>(), given.values::<f32>());
    // The second bag is empty, the last has padding alone.
    assert_eq!(got[1].values::<f32>(), [7.0, 0.0, 0.25, 0.0]);
    compare(&got[2], &[5.0, 0.0, 0.3125_f64.sqrt(), 0.0], "roots");
    let none = Tensor::vector::<f32>(&[]);
    let feeds = [(ids, &keys), (ends, &three), (weights, &none)];
    let got = session.get(&feeds, &[mean, root]);
    assert_eq!(got[0].values::<f32>(), [2.0, 0.0, 2.0, 0.0]);
    let two = 2.0_f64.sqrt();
    compare(&got[1], &[two, 0.0, two, 0.0], "roots without weights");
    let other = Tensor::new(&[3, 2], &[1.0_f32; 6]);
    let short = Tensor::vector(&[1.0_f32; 5]);
    let descending = Tensor::vector(&[3_i64, 2, 6]);
    let early = Tensor::vector(&[3_i64, 5]);
    for (ends_fed, weights_fed, fetch, op) in [
        (&three, &other, checked, "MxRecBagWeights"),
        (&three, &short, mean, "MxRecBagDivisors"),
        (&descending, &given, root, "MxRecBagDivisors"),
        (&early, &given, mean, "MxRecBagDivisors"),
    ] {
        let feeds = [(ids, &keys), (ends, ends_fed), (weights, weights_fed)];
        session.refuses(&feeds, fetch, INVALID, &[op]);
    }
}

/// The nodes that pool, and their gradients.
struct Pooling<'g> {
    table: Table<'g>,
    session: Session<'g>,
    ids: Output<'g>,
    ends: Output<'g>,
    weights: Output<'g>,
    divisors: Output<'g>,
    absent: Output<'g>,
    grad: Output<'g>,
    /// In place of what the table gives.
    fed_inverse: Output<'g>,
    inverse: Output<'g>,
    mean: Output<'g>,
    root: Output<'g>,
    embedded: Output<'g>,
    restored: Output<'g>,
    found: Output<'g>,
    reduced: Output<'g>,
    weight_gradient: Output<'g>,
}

impl<'g> Pooling<'g> {
    fn new(graph: &'g Graph) -> Pooling<'g> {
        let initializer = json!({"kind": "random_uniform", "min": -1.0, "max": 1.0});
        let table = Table::new(graph, "t", json!({"initializer": initializer}));
        let [ids, ends] = [(); 2].map(|()| graph.placeholder::<i64>(&None));
        let [weights, divided, absent, grad] = [(); 4].map(|()| graph.placeholder::<f32>(&None));
        let (offsets, inverse) = table.id_offset(ids);
        // May be fed with other places.
        let places = node(graph, "Identity", &[inverse]);
        let bags = [ends, weights, divided];
        let rows = table.read(offsets, &[], [&[], &[], &[]]);
        let of_rows = [&[rows, places][..], &bags].concat();
        let of_grad = [&[grad, places][..], &bags].concat();
        let of_both = [grad, rows, places, ends, divided];
        Pooling {
            table,
            session: Session::new(graph).expect("a session"),
            ids,
            ends,
            weights,
            divisors: divided,
            absent,
            grad,
            fed_inverse: places,
            inverse,
            mean: divisors(graph, [ids, ends, weights], 1),
            root: divisors(graph, [ids, ends, weights], 2),
            embedded: table.read(offsets, &[places], [&[ends], &[weights], &[divided]]),
            restored: with_norms(graph, "MxRecRestorePooled", &of_rows, &[]),
            found: table.find(ids, &[absent], [&[ends], &[weights], &[divided]]),
            reduced: with_norms(graph, "MxRecReducePooled", &of_grad, &[offsets]),
            weight_gradient: with_norms(graph, "MxRecPooledWeightGradient", &of_both, &[]),
        }
    }

    fn run(&self, feeds: &[(Output<'g>, &Tensor)], fetch: Output<'g>) -> Tensor {
        let got = self.session.run(feeds, &[fetch], &[]);
        got.expect("a run").remove(0)
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn pooled_rows_and_their_gradients_are_the_sums_of_the_bags() {
    const IDS: usize = 48;
    const BAGS: usize = 12;
    let graph = Graph::new();
    let pooling = Pooling::new(&graph);
    let none = Tensor::vector::<f32>(&[]);
    let mut random = Random(21);
    for case in 0..12 {
        let keys: Vec<i64> = (0..IDS).map(|_| random.below(40) as i64 - 1).collect();
        // The first of the keys in this batch has no row before it.
        let keys = [&[1000 + case][..], &keys[1..]].concat();
        let ends = ragged(IDS as u64, BAGS, &mut random);
        let weights: Vec<f32> = (0..IDS).map(|_| 0.25 + random.below(9) as f32).collect();
        let grads: Vec<f32> = (0..BAGS * DIM).map(|_| random.gradient()).collect();
        let fills: Vec<f32> = (0..IDS * DIM).map(|_| random.gradient()).collect();
        let of_id = bags(&ends);
        let keys_fed = Tensor::new(&[8, 6], &keys);
        let ends_fed = Tensor::new(&[4, 3], &ends);
        let weights_fed = Tensor::new(&[8, 6], &weights);
        let grads_fed = Tensor::new(&[4, 3, DIM as i64], &grads);
        let fills_fed = Tensor::new(&[IDS as i64, DIM as i64], &fills);
        let has_weights = case % 2 == 1;
        let given = if has_weights { &weights_fed } else { &none };
        let mut feeds = vec![
            (pooling.ids, &keys_fed),
            (pooling.ends, &ends_fed),
            (pooling.weights, given),
        ];
        let divisors = match case % 3 {
            0 => None,
            1 => Some(pooling.run(&feeds, pooling.mean)),
            _ => Some(pooling.run(&feeds, pooling.root)),
        };
        let weight = |at: usize| match has_weights {
            true => f64::from(weights[at]),
            false => 1.0,
        };
        // 1 / divisor of each bag, 0 for one that has no ids.
        let mut shares = vec![1.0; BAGS];
        if let Some(divisors) = &divisors {
            assert_eq!(divisors.dims(), [4, 3]);
            let mut sums = [0.0; BAGS];
            let counted = of_id.iter().enumerate().filter(|(at, _)| keys[*at] != -1);
            for (at, &bag) in counted {
                sums[bag] += weight(at).powi((case % 3) as i32);
            }
            let roots = sums.map(f64::sqrt);
            let expected = if case % 3 == 1 { sums } else { roots };
            compare(divisors, &expected, "divisors");
            let share = |sum: f64| if sum == 0.0 { 0.0 } else { 1.0 / sum };
            shares = expected.map(share).to_vec();
        }
        feeds.push((pooling.divisors, divisors.as_ref().unwrap_or(&none)));

        // Without rows for unknown keys.
        let before: BTreeMap<_, _> = pooling.table.rows(&pooling.session).into_iter().collect();
        let sums = |row_of: &dyn Fn(usize) -> Vec<f32>| {
            let mut sums = vec![0.0; BAGS * DIM];
            for (at, &bag) in of_id.iter().enumerate() {
                for (column, value) in row_of(at).into_iter().enumerate() {
                    let part = f64::from(value) * weight(at) * shares[bag];
                    sums[bag * DIM + column] += part;
                }
            }
            sums
        };
        let expected = sums(&|at| match (keys[at], before.get(&keys[at])) {
            (-1, _) => vec![0.0; DIM],
            (_, Some(row)) => row.clone(),
            (_, None) => fills[at * DIM..][..DIM].to_vec(),
        });
        feeds.push((pooling.absent, &fills_fed));
        let found = pooling.run(&feeds, pooling.found);
        assert_eq!(found.dims(), [4, 3, DIM as i64]);
        compare(&found, &expected, "MxRecFind");
        let size = pooling.table.size(&pooling.session);
        assert_eq!(size as usize, before.len());
        feeds.pop();

        feeds.push((pooling.grad, &grads_fed));
        let fetches = [
            pooling.embedded,
            pooling.restored,
            pooling.reduced,
            pooling.weight_gradient,
            pooling.inverse,
        ];
        let got = pooling.session.get(&feeds, &fetches);
        let after: BTreeMap<_, _> = pooling.table.rows(&pooling.session).into_iter().collect();
        assert!(after.len() > before.len());
        let row_of = |at: usize| match after.get(&keys[at]) {
            Some(row) => row.clone(),
            None => vec![0.0; DIM],
        };
        let expected = sums(&row_of);
        assert_eq!(got[0].dims(), [4, 3, DIM as i64]);
        compare(&got[0], &expected, "MxRecRead");
        assert_eq!(got[0].values::<f32>(), got[1].values::<f32>());
        let fill = Tensor::new(&[0, DIM as i64], &[0.0_f32; 0]);
        let mut known = feeds[..4].to_vec();
        known.push((pooling.absent, &fill));
        let found = pooling.run(&known, pooling.found);
        assert_eq!(found.values::<f32>(), got[0].values::<f32>());

        let places = got[4].values::<i32>();
        let distinct = got[2].dims()[0] as usize;
        let (mut rows, mut dots) = (vec![0.0; distinct * DIM], vec![0.0; IDS]);
        for (at, &bag) in of_id.iter().enumerate() {
            let Ok(place) = usize::try_from(places[at]) else {
                assert_eq!(keys[at], -1);
                continue;
            };
            for (column, value) in row_of(at).into_iter().enumerate() {
                let grad = f64::from(grads[bag * DIM + column]) * shares[bag];
                rows[place * DIM + column] += grad * weight(at);
                dots[at] += grad * f64::from(value);
            }
        }
        compare(&got[2], &rows, "MxRecReducePooled");
        assert_eq!(got[3].dims(), [8, 6]);
        compare(&got[3], &dots, "MxRecPooledWeightGradient");
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn bags_that_are_not_those_of_the_ids_are_refused() {
    let graph = Graph::new();
    let pooling = Pooling::new(&graph);
    let none = Tensor::vector::<f32>(&[]);
    let keys = Tensor::vector(&[1_i64, 2, 1]);
    let ends = Tensor::vector(&[2_i64, 3]);
    let places = Tensor::vector(&[0_i32, 1, 0]);
    let grads = Tensor::new(&[2, DIM as i64], &[1.0_f32; 2 * DIM]);
    let fill = Tensor::new(&[0, DIM as i64], &[0.0_f32; 0]);
    let feeds = [
        (pooling.ids, &keys),
        (pooling.ends, &ends),
        (pooling.weights, &none),
        (pooling.divisors, &none),
        (pooling.grad, &grads),
        (pooling.absent, &fill),
        (pooling.fed_inverse, &places),
    ];
    let all = [
        (pooling.embedded, "MxRecRead on table 't'"),
        (pooling.found, "MxRecFind on table 't'"),
        (pooling.restored, "MxRecRestorePooled"),
        (pooling.reduced, "MxRecReducePooled"),
        (pooling.weight_gradient, "MxRecPooledWeightGradient"),
    ];
    for (fetch, op) in all {
        assert!(
            !pooling.run(&feeds, fetch).values::<f32>().is_empty(),
            "{op}"
        );
    }
    let floats = [2, 3].map(|count| Tensor::vector(&vec![1.0_f32; count]));
    let longs = [&[2_i64, 1][..], &[2, 4], &[1, 2], &[-1, 3]].map(Tensor::vector);
    let outside = Tensor::vector(&[0_i32, 2, 0]);
    let fills = Tensor::new(&[2, DIM as i64], &[1.0_f32; 2 * DIM]);
    // Number of the feed, its other value, and the ops that take it, by their place.
    let mut wrong: Vec<(usize, &Tensor, &[usize])> = vec![
        (2, &floats[0], &[0, 1, 2, 3]),
        (3, &floats[1], &[0, 1, 2, 3, 4]),
        (6, &outside, &[0, 2, 3, 4]),
        (5, &fills, &[1]),
        (4, &none, &[3, 4]),
    ];
    wrong.extend(longs.iter().map(|ends| (1, ends, &[0, 1, 2, 3, 4][..])));
    for (at, value, ops) in wrong {
        let mut feeds = feeds;
        feeds[at].1 = value;
        for (fetch, op) in ops.iter().map(|&op| all[op]) {
            pooling.session.refuses(&feeds, fetch, INVALID, &[op]);
        }
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_batch_without_bags_gives_nothing_and_bags_without_ids_give_zeros() {
    let graph = Graph::new();
    let pooling = Pooling::new(&graph);
    let none = Tensor::vector::<f32>(&[]);
    let keys = Tensor::vector::<i64>(&[]);
    let fill = Tensor::new(&[1, DIM as i64], &[7.0_f32; DIM]);
    for bags in [0_i64, 3] {
        let count = bags as usize;
        let ends = Tensor::vector(&vec![0_i64; count]);
        let grads = Tensor::new(&[bags, DIM as i64], &vec![1.0_f32; count * DIM]);
        let feeds = [
            (pooling.ids, &keys),
            (pooling.ends, &ends),
            (pooling.weights, &none),
            (pooling.divisors, &none),
            (pooling.grad, &grads),
            (pooling.absent, &fill),
        ];
        for fetch in [pooling.embedded, pooling.restored, pooling.found] {
            let got = pooling.run(&feeds, fetch);
            assert_eq!(got.dims(), [bags, DIM as i64]);
            assert_eq!(got.values::<f32>(), vec![0.0; count * DIM]);
        }
        let divisors = pooling.run(&feeds, pooling.mean);
        assert_eq!(divisors.values::<f32>(), vec![0.0; count]);
        assert_eq!(pooling.run(&feeds, pooling.reduced).dims(), [0, DIM as i64]);
        assert_eq!(pooling.run(&feeds, pooling.weight_gradient).dims(), [0]);
    }
    assert_eq!(pooling.table.size(&pooling.session), 0);
}

/// The forms of a step: sums in ops of their own, and in that of the optimizer.
const FORMS: [&str; 2] = ["rows", "bags"];

/// What is fed to three lookups of a table: pooled with weights and divisors, not pooled, pooled
/// alone.
struct Lookups<'g> {
    ids: [Output<'g>; 3],
    grads: [Output<'g>; 3],
    ends: [Output<'g>; 3],
    weights: [Output<'g>; 3],
    divisors: [Output<'g>; 3],
    arguments: Vec<Output<'g>>,
}

impl<'g> Lookups<'g> {
    fn new(graph: &'g Graph, optimizer: &Optimizer) -> Lookups<'g> {
        let longs = || [(); 3].map(|()| graph.placeholder::<i64>(&None));
        let floats = || [(); 3].map(|()| graph.placeholder::<f32>(&None));
        let arguments = (optimizer.arguments)(1);
        let scalar = |_| graph.placeholder::<f32>(&Some(Vec::new()));
        Lookups {
            ids: longs(),
            grads: floats(),
            ends: longs(),
            weights: floats(),
            divisors: floats(),
            arguments: arguments.into_iter().map(scalar).collect(),
        }
    }

    /// A step on a table of its own.
    fn train(
        &self,
        graph: &'g Graph,
        optimizer: &Optimizer,
        form: &str,
    ) -> (Table<'g>, Output<'g>) {
        let table = Table::new(graph, &format!("t_{form}"), json!({}));
        let lookups = self.ids.map(|ids| table.id_offset(ids));
        let (offsets, inverse) = (lookups.map(|one| one.0), lookups.map(|one| one.1));
        let (number, numbers) = (optimizer.number, &self.arguments);
        let updated = match form {
            "bags" => {
                let update = Update {
                    handles: &[table.handle; 3],
                    offsets: &offsets,
                    inverse: &inverse,
                    grad: &self.grads,
                    bags: [&self.ends, &self.weights, &self.divisors],
                    columns: &[],
                };
                update.step(graph, number, numbers)
            }
            _ => {
                let reduced = [0, 1, 2].map(|at: usize| {
                    let (grad, inverse, offsets) = (self.grads[at], inverse[at], offsets[at]);
                    if at == 1 {
                        return node(graph, "MxRecReduce", &[grad, inverse, offsets]);
                    }
                    let bags = [self.ends[at], self.weights[at], self.divisors[at]];
                    let inputs = [&[grad, inverse][..], &bags].concat();
                    with_norms(graph, "MxRecReducePooled", &inputs, &[offsets])
                });
                let concat = |parts: [Output<'g>; 3]| {
                    let node = graph.node("ConcatV2").inputs(&parts);
                    node.input(table.scalar(0_i32)).first()
                };
                table.update_rows(concat(offsets), concat(reduced), number, numbers)
            }
        };
        (table, updated)
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn every_optimizer_does_with_pooled_lookups_what_the_oracle_does() {
    const COUNTS: [usize; 3] = [30, 10, 20];
    const BAGS: [usize; 3] = [6, 10, 9];
    for (number, optimizer) in OPTIMIZERS.iter().enumerate() {
        let graph = Graph::new();
        let lookups = Lookups::new(&graph, optimizer);
        let trainings = FORMS.map(|form| lookups.train(&graph, optimizer, form));
        let session = Session::new(&graph).expect("a session");
        let (mut oracle, mut random) = (Oracle::new(DIM), Random(number as u64));
        for step in 1..=6 {
            let keys = COUNTS.map(|count| {
                let keys = (0..count).map(|_| random.below(40) as i64 - 1);
                keys.collect::<Vec<_>>()
            });
            let grads = BAGS.map(|bags| {
                let grads = (0..bags * DIM).map(|_| random.gradient());
                grads.collect::<Vec<_>>()
            });
            let ends = [
                (1..=6).map(|bag| bag * 5).collect(),
                Vec::new(),
                ragged(20, BAGS[2], &mut random),
            ];
            // Powers of two: sums are exact. The last bag has the divisor 0.
            let power = |random: &mut Random| [0.5_f32, 1.0, 2.0][random.below(3) as usize];
            let weights: Vec<f32> = (0..30).map(|_| power(&mut random)).collect();
            let mut divisors: Vec<f32> = (0..6).map(|_| power(&mut random)).collect();
            divisors[5] = 0.0;
            // A gradient for each id.
            let mut expanded = grads[1].clone();
            let mut all = keys[1].clone();
            for at in [0, 2] {
                all.extend(&keys[at]);
                for (id, bag) in bags(&ends[at]).into_iter().enumerate() {
                    let factor = match at {
                        0 if divisors[bag] == 0.0 => 0.0,
                        0 => weights[id] / divisors[bag],
                        _ => 1.0,
                    };
                    let of_bag = &grads[at][bag * DIM..][..DIM];
                    expanded.extend(of_bag.iter().map(|grad| grad * factor));
                }
            }
            let expected = oracle.step(optimizer, step, &all, &expanded);
            let dims = [&[6, 5][..], &[10], &[20]];
            let none = || Tensor::vector::<f32>(&[]);
            let keys = [0, 1, 2].map(|at: usize| Tensor::new(dims[at], &keys[at]));
            let grads = [0, 1, 2].map(|at: usize| {
                let bags = BAGS[at] as i64;
                Tensor::new(&[bags, DIM as i64], &grads[at])
            });
            let ends = ends.map(|ends: Vec<i64>| Tensor::vector(&ends));
            let weights = [Tensor::new(&[6, 5], &weights), none(), none()];
            let divisors = [Tensor::vector(&divisors), none(), none()];
            let arguments = (optimizer.arguments)(step);
            let arguments: Vec<_> = arguments.into_iter().map(Tensor::scalar).collect();
            let mut feeds: Vec<_> = lookups.arguments.iter().copied().zip(&arguments).collect();
            for (outputs, tensors) in [
                (lookups.ids, &keys),
                (lookups.grads, &grads),
                (lookups.ends, &ends),
                (lookups.weights, &weights),
                (lookups.divisors, &divisors),
            ] {
                feeds.extend(outputs.into_iter().zip(tensors));
            }
            let fetches = [0, 1].map(|form: usize| trainings[form].1);
            let updated = session.run(&feeds, &fetches, &[]).expect(optimizer.name);
            for updated in updated {
                assert_eq!(updated.value::<i64>(), expected, "{}", optimizer.name);
            }
        }
        let [first, second] = trainings.map(|(table, _)| table);
        let rows = first.rows(&session);
        oracle.compare(0, &rows, optimizer.name);
        assert_eq!(second.rows(&session), rows, "{}", optimizer.name);
        for (place, (name, _)) in optimizer.slots.iter().enumerate() {
            let slot = first.slot(&session, name);
            oracle.compare(1 + place, &slot, name);
            assert_eq!(second.slot(&session, name), slot, "{name}");
        }
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_step_with_wrong_bags_changes_nothing() {
    let graph = Graph::new();
    let lookups = Lookups::new(&graph, &OPTIMIZERS[0]);
    let (table, updated) = lookups.train(&graph, &OPTIMIZERS[0], FORMS[1]);
    let session = Session::new(&graph).expect("a session");
    let none = || Tensor::vector::<f32>(&[]);
    let ones = |count: i64| Tensor::new(&[count, DIM as i64], &vec![1.0; count as usize * DIM]);
    let keys = Tensor::vector(&[1_i64, 2, 1]);
    let ends = [&[2_i64, 3][..], &[], &[3]].map(Tensor::vector);
    let grads = [ones(2), ones(3), ones(1)];
    let scalars = [Tensor::scalar(1.0_f32), Tensor::scalar(0.0_f32)];
    let (weights, divisors) = ([none(), none(), none()], [none(), none(), none()]);
    let mut feeds: Vec<_> = lookups.ends.into_iter().zip(&ends).collect();
    feeds.extend(lookups.grads.into_iter().zip(&grads));
    feeds.extend(lookups.weights.into_iter().zip(&weights));
    feeds.extend(lookups.divisors.into_iter().zip(&divisors));
    feeds.extend(lookups.ids.map(|ids| (ids, &keys)));
    feeds.extend(lookups.arguments.iter().copied().zip(&scalars));
    let got = session.get(&feeds, &[updated]);
    assert_eq!(got[0].value::<i64>(), 2);
    let before = table.rows(&session);
    let rows = [(1, 0.5 - 6.0), (2, 0.5 - 3.0)].map(|(key, all)| (key, vec![all; DIM]));
    assert_eq!(before, rows);
    let descending = Tensor::vector(&[3_i64, 2]);
    let (four, two) = (Tensor::vector(&[4_i64]), Tensor::vector(&[1.0_f32; 2]));
    for (at, wrong) in [
        (0, &descending),
        (2, &four),
        (3, &grads[2]),
        (4, &grads[0]),
        (6, &two),
        (11, &two),
    ] {
        let mut feeds = feeds.clone();
        feeds[at].1 = wrong;
        session.refuses(&feeds, updated, INVALID, &["MxRecUpdate on table 't"]);
        assert_eq!(table.rows(&session), before);
    }
}
