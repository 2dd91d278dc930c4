//! Rows and slots that TensorFlow's ops update: read before, written after.

use crate::oracle::{Oracle, Random, OPTIMIZERS};
use crate::table::{Table, DIM, INVALID};
use mx_rec_host_tests::{Code, Graph, Node, Output, Session, Tensor};
use serde_json::json;

/// The slot that these tests write: that of the momentum optimizer.
const SLOT: &str = "Momentum_momentum";

/// What both ops take of the fields: their names and initial values.
struct Fields<'g> {
    names: Vec<Output<'g>>,
    initial: Output<'g>,
}

impl<'g> Fields<'g> {
    fn new(graph: &'g Graph, fields: &[(&str, f32)]) -> Fields<'g> {
        let name = |(name, _): &(&str, f32)| graph.constant(&Tensor::vector(name.as_bytes()));
        let initial: Vec<f32> = fields.iter().map(|(_, initial)| *initial).collect();
        Fields {
            names: fields.iter().map(name).collect(),
            initial: graph.constant(&Tensor::vector(&initial)),
        }
    }

    /// Outputs: rows, indices, gradients, and each field.
    fn read(&self, table: &Table<'g>, offsets: Output<'g>, grad: Output<'g>) -> Node<'g> {
        let node = table.node("MxRecReadRows").input(offsets).input(grad);
        let node = node.inputs(&self.names).input(self.initial);
        node.made()
    }

    fn write(
        &self,
        table: &Table<'g>,
        rows: Output<'g>,
        old: &[Output<'g>],
        new: &[Output<'g>],
    ) -> Output<'g> {
        let node = table.node("MxRecWriteRows").input(rows);
        let node = node.inputs(&self.names).input(self.initial);
        let node = node.inputs(old).inputs(new);
        node.first()
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn an_update_that_tensorflows_ops_compute_is_that_of_the_optimizer() {
    let optimizer = &OPTIMIZERS[2];
    assert_eq!((optimizer.name, optimizer.number), ("momentum", 1));
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i64>(&None);
    let grad = graph.placeholder::<f32>(&None);
    let lr = graph.placeholder::<f32>(&Some(vec![]));
    let momentum = graph.placeholder::<f32>(&Some(vec![]));
    let op = |name: &str, inputs: &[_]| {
        let node = graph.node(name);
        let node = inputs.iter().fold(node, |node, input| node.input(*input));
        node.finish().expect(name).output(0)
    };
    let lookup = table.id_offset(ids);
    let reduced = op("MxRecReduce", &[grad, lookup.1, lookup.0]);
    let fields = Fields::new(&graph, &[("", 0.0), (SLOT, 0.0)]);
    let read = fields.read(&table, lookup.0, reduced);
    let [rows, indices, gradients, old, old_sum] = [0, 1, 2, 3, 4].map(|at| read.output(at));
    let sums = op(
        "UnsortedSegmentSum",
        &[gradients, indices, op("Size", &[rows])],
    );
    let new_sum = op("AddV2", &[op("Mul", &[old_sum, momentum]), sums]);
    let new = op("Sub", &[old, op("Mul", &[new_sum, lr])]);
    let written = fields.write(&table, rows, &[old, old_sum], &[new, new_sum]);
    // The optimizer's op itself does every other step, on the same slot.
    let applied = table.update_rows(lookup.0, reduced, optimizer.number, &[lr, momentum]);
    let session = Session::new(&graph).expect("a session");
    let (mut oracle, mut random) = (Oracle::new(DIM), Random(11));
    for step in 1..=8 {
        let keys: Vec<i64> = (0..30).map(|_| random.below(20) as i64 - 1).collect();
        let grads: Vec<f32> = (0..30 * DIM).map(|_| random.gradient()).collect();
        let expected = oracle.step(optimizer, step, &keys, &grads);
        let (keys, grads) = (
            Tensor::vector(&keys),
            Tensor::new(&[30, DIM as i64], &grads),
        );
        let arguments: Vec<_> = (optimizer.arguments)(step)
            .into_iter()
            .map(Tensor::scalar)
            .collect();
        let feeds = [
            (ids, &keys),
            (grad, &grads),
            (lr, &arguments[0]),
            (momentum, &arguments[1]),
        ];
        let fetch = [written, applied][step as usize % 2];
        let updated = session.get(&feeds, &[fetch]);
        assert_eq!(updated[0].value::<i64>(), expected);
    }
    oracle.compare(0, &table.rows(&session), "rows");
    oracle.compare(1, &table.slot(&session, SLOT), SLOT);
}

/// A table whose rows are read in one run and written in another.
struct TwoRuns<'g> {
    table: Table<'g>,
    session: Session<'g>,
    ids: Output<'g>,
    offsets: Output<'g>,
    fed: [Output<'g>; 2],
    read: Node<'g>,
    written: Output<'g>,
    given: [Output<'g>; 5],
}

impl<'g> TwoRuns<'g> {
    fn new(graph: &'g Graph) -> TwoRuns<'g> {
        let table = Table::new(graph, "t", json!({"padding_keys": [9]}));
        let ids = graph.placeholder::<i64>(&None);
        let offsets = table.id_offset(ids).0;
        let fields = Fields::new(graph, &[("own_slot", 0.25), ("", 0.0)]);
        let long = || graph.placeholder::<i64>(&None);
        let float = || graph.placeholder::<f32>(&None);
        let fed = [long(), float()];
        let given = [long(), float(), float(), float(), float()];
        TwoRuns {
            table,
            session: Session::new(graph).expect("a session"),
            ids,
            offsets,
            fed,
            read: fields.read(&table, fed[0], fed[1]),
            written: fields.write(&table, given[0], &given[1..3], &given[3..]),
            given,
        }
    }

    /// The offsets of keys, copied: they keep no rows.
    fn look_up(&self, keys: &[i64]) -> Tensor {
        let keys = Tensor::vector(keys);
        let got = self.session.run(&[(self.ids, &keys)], &[self.offsets], &[]);
        Tensor::vector(got.expect("a lookup")[0].values::<i64>())
    }

    /// Rows, indices, gradients, slot and embedding.
    fn read(&self, offsets: &Tensor, grad: &Tensor) -> mx_rec_host_tests::Result<Vec<Tensor>> {
        let fetches = [0, 1, 2, 3, 4].map(|at| self.read.output(at));
        let feeds = [(self.fed[0], offsets), (self.fed[1], grad)];
        self.session.run(&feeds, &fetches, &[])
    }

    /// Writes rows, old slot and embedding, new slot and embedding.
    fn write(&self, given: [&Tensor; 5]) -> mx_rec_host_tests::Result<i64> {
        let feeds: Vec<_> = self.given.into_iter().zip(given).collect();
        let got = self.session.run(&feeds, &[self.written], &[])?;
        Ok(got[0].value())
    }
}

/// Rows with all columns equal.
fn rows(values: &[f32]) -> Tensor {
    let all: Vec<f32> = values.iter().flat_map(|&value| [value; DIM]).collect();
    Tensor::new(&[values.len() as i64, DIM as i64], &all)
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn what_is_written_to_rows_and_slots_is_read_again() {
    let graph = Graph::new();
    let runs = TwoRuns::new(&graph);
    let offsets = runs.look_up(&[5, 6, 9]);
    let [five, six, nine] = offsets.values::<i64>() else {
        panic!("three keys");
    };
    // Repeated, with padding between.
    let batch = Tensor::vector(&[*six, -1, *nine, *six, *five]);
    let got = runs.read(&batch, &rows(&[1.0, 2.0, 3.0, 4.0, 5.0]));
    let got = got.expect("MxRecReadRows");
    assert_eq!(got[0].values::<i64>(), [*six, *nine, *five]);
    assert_eq!(got[1].values::<i64>(), [0, 1, 0, 2]);
    let kept = rows(&[1.0, 3.0, 4.0, 5.0]);
    assert_eq!(got[2].values::<f32>(), kept.values::<f32>());
    assert_eq!(got[3].values::<f32>(), [0.25; 3 * DIM]);
    assert_eq!(got[4].values::<f32>(), [0.5; 3 * DIM]);
    // Key 9 is a padding key: its row is never updated.
    let (slot, weight) = (rows(&[10.0, 11.0, 12.0]), rows(&[20.0, 21.0, 22.0]));
    let updated = runs.write([&got[0], &got[3], &got[4], &slot, &weight]);
    assert_eq!(updated.expect("MxRecWriteRows"), 2);
    let stored = [(5, 22.0, 12.0), (6, 20.0, 10.0), (9, 0.5, 0.25)];
    let weights = stored.map(|(key, weight, _)| (key, vec![weight; DIM]));
    assert_eq!(runs.table.rows(&runs.session), weights);
    let slots = stored.map(|(key, _, slot)| (key, vec![slot; DIM]));
    assert_eq!(runs.table.slot(&runs.session, "own_slot"), slots);
    // A row that came later starts with the slot's initial value.
    let later = runs.look_up(&[7, 6]);
    let got = runs.read(&later, &rows(&[0.0, 0.0]));
    let got = got.expect("MxRecReadRows");
    assert_eq!(got[3].values::<f32>(), rows(&[0.25, 10.0]).values::<f32>());
    assert_eq!(got[4].values::<f32>(), rows(&[0.5, 20.0]).values::<f32>());
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn an_update_between_reading_and_writing_is_not_lost() {
    let graph = Graph::new();
    let runs = TwoRuns::new(&graph);
    let old_offsets = graph.placeholder::<i64>(&None);
    let grad = graph.placeholder::<f32>(&None);
    let between = runs.table.descend(old_offsets, grad);
    let remove = runs.table.node("MxRecRemove").input(runs.ids).first();
    let offsets = runs.look_up(&[1, 2, 3]);
    let got = runs.read(&offsets, &rows(&[0.0; 3]));
    let got = got.expect("MxRecReadRows");
    // Another update takes 4 from key 2's row, key 3 goes and another key gets a row.
    let second = Tensor::vector(&offsets.values::<i64>()[1..2]);
    let feeds = [(old_offsets, &second), (grad, &rows(&[4.0]))];
    runs.session.get(&feeds, &[between]);
    let third = Tensor::vector(&[3_i64]);
    let gone = runs.session.run(&[(runs.ids, &third)], &[remove], &[]);
    assert_eq!(gone.expect("MxRecRemove")[0].value::<i64>(), 1);
    runs.look_up(&[8]);
    let (slot, weight) = (rows(&[1.0, 2.0, 3.0]), rows(&[8.5, 16.5, 32.5]));
    let copied = Tensor::vector(got[0].values::<i64>());
    let updated = runs.write([&copied, &got[3], &got[4], &slot, &weight]);
    assert_eq!(updated.expect("MxRecWriteRows"), 2);
    let weights = [(1, 8.5), (2, 12.5), (8, 0.5)].map(|(key, all)| (key, vec![all; DIM]));
    assert_eq!(runs.table.rows(&runs.session), weights);
    let slots = [(1, 1.0), (2, 2.0), (8, 0.25)].map(|(key, all)| (key, vec![all; DIM]));
    assert_eq!(runs.table.slot(&runs.session, "own_slot"), slots);
    assert_eq!(runs.table.stats(&runs.session)[10], 1);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn wrong_fields_and_offsets_are_refused_and_change_nothing() {
    let graph = Graph::new();
    let runs = TwoRuns::new(&graph);
    let clear = runs.table.clear_all();
    let strange: Vec<_> = [
        (&[("a/b", 0.0)][..], "a/b"),
        (&[("", 0.0), ("", 0.0)], "twice"),
        (&[("own", f32::NAN)], "initial"),
    ]
    .into_iter()
    .map(|(fields, part)| {
        let fields = Fields::new(&graph, fields);
        let read = fields.read(&runs.table, runs.fed[0], runs.fed[1]);
        let old: Vec<_> = fields.names.iter().map(|_| runs.given[1]).collect();
        let written = fields.write(&runs.table, runs.given[0], &old, &old);
        let all = graph.constant(&Tensor::vector::<i64>(&[]));
        let cleared = runs.table.clear((&fields.names, fields.initial), all);
        (read.output(0), written, cleared, part)
    })
    .collect();
    let offsets = runs.look_up(&[1, 2]);
    let before = runs.table.rows(&runs.session);
    let (two, three) = (rows(&[0.0; 2]), rows(&[0.0; 3]));
    let refuse = |failure: Option<mx_rec_host_tests::Failure>, code, parts: [&str; 2]| {
        let failure = failure.expect("a refusal");
        assert_eq!(failure.code, code, "{failure}");
        for part in parts {
            assert!(failure.message.contains(part), "{part}: {failure}");
        }
    };
    let (reads, writes) = ("MxRecReadRows on table 't'", "MxRecWriteRows on table 't'");
    let clears = "MxRecClear on table 't'";
    for (read, written, cleared, part) in strange {
        let feeds = [(runs.fed[0], &offsets), (runs.fed[1], &two)];
        let refused = runs.session.run(&feeds, &[read], &[]).err();
        refuse(refused, INVALID, [reads, part]);
        let feeds = [(runs.given[0], &offsets), (runs.given[1], &two)];
        let refused = runs.session.run(&feeds, &[written], &[]).err();
        refuse(refused, INVALID, [writes, part]);
        let refused = runs.session.run(&[], &[cleared], &[]).err();
        refuse(refused, INVALID, [clears, part]);
    }
    for (named, keys) in [
        (&[][..], Tensor::vector(&[1_i64, 2])),
        (&[("", 0.0)], Tensor::vector(&[1_i64])),
        (&[("own", 0.0)], Tensor::vector(&[1_i64, 2, 3])),
        (&[("", 0.0)], Tensor::new(&[], &[1_i64])),
    ] {
        let (fields, given) = (Fields::new(&graph, named), graph.placeholder::<i64>(&None));
        let cleared = runs.table.clear((&fields.names, fields.initial), given);
        let refused = runs.session.run(&[(given, &keys)], &[cleared], &[]).err();
        refuse(refused, INVALID, [clears, "keys"]);
    }
    let never = Tensor::vector(&[0_i64, 12345]);
    refuse(runs.read(&never, &two).err(), INVALID, [reads, "offset"]);
    refuse(runs.read(&offsets, &three).err(), INVALID, [reads, "grad"]);
    let one = rows(&[9.0; 2]);
    let refused = runs.write([&never, &two, &two, &one, &one]).err();
    refuse(refused, INVALID, [writes, "offset"]);
    let refused = runs.write([&offsets, &two, &two, &one, &three]).err();
    refuse(refused, INVALID, [writes, ""]);
    assert_eq!(runs.table.rows(&runs.session), before);
    runs.session.get(&[], &[clear]);
    runs.look_up(&[1, 2]);
    let aborted = Code::TF_ABORTED;
    refuse(runs.read(&offsets, &two).err(), aborted, [reads, "offset"]);
    let refused = runs.write([&offsets, &two, &two, &one, &one]).err();
    refuse(refused, aborted, [writes, "offset"]);
    assert_eq!(runs.table.rows(&runs.session), before);
}
