//! Saving tables to directories and loading them again.

use crate::table::{Table, DIM};
use mx_rec_host_tests::{Code, Graph, Node, Output, Session, Tensor};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// A directory that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("host-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory");
        Scratch(path)
    }

    fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path in UTF-8").into()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The number of LazyAdam.
const LAZY_ADAM: i64 = 4;

/// A table that LazyAdam trains by keys.
struct Trained<'g> {
    table: Table<'g>,
    ids: Output<'g>,
    grad: Output<'g>,
    updated: Output<'g>,
}

impl<'g> Trained<'g> {
    fn new(graph: &'g Graph) -> Trained<'g> {
        let random = json!({"kind": "truncated_normal", "mean": 0.0, "stddev": 0.25});
        let more = json!({"initializer": random, "track_changes": true});
        let table = Table::new(graph, "t", more);
        let (ids, grad) = (
            graph.placeholder::<i64>(&None),
            graph.placeholder::<f32>(&None),
        );
        let numbers = [0.125, 0.75, 0.875, 0.75, 0.875, 1e-3_f32].map(|one| table.scalar(one));
        let updated = table.update_ids(ids, grad, LAZY_ADAM, &numbers);
        Trained {
            table,
            ids,
            grad,
            updated,
        }
    }

    fn step(&self, session: &Session<'g>, keys: &[i64], grad: f32) {
        let grad = vec![grad; keys.len() * DIM];
        let grad = Tensor::new(&[keys.len() as i64, DIM as i64], &grad);
        let feeds = [(self.ids, &Tensor::vector(keys)), (self.grad, &grad)];
        session.get(&feeds, &[self.updated]);
    }

    /// Rows and slots.
    fn content(&self, session: &Session<'g>) -> [Vec<(i64, Vec<f32>)>; 3] {
        let slot = |name| self.table.slot(session, name);
        [
            self.table.rows(session),
            slot("LazyAdam_momentum"),
            slot("LazyAdam_velocity"),
        ]
    }
}

/// Runs a node that gives numbers.
fn numbers<'g>(session: &Session<'g>, node: Node<'g>, count: usize) -> Vec<i64> {
    let outputs: Vec<_> = (0..count).map(|at| node.output(at)).collect();
    let got = session.get(&[], &outputs);
    got.iter().map(Tensor::value::<i64>).collect()
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_loaded_table_goes_on_as_the_saved_one_bit_for_bit() {
    let (scratch, graph) = (Scratch::new("whole"), Graph::new());
    let path = scratch.join("t");
    let trained = Trained::new(&graph);
    let (save, load) = (trained.table.save(&path), trained.table.load(&path, &[]));
    let keys = [3, i64::MIN, 900, i64::MAX];
    let first = Session::new(&graph).expect("a session");
    trained.step(&first, &keys, 0.5);
    trained.step(&first, &keys[1..], -0.25);
    assert_eq!(numbers(&first, save, 2)[0], 4);
    let saved = trained.content(&first);
    let second = Session::new(&graph).expect("a session");
    trained.step(&second, &[1, 2, 3], 1.0);
    assert_eq!(numbers(&second, load, 2)[0], 4);
    assert_eq!(trained.content(&second), saved);
    for session in [&first, &second] {
        trained.step(session, &[900, 5], 0.75);
    }
    let after = trained.content(&first);
    assert_ne!(after, saved);
    assert_eq!(trained.content(&second), after);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_whole_save_and_its_delta_load_as_the_table_that_they_are_of() {
    let (scratch, graph) = (Scratch::new("delta"), Graph::new());
    let (whole, delta) = (scratch.join("whole"), scratch.join("delta"));
    let trained = Trained::new(&graph);
    let table = trained.table;
    let save = table.save(&whole);
    let since = graph.placeholder::<i64>(&Some(Vec::new()));
    let save_delta = table.save_since(&delta, since);
    let remove = table.node("MxRecRemove").input(trained.ids).first();
    let load = table.load(&format!("{whole}\0{delta}"), &[]);
    let session = Session::new(&graph).expect("a session");
    trained.step(&session, &[1, 2, 3, 4, 5], 0.5);
    let epoch = numbers(&session, save, 2)[1];
    trained.step(&session, &[2, 6], 0.25);
    let gone = Tensor::vector(&[4_i64]);
    session.get(&[(trained.ids, &gone)], &[remove]);
    let outputs = [save_delta.output(0), save_delta.output(2)];
    let got = session.get(&[(since, &Tensor::scalar(epoch))], &outputs);
    assert_eq!((got[0].value::<i64>(), got[1].value::<i64>()), (2, 1));
    let expected = trained.content(&session);
    let other = Session::new(&graph).expect("a session");
    assert_eq!(numbers(&other, load, 1), [5]);
    assert_eq!(trained.content(&other), expected);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_warm_start_takes_the_slots_that_were_asked_for() {
    let (scratch, graph) = (Scratch::new("warm"), Graph::new());
    let path = scratch.join("t");
    let trained = Trained::new(&graph);
    let table = trained.table;
    let save = table.save(&path);
    let slots = graph.constant(&Tensor::vector(b"LazyAdam_velocity"));
    let warm = table.load(&path, &[slots]);
    let session = Session::new(&graph).expect("a session");
    trained.step(&session, &[1, 2], 0.5);
    numbers(&session, save, 1);
    let [rows, _, velocity] = trained.content(&session);
    let other = Session::new(&graph).expect("a session");
    trained.step(&other, &[7], 0.5);
    assert_eq!(numbers(&other, warm, 1), [2]);
    assert_eq!(table.rows(&other), rows);
    assert_eq!(table.slot(&other, "LazyAdam_velocity"), velocity);
    // The slot that was not asked for starts afresh.
    trained.step(&other, &[7], 0.5);
    let momentum = table.slot(&other, "LazyAdam_momentum");
    assert_eq!(momentum[0], (1, vec![0.0; DIM]));
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_load_that_fails_says_why_and_changes_nothing() {
    let (scratch, graph) = (Scratch::new("broken"), Graph::new());
    let path = scratch.join("t");
    let trained = Trained::new(&graph);
    let (save, load) = (trained.table.save(&path), trained.table.load(&path, &[]));
    let session = Session::new(&graph).expect("a session");
    let refused = |code: Code, word: &str| {
        let before = trained.content(&session);
        let parts = ["MxRecLoad on table 't'", word];
        session.refuses(&[], load.output(0), code, &parts);
        assert_eq!(trained.content(&session), before);
    };
    trained.step(&session, &[1, 2, 3], 0.5);
    refused(Code::TF_NOT_FOUND, &path);
    numbers(&session, save, 1);
    trained.step(&session, &[4], 0.5);
    // Cut the longest file short.
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(&path)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a directory") {
            let entry = entry.expect("an entry").path();
            match entry.is_dir() {
                true => folders.push(entry),
                false => files.push(entry),
            }
        }
    }
    let length = |path: &PathBuf| fs::metadata(path).expect("a file").len();
    let longest = files.into_iter().max_by_key(length).expect("a file");
    let bytes = fs::read(&longest).expect("a file");
    fs::write(&longest, &bytes[..bytes.len() - 1]).expect("a file");
    refused(Code::TF_DATA_LOSS, longest.to_str().expect("a path"));
    fs::write(&longest, &bytes).expect("a file");
    assert_eq!(numbers(&session, load, 1), [3]);
}
