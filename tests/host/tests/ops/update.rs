//! Updates of keys that have no say in training.

use crate::table::{Table, DIM};
use mx_rec_host_tests::{Graph, Session, Tensor};
use serde_json::json;

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
