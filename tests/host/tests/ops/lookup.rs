//! Lookups: keys to rows and rows to embeddings, and what changes the set of keys.

use crate::table::{find, reduce, Table, DIM};
use mx_rec_host_tests::{Graph, Session, Tensor};
use serde_json::json;

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_training_lookup_makes_rows_for_keys_and_zeros_for_padding() {
    let graph = Graph::new();
    let random = json!({"kind": "random_uniform", "min": -1.0, "max": 1.0});
    let table = Table::new(&graph, "t", json!({"initializer": random}));
    let ids = graph.placeholder::<i64>(&None);
    let (offsets, inverse) = table.id_offset(ids);
    let embedding = table.embed((offsets, inverse));
    let rows = table.read(offsets, &[], [&[], &[], &[]]);
    let restore = graph.node("MxRecRestore").input(rows).input(inverse);
    let restored = restore.first();
    let session = Session::new(&graph).expect("a session");
    let keys = [5, i64::MIN, -1, 5, i64::MAX, -2];
    let fed = Tensor::new(&[3, 2], &keys);
    let fetches = [offsets, inverse, embedding, rows, restored];
    let got = session.get(&[(ids, &fed)], &fetches);
    assert_eq!(got[0].dims(), [4]);
    assert_eq!(got[1].values::<i32>(), [0, 1, -1, 0, 2, 3]);
    assert_eq!(got[2].dims(), [3, 2, DIM as i64]);
    assert_eq!(got[2].values::<f32>(), got[4].values::<f32>());
    let (embedding, rows): (&[f32], &[f32]) = (got[2].values(), got[3].values());
    let places = got[1].values::<i32>().iter();
    for (found, &place) in embedding.chunks(DIM).zip(places) {
        match usize::try_from(place) {
            Ok(place) => assert_eq!(found, &rows[place * DIM..][..DIM]),
            Err(_) => assert_eq!(found, [0.0; DIM]),
        }
    }
    assert!(rows.iter().all(|value| (-1.0..1.0).contains(value)));
    assert_ne!(rows[..DIM], rows[DIM..2 * DIM]);
    assert_eq!(table.size(&session), 4);
    // Another table with this seed starts with the same bits, whatever else it holds.
    let other = Session::new(&graph).expect("a session");
    let fed = Tensor::vector(&[77_i64, -2, 5]);
    let again = other.get(&[(ids, &fed)], &[fetches[2]]);
    let again = again[0].values::<f32>();
    assert_eq!(again[DIM..2 * DIM], embedding[5 * DIM..]);
    assert_eq!(again[2 * DIM..], embedding[..DIM]);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_key_without_a_row_is_found_as_it_would_start_and_ids_of_a_variable_are_checked() {
    let graph = Graph::new();
    let random = json!({"kind": "random_uniform", "min": -1.0, "max": 1.0});
    let table = Table::new(&graph, "t", json!({"initializer": random}));
    let ids = graph.placeholder::<i64>(&None);
    let rows = graph.constant(&Tensor::vector(&[10_i64, 1 << 40]));
    let names = graph.constant(&Tensor::vector(b"items\nusers"));
    let checked = graph.node("MxRecCheckedIds").inputs(&[ids, ids]);
    let checked = checked.input(rows).input(names).first();
    let found = find(&graph, &[table], &[checked], &[], [&[], &[], &[]]);
    let found = found.int("initial", 1).made();
    let embedding = table.embed(table.id_offset(ids));
    let session = Session::new(&graph).expect("a session");
    let keys = Tensor::vector(&[9_i64, 0, 9]);
    let before = session.get(&[(ids, &keys)], &[found.output(0), checked]);
    assert_eq!(before[1].values::<i64>(), keys.values::<i64>());
    assert_eq!(table.size(&session), 0);
    let made = &session.get(&[(ids, &keys)], &[embedding])[0];
    assert_eq!(made.values::<f32>(), before[0].values::<f32>());
    assert_ne!(
        made.values::<f32>()[..DIM],
        made.values::<f32>()[DIM..2 * DIM]
    );
    for wrong in [10, -1] {
        let keys = Tensor::vector(&[3_i64, wrong]);
        let error = session.run(&[(ids, &keys)], &[found.output(0)], &[]);
        let error = error.err().expect("an id outside of the variable");
        assert!(error.message.contains(&wrong.to_string()), "{error}");
        assert!(error.message.contains("items"), "{error}");
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn evaluation_makes_no_rows_and_gives_what_absent_keys_are_to_get() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i32>(&None);
    let rows = graph.placeholder::<f32>(&None);
    let absent = graph.placeholder::<f32>(&None);
    let none = graph.constant(&Tensor::vector::<f32>(&[]));
    let assign = table.node("MxRecAssign").input(ids).input(rows);
    let assign = assign.inputs(&[]).input(none).inputs(&[]).first();
    let find = table.find(ids, &[absent], [&[], &[], &[]]);
    let session = Session::new(&graph).expect("a session");
    let dim = DIM as i64;
    let given: Vec<f32> = (0..3 * DIM).map(|at| at as f32).collect();
    let keys = Tensor::vector(&[10_i32, 20, 10]);
    let given = Tensor::new(&[3, dim], &given);
    let size = session.get(&[(ids, &keys), (rows, &given)], &[assign]);
    assert_eq!(size[0].value::<i64>(), 2);
    let (last, middle) = (
        &given.values::<f32>()[2 * DIM..],
        &given.values::<f32>()[DIM..2 * DIM],
    );
    assert_eq!(
        table.rows(&session),
        [(10, last.to_vec()), (20, middle.to_vec())]
    );
    let asked = Tensor::vector(&[20_i32, 30, -1, 10]);
    for count in [0, 1, 4] {
        let fill: Vec<f32> = (0..count * DIM).map(|at| 100.0 + at as f32).collect();
        let fill = Tensor::new(&[count as i64, dim], &fill);
        let found = &session.get(&[(ids, &asked), (absent, &fill)], &[find])[0];
        assert_eq!(found.dims(), [4, dim]);
        let of_key = |at: usize| &found.values::<f32>()[at * DIM..][..DIM];
        assert_eq!((of_key(0), of_key(3)), (middle, last));
        assert_eq!(of_key(2), [0.0; DIM]);
        let expected = match count {
            0 => &[0.0; DIM][..],
            1 => &fill.values()[..DIM],
            _ => &fill.values()[DIM..2 * DIM],
        };
        assert_eq!(of_key(1), expected);
    }
    assert_eq!(table.size(&session), 2);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_key_that_was_removed_or_cleared_starts_afresh() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({"capacity": 3}));
    let ids = graph.placeholder::<i64>(&None);
    let grad = graph.placeholder::<f32>(&None);
    let lookup = table.id_offset(ids);
    let embedding = table.embed(lookup);
    let updated = table.descend(lookup.0, grad);
    let remove = table.node("MxRecRemove").input(ids).first();
    let clear = table.clear_all();
    let session = Session::new(&graph).expect("a session");
    let keys = Tensor::vector(&[1_i64, 2, 3]);
    let ones = Tensor::new(&[3, DIM as i64], &[1.0_f32; 3 * DIM]);
    let train = [(ids, &keys), (grad, &ones)];
    let got = session.get(&train, &[updated]);
    assert_eq!(got[0].value::<i64>(), 3);
    assert_eq!(table.stats(&session)[..2], [3, 3]);
    assert_eq!(table.rows(&session)[2], (3, vec![-0.5; DIM]));
    let gone = Tensor::vector(&[2_i64, 9]);
    let got = session.get(&[(ids, &gone)], &[remove]);
    assert_eq!(got[0].value::<i64>(), 1);
    let got = session.get(&[(ids, &keys)], &[embedding]);
    let expected = [[-0.5; DIM], [0.5; DIM], [-0.5; DIM]].concat();
    assert_eq!(got[0].values::<f32>(), expected);
    let got = session.get(&[], &[clear]);
    assert_eq!(got[0].value::<i64>(), 3);
    assert_eq!(table.size(&session), 0);
    let got = session.get(&[(ids, &keys)], &[embedding]);
    assert_eq!(got[0].values::<f32>(), [0.5; 3 * DIM]);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn an_empty_batch_is_a_batch() {
    let graph = Graph::new();
    let table = Table::new(&graph, "t", json!({}));
    let ids = graph.placeholder::<i64>(&None);
    let lookup = table.id_offset(ids);
    let embedding = table.embed(lookup);
    let reduced = reduce(&graph, embedding, lookup);
    let updated = table.descend(lookup.0, reduced);
    let session = Session::new(&graph).expect("a session");
    for dims in [&[0][..], &[2, 0, 3]] {
        let empty = Tensor::new::<i64>(dims, &[]);
        let got = session.get(&[(ids, &empty)], &[embedding, reduced, updated]);
        assert_eq!(got[0].dims(), [dims, &[DIM as i64]].concat());
        assert_eq!(got[1].dims(), [0, DIM as i64]);
        assert_eq!(got[2].value::<i64>(), 0);
    }
    assert_eq!(table.size(&session), 0);
}
