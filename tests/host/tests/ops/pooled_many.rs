//! Pooled lookups of many tables at once, against the same lookups one after the other.

use crate::table::{find, read, resolve, Table, Update, DIM, INVALID, SGD};
use mx_rec_host_tests::{Graph, Output, Session, Tensor};
use serde_json::json;

/// Indices and ids of two members, in no order, with an empty bag and a negative id.
fn members() -> [(Tensor, Tensor); 2] {
    let first = Tensor::new(&[4, 2], &[2_i64, 0, 0, 0, 0, 1, 2, 1]);
    let second = Tensor::new(&[2, 2], &[1_i64, 0, 0, 0]);
    [
        (first, Tensor::vector(&[7_i64, 3, -4, 7])),
        (second, Tensor::vector(&[5_i64, 3])),
    ]
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn many_pooled_lookups_and_updates_are_those_of_each_alone() {
    let graph = Graph::new();
    let initializer = json!({"kind": "random_uniform", "min": -1.0, "max": 1.0});
    let table =
        |name: &str| Table::new(&graph, name, json!({"initializer": initializer, "seed": 3}));
    let sides = [["a", "b"], ["c", "d"]].map(|names| names.map(table));
    let indices = [(); 2].map(|()| graph.placeholder::<i64>(&None));
    let ids = [(); 2].map(|()| graph.placeholder::<i64>(&None));
    let (shape, rows) = (
        graph.placeholder::<i64>(&None),
        graph.placeholder::<i64>(&None),
    );
    let combiners = graph.placeholder::<i32>(&None);
    let node = graph
        .node("MxRecSparseBagsMany")
        .inputs(&indices)
        .inputs(&ids);
    let node = node.inputs(&[shape, shape]).input(rows).input(combiners);
    let bags = node.int("leave_out", 1).made();
    let [bag_ids, ends, divisors] =
        [0, 2, 4].map(|first| [bags.output(first), bags.output(first + 1)]);
    let (none, rate, zero) = (
        graph.placeholder::<f32>(&None),
        graph.placeholder::<f32>(&None),
        graph.placeholder::<f32>(&None),
    );
    let grads = [(); 2].map(|()| graph.placeholder::<f32>(&None));

    let [many, alone] = sides;
    let handles = many.map(|table| table.handle);
    let found = resolve(&graph, &handles, &bag_ids, [&[], &[]]);
    let found = found.made();
    let offsets = [found.output(0), found.output(1)];
    let inverse = [found.output(2), found.output(3)];
    let bags: [&[_]; 3] = [&ends, &[none, none], &divisors];
    let node = read(&graph, &many, &offsets, &inverse, bags);
    let pooled = node.int("M", 2).made();
    // The second gradient lies in one that is wider.
    let (whole, columns) = (
        graph.placeholder::<f32>(&None),
        graph.placeholder::<i32>(&None),
    );
    let update = Update {
        handles: &handles,
        offsets: &offsets,
        inverse: &inverse,
        grad: &[grads[0], whole],
        bags: [&ends, &[none, none], &divisors],
        columns: &[columns],
    };
    let update = update.node(&graph, SGD, &[rate, zero]).after(pooled);
    let update = update.made();

    let each: Vec<(Output<'_>, Output<'_>)> = (0..2)
        .map(|at| {
            let table = alone[at];
            let (offsets, inverse) = table.id_offset(bag_ids[at]);
            let bags: [&[_]; 3] = [&[ends[at]], &[none], &[divisors[at]]];
            let pooled = table.read(offsets, &[inverse], bags).node();
            let update = Update {
                handles: &[table.handle],
                offsets: &[offsets],
                inverse: &[inverse],
                grad: &[grads[at]],
                bags: [&[ends[at]], &[none], &[divisors[at]]],
                columns: &[],
            };
            let update = update.node(&graph, SGD, &[rate, zero]).after(pooled);
            let update = update.made();
            (pooled.output(0), update.output(0))
        })
        .collect();

    // Vectors by key of the tables that the single ops change, by one op and by an op each.
    let absent = graph.placeholder::<f32>(&None);
    let bags: [&[_]; 3] = [&ends, &[none, none], &divisors];
    let evaluated = find(&graph, &alone, &bag_ids, &[absent, absent], bags).made();
    let mut evaluations = vec![evaluated.output(0), evaluated.output(1)];
    evaluations.extend((0..2).map(|at| {
        let bags: [&[_]; 3] = [&[ends[at]], &[none], &[divisors[at]]];
        alone[at].find(bag_ids[at], &[absent], bags)
    }));

    let session = Session::new(&graph).expect("a session");
    let [(first, one), (second, other)] = members();
    let (dense_shape, limits) = (Tensor::vector(&[3_i64, 2]), Tensor::vector(&[10_i64, 10]));
    let kinds = Tensor::vector(&[1_i32, 0]);
    let nothing = Tensor::vector::<f32>(&[]);
    let no_rows = Tensor::new::<f32>(&[0, DIM as i64], &[]);
    let numbers = [Tensor::scalar(0.5_f32), Tensor::scalar(0.0_f32)];
    let floats: Vec<f32> = (1..=3 * DIM as i16).map(|at| f32::from(at) / 4.0).collect();
    let gradient = Tensor::new(&[3, DIM as i64], &floats);
    let wide: Vec<f32> = floats
        .chunks_exact(DIM)
        .flat_map(|row| [&[f32::NAN; 2], row, &[f32::NAN]].concat())
        .collect();
    let wide = Tensor::new(&[3, DIM as i64 + 3], &wide);
    let firsts = Tensor::vector(&[-1_i32, 2]);
    let feeds = |limits| {
        vec![
            (indices[0], &first),
            (indices[1], &second),
            (ids[0], &one),
            (ids[1], &other),
            (shape, &dense_shape),
            (rows, limits),
            (combiners, &kinds),
            (none, &nothing),
            (absent, &no_rows),
            (rate, &numbers[0]),
            (zero, &numbers[1]),
            (grads[0], &gradient),
            (grads[1], &gradient),
            (whole, &wide),
            (columns, &firsts),
        ]
    };
    let described = [bag_ids, ends, divisors].concat();
    let got = session.get(&feeds(&limits), &described);
    assert_eq!(got[0].values::<i64>(), [3, 7, 7]);
    assert_eq!(got[1].values::<i64>(), [3, 5]);
    assert_eq!(got[2].values::<i64>(), [1, 1, 3]);
    assert_eq!(got[3].values::<i64>(), [1, 2, 2]);
    assert_eq!(got[4].values::<f32>(), [1.0, 0.0, 2.0]);
    assert!(got[5].values::<f32>().is_empty());
    let mut fetches = vec![pooled.output(0), pooled.output(1)];
    fetches.extend(each.iter().map(|&(pooled, _)| pooled));
    fetches.push(update.output(0));
    fetches.extend(each.iter().map(|&(_, update)| update));
    let got = session.get(&feeds(&limits), &fetches);
    let pairs = got[..2].iter().zip(&got[2..4]);
    for ((pooled, other), (of_many, of_one)) in pairs.zip(many.iter().zip(&alone)) {
        assert_eq!(pooled.dims(), [3, DIM as i64]);
        assert_eq!(pooled.dims(), other.dims());
        assert!(pooled.values::<f32>().iter().any(|&value| value != 0.0));
        let (rows, expected) = (of_many.rows(&session), of_one.rows(&session));
        assert_eq!(rows.len(), expected.len());
        assert!(!rows.is_empty());
    }
    assert_eq!(
        got[4].value::<i64>(),
        got[5].value::<i64>() + got[6].value::<i64>()
    );

    let got = session.get(&feeds(&limits), &evaluations);
    for (of_many, of_one) in got[..2].iter().zip(&got[2..]) {
        assert_eq!(of_many.dims(), [3, DIM as i64]);
        assert!(of_one.values::<f32>().iter().any(|&value| value != 0.0));
        assert_eq!(of_many.values::<f32>(), of_one.values::<f32>());
    }

    let few = Tensor::vector(&[10_i64, 5]);
    let parts = ["indices[0] = 5 is not in [0, 5)", "member=1"];
    session.refuses(&feeds(&few), bag_ids[0], INVALID, &parts);
    let short = Tensor::vector(&[10_i64]);
    session.refuses(&feeds(&short), bag_ids[0], INVALID, &[]);
}
