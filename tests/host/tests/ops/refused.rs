//! What ops refuse when they run: shapes, values, offsets of other times.

use crate::table::{reduce, resolve, settings, table_node, Table, DIM, INVALID};
use mx_rec_host_tests::{Code, Graph, Session, Tensor};
use serde_json::json;

/// The number of Adagrad.
const ADAGRAD: i64 = 3;

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn shapes_that_were_not_known_before_are_checked_when_the_op_runs() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i64>(&None);
    let (offsets, inverse) = table.id_offset(ids);
    let fed = graph.placeholder::<i64>(&None);
    let grad = graph.placeholder::<f32>(&None);
    let lookup = table.read(fed, &[], [&[], &[], &[]]);
    let updated = table.descend(offsets, grad);
    let reduced = reduce(&graph, grad, (offsets, inverse));
    let session = Session::new(&graph).expect("a session");
    let keys = Tensor::vector(&[1_i64, 2, 3]);
    session.get(&[(ids, &keys)], &[offsets]);
    let before = table.rows(&session);
    let square = Tensor::new(&[2, 2], &[1_i64; 4]);
    let parts = ["MxRecRead on table 't'", "offsets", "rank 1"];
    session.refuses(&[(fed, &square)], lookup, INVALID, &parts);
    for (op, fetch, dims) in [
        ("MxRecUpdate", updated, [3, 4]),
        ("MxRecUpdate", updated, [2, DIM as i64]),
        ("MxRecReduce", reduced, [2, DIM as i64]),
    ] {
        let wrong = vec![0.5_f32; dims.iter().product::<i64>() as usize];
        let wrong = Tensor::new(&dims, &wrong);
        session.refuses(
            &[(ids, &keys), (grad, &wrong)],
            fetch,
            INVALID,
            &[op, "grad"],
        );
    }
    assert_eq!(table.rows(&session), before);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn an_update_over_a_cleared_table_ends_with_aborted() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i64>(&None);
    let old = graph.placeholder::<i64>(&None);
    let grad = graph.placeholder::<f32>(&None);
    let (offsets, _) = table.id_offset(ids);
    let updated = table.descend(old, grad);
    let lookup = table.read(old, &[], [&[], &[], &[]]);
    let clear = table.clear_all();
    let session = Session::new(&graph).expect("a session");
    let keys = Tensor::vector(&[1_i64, 2]);
    let run = |fetch| session.get(&[(ids, &keys)], &[fetch]);
    // A copy: what a kernel lends keeps its rows, a copy keeps nothing.
    let kept = Tensor::vector(run(offsets)[0].values::<i64>());
    run(clear);
    run(offsets);
    let before = table.rows(&session);
    let ones = Tensor::new(&[2, DIM as i64], &[1.0_f32; 2 * DIM]);
    let parts = ["MxRecUpdate on table 't'", "offset"];
    session.refuses(
        &[(old, &kept), (grad, &ones)],
        updated,
        Code::TF_ABORTED,
        &parts,
    );
    session.refuses(
        &[(old, &kept)],
        lookup,
        Code::TF_ABORTED,
        &["MxRecRead on table 't'"],
    );
    assert_eq!(table.rows(&session), before);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_gradient_of_a_removed_key_is_dropped_and_counted() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i64>(&None);
    let old = graph.placeholder::<i64>(&None);
    let grad = graph.placeholder::<f32>(&None);
    let (offsets, _) = table.id_offset(ids);
    let updated = table.descend(old, grad);
    let remove = table.node("MxRecRemove").input(ids).first();
    let session = Session::new(&graph).expect("a session");
    let run = |keys: &[i64], fetch| {
        let keys = Tensor::vector(keys);
        session.get(&[(ids, &keys)], &[fetch]).remove(0)
    };
    let kept = Tensor::vector(run(&[1, 2], offsets).values::<i64>());
    run(&[1], remove);
    // Another key gets the row.
    run(&[3], offsets);
    let ones = Tensor::new(&[2, DIM as i64], &[1.0_f32; 2 * DIM]);
    let got = session.get(&[(old, &kept), (grad, &ones)], &[updated]);
    assert_eq!(got[0].value::<i64>(), 1);
    let rows = table.rows(&session);
    assert_eq!(rows, [(2, vec![-0.5; DIM]), (3, vec![0.5; DIM])]);
    assert_eq!(table.stats(&session)[10], 1);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn offsets_that_no_table_gave_and_numbers_that_are_none_are_refused() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let offsets = graph.placeholder::<i64>(&None);
    let grad = graph.placeholder::<f32>(&None);
    let lr = graph.placeholder::<f32>(&None);
    let numbers = [lr, table.scalar(0.5_f32)];
    let updated = table.update_rows(offsets, grad, ADAGRAD, &numbers);
    let session = Session::new(&graph).expect("a session");
    let ones = Tensor::new(&[1, DIM as i64], &[1.0_f32; DIM]);
    for (offset, rate, parts) in [
        (12345_i64, 0.5_f32, ["MxRecUpdate on table 't'", "offset"]),
        (-1, f32::NAN, ["MxRecUpdate on table 't'", "lr"]),
        (-1, -0.5, ["MxRecUpdate on table 't'", "lr"]),
    ] {
        let (offset, rate) = (Tensor::vector(&[offset]), Tensor::scalar(rate));
        let feeds = [(offsets, &offset), (grad, &ones), (lr, &rate)];
        session.refuses(&feeds, updated, INVALID, &parts);
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_batch_over_the_budget_or_the_limit_changes_nothing() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({"capacity": 3}));
    let ids = graph.placeholder::<i64>(&None);
    let (offsets, _) = table.id_offset(ids);
    let node = resolve(&graph, &[table.handle], &[ids], [&[], &[]]).int("limit", 2);
    let limited = node.first();
    let session = Session::new(&graph).expect("a session");
    let two = Tensor::vector(&[1_i64, 2]);
    session.get(&[(ids, &two)], &[offsets]);
    let parts = ["MxRecIdOffset on table 't'", "capacity"];
    session.refuses(
        &[(ids, &Tensor::vector(&[2_i64, 3, 4]))],
        offsets,
        Code::TF_RESOURCE_EXHAUSTED,
        &parts,
    );
    session.refuses(
        &[(ids, &Tensor::vector(&[1_i64, 2, 3]))],
        limited,
        INVALID,
        &["on table 't'", "limit"],
    );
    assert_eq!(table.size(&session), 2);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_table_of_wrong_settings_is_refused_with_the_name_of_the_field() {
    for (more, dim, part) in [
        (json!({"capacity": 0}), DIM, "capacity"),
        (json!({"capasity": 5}), DIM, "capasity"),
        (json!({"dim": "4"}), DIM, "dim"),
        (json!({}), DIM + 1, "dim"),
    ] {
        let graph = Graph::new();
        let node = table_node(&graph, &settings("t", more), dim).expect("a node");
        let session = Session::new(&graph).expect("a session");
        session.refuses(&[], node.output(1), INVALID, &["MxRecTable", part]);
    }
}
