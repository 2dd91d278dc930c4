//! Updates: every optimizer in each of its forms, against the oracle.

use crate::oracle::{Optimizer, Oracle, Random, OPTIMIZERS};
use crate::table::{reduce, Table, Update, DIM};
use mx_rec_host_tests::{Graph, Output, Session, Tensor};
use serde_json::json;

/// The forms of an update: of rows, of the ids of two lookups, of those of one.
const FORMS: [&str; 3] = ["rows", "lookups", "ids"];

/// The step of an optimizer in one of its forms, on a table of its own.
struct Training<'g> {
    table: Table<'g>,
    updated: Output<'g>,
}

/// What is fed to a step of any form.
struct Batch<'g> {
    ids: Output<'g>,
    grad: Output<'g>,
    arguments: Vec<Output<'g>>,
}

impl<'g> Batch<'g> {
    fn new(graph: &'g Graph, optimizer: &Optimizer) -> Batch<'g> {
        let arguments = (optimizer.arguments)(1);
        let scalar = |_| graph.placeholder::<f32>(&Some(Vec::new()));
        Batch {
            ids: graph.placeholder::<i64>(&None),
            grad: graph.placeholder::<f32>(&None),
            arguments: arguments.into_iter().map(scalar).collect(),
        }
    }

    /// A step with this batch.
    fn train(&self, graph: &'g Graph, optimizer: &Optimizer, form: &str) -> Training<'g> {
        let table = Table::new(graph, &format!("t_{form}"), json!({}));
        let (number, numbers) = (optimizer.number, &self.arguments);
        let updated = match form {
            "ids" => table.update_ids(self.ids, self.grad, number, numbers),
            "lookups" => {
                // The batch as two lookups of the same ids would come: twice, the second with
                // gradients of zero.
                let (offsets, inverse) = table.id_offset(self.ids);
                let zeros = graph.node("ZerosLike").input(self.grad).first();
                let update = Update {
                    handles: &[table.handle; 2],
                    offsets: &[offsets; 2],
                    inverse: &[inverse; 2],
                    grad: &[self.grad, zeros],
                    ..Update::default()
                };
                update.step(graph, number, numbers)
            }
            _ => {
                let lookup = table.id_offset(self.ids);
                let reduced = reduce(graph, self.grad, lookup);
                table.update_rows(lookup.0, reduced, number, numbers)
            }
        };
        Training { table, updated }
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn every_optimizer_does_in_all_its_forms_what_the_oracle_does() {
    for (number, optimizer) in OPTIMIZERS.iter().enumerate() {
        let graph = Graph::new();
        let batch = Batch::new(&graph, optimizer);
        let trainings = FORMS.map(|form| batch.train(&graph, optimizer, form));
        let session = Session::new(&graph).expect("a session");
        let mut oracle = Oracle::new(DIM);
        let mut random = Random(number as u64);
        for step in 1..=8 {
            // Half of the keys come again within the batch or were there before; some are padding.
            let ids: Vec<i64> = (0..60).map(|_| random.below(70) as i64 - 1).collect();
            let grad: Vec<f32> = (0..60 * DIM).map(|_| random.gradient()).collect();
            let expected = oracle.step(optimizer, step, &ids, &grad);
            let ids = Tensor::new(&[12, 5], &ids);
            let grad = Tensor::new(&[12, 5, DIM as i64], &grad);
            let arguments: Vec<Tensor> = (optimizer.arguments)(step)
                .into_iter()
                .map(Tensor::scalar)
                .collect();
            let mut feeds = vec![(batch.ids, &ids), (batch.grad, &grad)];
            feeds.extend(batch.arguments.iter().copied().zip(&arguments));
            let fetches = [0, 1, 2].map(|form: usize| trainings[form].updated);
            let updated = session.run(&feeds, &fetches, &[]).expect(optimizer.name);
            for updated in updated {
                assert_eq!(updated.value::<i64>(), expected, "{}", optimizer.name);
            }
        }
        let rows = trainings[0].table.rows(&session);
        oracle.compare(0, &rows, optimizer.name);
        for other in &trainings[1..] {
            assert_eq!(other.table.rows(&session), rows, "{}", optimizer.name);
        }
        for (place, (name, _)) in optimizer.slots.iter().enumerate() {
            let slot = trainings[0].table.slot(&session, name);
            oracle.compare(1 + place, &slot, name);
            for other in &trainings[1..] {
                assert_eq!(other.table.slot(&session, name), slot, "{name}");
            }
        }
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn rows_of_padding_keys_are_never_updated() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({"padding_keys": [0]}));
    let ids = graph.placeholder::<i64>(&None);
    let grad = graph.placeholder::<f32>(&None);
    let updated = table.descend(table.id_offset(ids).0, grad);
    let session = Session::new(&graph).expect("a session");
    let keys = Tensor::vector(&[0_i64, 1]);
    let ones = Tensor::new(&[2, DIM as i64], &[1.0_f32; 2 * DIM]);
    let got = session.get(&[(ids, &keys), (grad, &ones)], &[updated]);
    assert_eq!(got[0].value::<i64>(), 1);
    let rows = table.rows(&session);
    assert_eq!(rows, [(0, vec![0.5; DIM]), (1, vec![-0.5; DIM])]);
}
