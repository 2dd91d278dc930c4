//! Sessions: each has its tables, they end with it, and its threads share them.

use crate::table::{reduce, Table, DIM};
use mx_rec_host_tests::{Code, Graph, Session, Tensor};
use serde_json::json;

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn each_session_has_its_own_table_and_ends_it() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i64>(&None);
    let (offsets, _) = table.id_offset(ids);
    let [first, second] = [(), ()].map(|()| Session::new(&graph).expect("a session"));
    let keys = Tensor::vector(&[1_i64, 2]);
    let run = |session: &Session<'_>| -> i64 {
        let got = session.run(&[(ids, &keys)], &[table.handle], &[offsets.node()]);
        got.expect("a lookup")[0].value()
    };
    let handles = [run(&first), run(&second)];
    assert_ne!(handles[0], handles[1]);
    // A node gives the same table at every run.
    assert_eq!(run(&first), handles[0]);
    let key = Tensor::vector(&[3_i64]);
    first.get(&[(ids, &key)], &[offsets]);
    assert_eq!((table.size(&first), table.size(&second)), (3, 2));
    // Handles are numbers: one session may work on another's table as long as that is open.
    let stats = table.node("MxRecTableStats").first();
    let theirs = Tensor::scalar(handles[0]);
    let ask = || second.run(&[(table.handle, &theirs)], &[stats], &[]);
    assert_eq!(ask().expect("statistics")[0].values::<i64>()[0], 3);
    drop(first);
    let refused = ask().err().expect("a refusal");
    assert_eq!(refused.code, Code::TF_NOT_FOUND, "{refused}");
    assert!(refused.message.contains("session was closed"), "{refused}");
    assert_eq!(table.size(&second), 2);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn no_update_of_concurrent_runs_is_lost() {
    const THREADS: i64 = 8;
    const STEPS: i64 = 40;
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i64>(&None);
    let grad = graph.placeholder::<f32>(&None);
    let (offsets, inverse) = table.id_offset(ids);
    let embedding = table.embed((offsets, inverse));
    let reduced = reduce(&graph, grad, (offsets, inverse));
    let updated = table.descend(offsets, reduced);
    let session = Session::new(&graph).expect("a session");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let session = &session;
            scope.spawn(move || {
                for step in 0..STEPS {
                    // Key 0 is everyone's, key 1 + thread is one thread's, others are new.
                    let keys = [0, 1 + thread, 0, 100 + thread * STEPS + step];
                    let ones = Tensor::new(&[4, DIM as i64], &[-1.0_f32; 4 * DIM]);
                    let feeds = [(ids, &Tensor::vector(&keys)), (grad, &ones)];
                    let got = session.get(&feeds, &[embedding, updated]);
                    assert_eq!(got[0].dims(), [4, DIM as i64]);
                    assert_eq!(got[1].value::<i64>(), 3);
                }
            });
        }
    });
    let rows = table.rows(&session);
    assert_eq!(rows.len() as i64, 1 + THREADS + THREADS * STEPS);
    for (key, row) in rows {
        let times = match key {
            0 => 2 * THREADS * STEPS,
            1..=THREADS => STEPS,
            _ => 1,
        };
        assert_eq!(row, vec![0.5 + times as f32; DIM], "key {key}");
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn sessions_open_run_and_close_on_many_threads_at_once() {
    std::thread::scope(|scope| {
        for thread in 0..4_i64 {
            scope.spawn(move || {
                for round in 0..8 {
                    let graph = Graph::new();
                    let table = Table::new(&graph, "t", json!({}));
                    let ids = graph.placeholder::<i64>(&None);
                    let (offsets, _) = table.id_offset(ids);
                    let session = Session::new(&graph).expect("a session");
                    let keys: Vec<i64> = (0..=thread * 10 + round).collect();
                    let keys = Tensor::vector(&keys);
                    session.get(&[(ids, &keys)], &[offsets]);
                    assert_eq!(table.size(&session), thread * 10 + round + 1);
                }
            });
        }
    });
}
