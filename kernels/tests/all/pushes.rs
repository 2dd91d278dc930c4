//! Pushes of several workers at once: none waits for another for ever.

use crate::support::{ids_of, keys_of, push_of, rounds};
use mx_rec_kernels::{Absent, Pool, Push, Sgd, Table, TableConfig};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::time::Duration;

const DIM: usize = 8;

fn table(at: usize) -> Arc<Table> {
    let config = TableConfig {
        seed: at as u64,
        ..TableConfig::new(format!("table_{at}"), DIM, 10_000_000)
    };
    Arc::new(Table::new(config).unwrap())
}

fn make_rows(pool: &Pool, table: &Arc<Table>, keys: &[i64]) {
    let mut inverse = vec![0; keys.len()];
    let one = ids_of(table, keys, &mut inverse);
    drop(Table::lease_many(pool, vec![one], None).unwrap());
}

/// The same gradients for each of some tables.
fn pushes<'a>(
    tables: &'a [Arc<Table>],
    keys: &'a [i64],
    grads: &'a [f32],
    optimizer: &'a Sgd,
) -> Vec<Push<'a>> {
    let push = |table: &'a Arc<Table>| push_of(table, keys, grads, optimizer);
    tables.iter().map(push).collect()
}

/// A table that somebody else has locked is left for later; it must not be left out.
#[test]
fn no_gradient_of_pushes_to_the_same_small_tables_is_lost() {
    let rounds = rounds(60);
    let pool = Arc::new(Pool::new(2).unwrap());
    let tables: Vec<Arc<Table>> = (0..8).map(table).collect();
    let keys: Vec<i64> = (0..3000).collect();
    for table in &tables {
        make_rows(&pool, table, &keys);
    }
    let grads = vec![-1.0; keys.len() * DIM];
    let sgd = Sgd::new(1.0).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let pushes = pushes(&tables, &keys, &grads, &sgd);
                    let done = Table::push_many(&pool, &pushes).unwrap();
                    assert_eq!(done.updated, (tables.len() * keys.len()) as u64);
                }
            });
        }
    });
    for table in &tables {
        let mut rows = vec![0.0; keys.len() * DIM];
        let one = keys_of(table, &keys, Absent::Zeros);
        Table::find_many(&pool, &[one], vec![&mut rows]).unwrap();
        assert!(rows.iter().all(|&value| value == 3.0 * rounds as f32));
    }
}

/// A helper thread of the pool that waits for a lock, whose holder waits for the helper.
#[test]
fn a_push_of_small_tables_ends_while_others_make_rows_and_push_to_one_of_them() {
    let pool = Arc::new(Pool::new(2).unwrap());
    let tables: Vec<Arc<Table>> = (0..8).map(table).collect();
    let small: Vec<i64> = (0..3000).collect();
    let large: Vec<i64> = (0..60_000).collect();
    for table in &tables {
        make_rows(&pool, table, &small);
    }
    make_rows(&pool, &tables[5], &large);
    let (done, ended) = channel();
    let over = Arc::new(AtomicBool::new(false));
    let begin = |work: Box<dyn Fn(usize) + Send>| {
        let (done, over) = (done.clone(), Arc::clone(&over));
        std::thread::spawn(move || {
            for round in 0..rounds(150) {
                if over.load(SeqCst) {
                    break;
                }
                work(round);
            }
            let _ = done.send(());
        });
    };
    let push = |keys: Vec<i64>, tables: Vec<Arc<Table>>| {
        let pool = Arc::clone(&pool);
        let grads = vec![1.0; keys.len() * DIM];
        Box::new(move |_: usize| {
            let sgd = Sgd::new(1.0).unwrap();
            let pushes = pushes(&tables, &keys, &grads, &sgd);
            Table::push_many(&pool, &pushes).unwrap();
        })
    };
    begin(push(small, tables.clone()));
    begin(push(large, vec![Arc::clone(&tables[5])]));
    let (pool, contested) = (Arc::clone(&pool), Arc::clone(&tables[5]));
    begin(Box::new(move |round| {
        let start = 100_000 + 20_000 * round as i64;
        make_rows(
            &pool,
            &contested,
            &(start..start + 20_000).collect::<Vec<_>>(),
        );
    }));
    for _ in 0..3 {
        ended
            .recv_timeout(Duration::from_secs(600))
            .expect("threads wait for each other");
    }
}
