//! Lookups in two halves: prepared before the step and claimed in it, counted before keys get rows.

use crate::table::{resolve, Table, DIM};
use mx_rec_host_tests::{Graph, Session, Tensor};
use serde_json::json;

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn keys_of_a_prepared_batch_are_seen_once_they_are_claimed() {
    let graph = Graph::new();
    let tables = ["a", "b"].map(|name| Table::new(&graph, name, json!({})));
    let ids = graph.placeholder::<i64>(&None);
    let handles = tables.map(|table| table.handle);
    let prepare = graph.node("MxRecPrepare").inputs(&handles).inputs(&[ids]);
    let prepare = prepare.made();
    let prepared = [
        graph.placeholder::<i64>(&None),
        graph.placeholder::<i64>(&None),
        graph.placeholder::<i32>(&None),
    ];
    let claims = [0, 1].map(|at: usize| {
        let ahead: [&[_]; 2] = [&[prepared[at]], &[prepared[2]]];
        resolve(&graph, &[tables[at].handle], &[ids], ahead).made()
    });
    let session = Session::new(&graph).expect("a session");
    let keys = Tensor::new(&[2, 2], &[7_i64, -1, 8, 7]);
    let outputs = [0, 1, 2].map(|at| prepare.output(at));
    let ahead = session.get(&[(ids, &keys)], &outputs);
    assert_eq!(ahead[2].values::<i32>(), [0, -1, 1, 0]);
    assert_eq!(tables.map(|table| table.size(&session)), [0, 0]);
    let mut feeds = vec![(ids, &keys)];
    feeds.extend(prepared.into_iter().zip(&ahead));
    let outputs = [
        claims[0].output(0),
        claims[0].output(1),
        claims[1].output(0),
    ];
    let claimed = session.get(&feeds, &outputs);
    assert_eq!(claimed[0].values::<i64>(), ahead[0].values::<i64>());
    assert_eq!(claimed[1].values::<i32>(), ahead[2].values::<i32>());
    assert_eq!(claimed[2].values::<i64>(), ahead[1].values::<i64>());
    for table in tables {
        let rows = table.rows(&session);
        assert_eq!(rows, [(7, vec![0.5; DIM]), (8, vec![0.5; DIM])]);
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn batches_of_many_tables_are_prepared_by_one_op_and_claimed_each() {
    let graph = Graph::new();
    let tables = ["a", "b"].map(|name| Table::new(&graph, name, json!({})));
    let ids = [(); 2].map(|()| graph.placeholder::<i64>(&None));
    let handles = tables.map(|table| table.handle);
    let prepare = graph.node("MxRecPrepare").inputs(&handles).inputs(&ids);
    let prepare = prepare.made();
    let offsets = [(); 2].map(|()| graph.placeholder::<i64>(&None));
    let places = [(); 2].map(|()| graph.placeholder::<i32>(&None));
    let claims = [0, 1].map(|at: usize| {
        let ahead: [&[_]; 2] = [&[offsets[at]], &[places[at]]];
        resolve(&graph, &[tables[at].handle], &[ids[at]], ahead).made()
    });
    let session = Session::new(&graph).expect("a session");
    let keys = [
        Tensor::new(&[2, 2], &[7_i64, -1, 8, 7]),
        Tensor::vector(&[9_i64]),
    ];
    let feeds: Vec<_> = ids.into_iter().zip(&keys).collect();
    let outputs = [0, 1, 2, 3].map(|at| prepare.output(at));
    let ahead = session.get(&feeds, &outputs);
    assert_eq!(ahead[2].values::<i32>(), [0, -1, 1, 0]);
    assert_eq!(ahead[3].values::<i32>(), [0]);
    assert_eq!(tables.map(|table| table.size(&session)), [0, 0]);
    for at in 0..2 {
        let feeds = [
            (ids[at], &keys[at]),
            (offsets[at], &ahead[at]),
            (places[at], &ahead[2 + at]),
        ];
        let claimed = session.get(&feeds, &[claims[at].output(0)]);
        assert_eq!(claimed[0].values::<i64>(), ahead[at].values::<i64>());
    }
    let half = vec![0.5; DIM];
    let rows = tables.map(|table| table.rows(&session));
    assert_eq!(rows[0], [(7, half.clone()), (8, half.clone())]);
    assert_eq!(rows[1], [(9, half)]);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_key_gets_a_row_when_it_was_counted_often_enough_and_loses_it_when_it_is_old() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i64>(&None);
    let time = graph.placeholder::<i64>(&None);
    let observe = table.node("MxRecObserve").input(ids);
    let observe = observe.input(table.scalar(1_i32)).input(time);
    let observe = observe
        .int("access_threshold", 3)
        .int("eviction_threshold", 50);
    let observe = observe.made();
    let (keys, places) = (observe.output(0), observe.output(1));
    let admit = table.node("MxRecAdmit").input(keys).input(places);
    let admit = admit.made();
    let value = graph.placeholder::<i32>(&None);
    let threshold = table.node("MxRecSetThreshold").input(value).first();
    let evict = table.node("MxRecEvict").first();
    let session = Session::new(&graph).expect("a session");
    let step = |seconds: i64, batch: &[i64]| -> Vec<i32> {
        let (batch, seconds) = (Tensor::vector(batch), Tensor::scalar(seconds));
        session.get(&[(ids, &batch), (time, &seconds)], &[admit.output(1)])[0]
            .values()
            .to_vec()
    };
    assert_eq!(step(100, &[1, 2, 1, -1]), [-1, -1, -1, -1]);
    assert_eq!(step(110, &[1, 2]), [0, -1]);
    assert_eq!(table.size(&session), 1);
    let two = Tensor::scalar(2_i32);
    let got = session.get(&[(value, &two)], &[threshold]);
    assert_eq!(got[0].value::<i32>(), 2);
    assert_eq!(step(155, &[2]), [0]);
    assert_eq!(table.size(&session), 2);
    // Key 1 was last seen at 110.
    assert_eq!(step(161, &[2, 3]), [0, -1]);
    let got = session.get(&[], &[evict]);
    assert_eq!(got[0].values::<i64>(), [1, 2]);
    assert_eq!(table.rows(&session), [(2, vec![0.5; DIM])]);
}

/// Before: the members before the refused one had got their keys.
#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_claim_of_many_that_is_refused_for_want_of_memory_enters_no_key() {
    const BATCH: i64 = 100;
    let graph = Graph::new();
    let tier = json!({"ram_rows": BATCH * 3 / 2, "directories": [std::env::temp_dir()]});
    let tables = [
        Table::new(&graph, "roomy", json!({"capacity": 100_000})),
        Table::new(
            &graph,
            "crowded",
            json!({"capacity": 100_000, "tier": tier}),
        ),
    ];
    let ids = graph.placeholder::<i64>(&None);
    let handles = tables.map(|table| table.handle);
    let both = [ids, ids];
    let prepare = graph.node("MxRecPrepare").inputs(&handles).inputs(&both);
    let prepare = prepare.made();
    let offsets = [(); 2].map(|()| graph.placeholder::<i64>(&None));
    let places = [(); 2].map(|()| graph.placeholder::<i32>(&None));
    let claim = resolve(&graph, &handles, &both, [&offsets, &places]).first();
    let session = Session::new(&graph).expect("a session");
    let ahead = |at: i64| {
        let keys: Vec<i64> = (at * BATCH..(at + 1) * BATCH).collect();
        let keys = Tensor::vector(&keys);
        let outputs = [0, 1, 2, 3].map(|at| prepare.output(at));
        let found = session.get(&[(ids, &keys)], &outputs);
        (keys, found)
    };
    let sizes = || tables.map(|table| table.size(&session));
    let mut refused = 0;
    let mut now = ahead(0);
    for step in 1..60 {
        let next = ahead(step);
        let (keys, found) = &now;
        let mut feeds = vec![(ids, keys)];
        feeds.extend(offsets.into_iter().chain(places).zip(found));
        let before = sizes();
        if let Err(error) = session.run(&feeds, &[claim], &[]) {
            let text = error.to_string();
            for named in ["device_vocabulary_size", "table 'crowded'", "batches ahead"] {
                assert!(text.contains(named), "{text}");
            }
            assert_eq!(sizes(), before, "step {step}");
            refused += 1;
            session.get(&feeds, &[claim]);
        }
        assert_eq!(sizes(), [step * BATCH; 2]);
        now = next;
    }
    assert!((2..=4).contains(&refused), "{refused}");
}
