//! Admission with a sketch: what exact counters decide as long as keys do not meet, never later,
//! and in fixed memory.

use crate::admission::{look, many_steps};
use crate::singles::{Singles as _, Target};
use crate::support::{cases, expect_error, found_rows, thresholds};
use crate::table::rows;
use mx_rec_kernels::{Ids, Initializer, Kind, Pool, Sgd, Table, TableConfig, Thresholds};
use proptest::prelude::*;
use std::sync::Arc;

const DIM: usize = 2;

/// So wide that none of the few keys of these tests meets others in all its cells.
const WIDE: u64 = 1 << 20;

fn config(admission_sketch_bytes: u64) -> TableConfig {
    TableConfig {
        seed: 5,
        initializer: Initializer::RandomUniform { min: 1.0, max: 2.0 },
        admission_sketch_bytes,
        ..TableConfig::new("rare", DIM, 1 << 20)
    }
}

fn table(sketch_bytes: u64) -> Arc<Table> {
    Arc::new(Table::new(config(sketch_bytes)).unwrap())
}

#[test]
fn the_size_is_checked_and_named() {
    for bytes in [1, 1023, (1 << 40) + 1, u64::MAX] {
        let error = Table::new(config(bytes)).err().unwrap();
        expect_error(
            &error,
            Kind::InvalidArgument,
            &["rare", "admission_sketch_bytes", &bytes.to_string()],
        );
    }
}

#[test]
fn without_memory_for_the_sketch_nothing_changes() {
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let words = machine
        .split_whitespace()
        .skip_while(|&word| word != "MemAvailable:");
    let kibibytes: u64 = words
        .skip(1)
        .flat_map(str::parse)
        .next()
        .unwrap_or(u64::MAX);
    if kibibytes > (1 << 40) / 1024 {
        println!("not on this machine: it has 1 TiB to give");
        return;
    }
    let (table, pool) = (table(1 << 40), Pool::new(1).unwrap());
    let limits = thresholds(2, None);
    let observed = table.observe(None, &pool, Ids::I64(&[5]), 1, None, limits, &mut [0]);
    let error = observed.err().unwrap();
    expect_error(&error, Kind::ResourceExhausted, &["rare"]);
    let error = table.set_access_threshold(3).unwrap_err();
    assert_eq!(error.kind(), Kind::ResourceExhausted);
    assert_eq!((table.stats().history_bytes, table.len()), (0, 0));
}

#[test]
fn rare_keys_take_no_more_memory_however_many_there_are() {
    let (table, pool) = (table(WIDE), Pool::new(2).unwrap());
    let ids: Vec<i64> = (0..400_000)
        .map(|at: i64| at.wrapping_mul(7919 << 20))
        .collect();
    for (batch, ids) in ids.chunks(20_000).enumerate() {
        look(&table, &pool, ids, 1, None, thresholds(1000, None));
        assert_eq!(table.stats().history_bytes, WIDE, "batch {batch}");
    }
    assert_eq!((table.len(), table.stats().refused), (0, 400_000));
    assert!(table.memory().other_bytes >= WIDE);
}

#[test]
fn what_is_stale_is_forgotten_but_counts_no_key_without_a_row() {
    let (table, pool) = (table(WIDE), Pool::new(1).unwrap());
    let limits = thresholds(3, Some(10));
    let has = |ids: &[i64], time| look(&table, &pool, ids, 1, Some(time), limits).1;
    assert_eq!(has(&[1, 1, 2, 2, 2], 100), [false, false, true, true, true]);
    assert_eq!(has(&[3], 109), [false]);
    assert_eq!(table.evict().unwrap(), (0, 1), "9 s");
    assert_eq!(has(&[3], 110), [false]);
    // The row of 2 goes, and the counts of 1; those of 3 stay.
    assert_eq!(table.evict().unwrap(), (1, 0));
    assert_eq!(table.stats().evicted, 1);
    assert_eq!(has(&[1, 2, 2, 3], 111), [false, false, false, true]);
}

#[test]
fn a_removed_key_is_still_counted_until_it_is_stale_or_the_table_cleared() {
    let (table, pool) = (table(WIDE), Pool::new(1).unwrap());
    let limits = thresholds(3, Some(10));
    let has = |ids: &[i64], time| look(&table, &pool, ids, 1, Some(time), limits).1;
    assert_eq!(has(&[1, 1, 1, 2, 2], 100), [true, true, true, false, false]);
    table.remove(Ids::I64(&[1, 2])).unwrap();
    assert_eq!(table.len(), 0);
    assert_eq!(has(&[1, 2], 100), [true, true]);
    table.clear();
    assert_eq!(has(&[1, 2], 101), [false, false]);
}

#[test]
fn counting_can_be_stopped_and_what_was_counted_stays_fresh() {
    let (table, pool) = (table(WIDE), Pool::new(1).unwrap());
    let limits = thresholds(3, Some(10));
    let has = |ids: &[i64], time| look(&table, &pool, ids, 1, Some(time), limits).1;
    assert_eq!(has(&[1, 1], 100), [false, false]);
    table.set_access_threshold(0).unwrap();
    assert_eq!(has(&[1, 4, 4, 4, 4], 109), [false; 5]);
    assert_eq!(table.evict().unwrap(), (0, 0));
    assert_eq!(has(&[5], 111), [false]);
    assert_eq!(table.evict().unwrap(), (0, 0));
    table.set_access_threshold(3).unwrap();
    assert_eq!(has(&[1, 4], 112), [true, false]);
}

#[test]
fn many_steps_on_any_number_of_threads_admit_the_same() {
    // Narrow: most keys meet others.
    let stats = many_steps(|| table(64 << 10), thresholds(40, Some(4)));
    assert!(stats.new > 1000 && stats.refused > 1000, "{stats:?}");
}

/// A verb of a random history.
#[derive(Clone, Debug)]
enum Verb {
    /// A training step: a gradient of 1 for every id that has a row, as SGD with rate 1.
    Train(Vec<i64>, u32),
    /// Time goes on by so many seconds.
    Wait(u8),
    Evict,
    SetThreshold(u32),
    Assign(i64),
    Clear,
}

/// Ids in `-3..most`; `by_hand`: rows are assigned as well.
fn verbs(most: i64, by_hand: bool) -> impl Strategy<Value = Vec<Verb>> {
    let ids = move || proptest::collection::vec(-3_i64..most, 0..12);
    let verb = prop_oneof![
        12 => (ids(), 0..3_u32).prop_map(|(ids, weight)| Verb::Train(ids, weight)),
        4 => (0..9_u8).prop_map(Verb::Wait),
        3 => Just(Verb::Evict),
        1 => (0..5_u32).prop_map(Verb::SetThreshold),
        1 => (0..most).prop_map(move |key| if by_hand { Verb::Assign(key) } else { Verb::Evict }),
        1 => Just(Verb::Clear),
    ];
    proptest::collection::vec(verb, 1..60)
}

/// One table in a random history.
struct Run {
    table: Arc<Table>,
    pool: Pool,
    limits: Thresholds,
    now: i64,
}

impl Run {
    fn new(sketch_bytes: u64, limits: Thresholds) -> Run {
        let run = Run {
            table: table(sketch_bytes),
            pool: Pool::new(1).unwrap(),
            limits,
            now: 1,
        };
        run.look(&[], 1);
        run
    }

    fn look(&self, ids: &[i64], weight: u32) -> (Vec<i64>, Vec<bool>) {
        let time = Some(self.now);
        let (lease, admitted) = look(&self.table, &self.pool, ids, weight, time, self.limits);
        (rows(lease.offsets()), admitted)
    }

    /// Does what the verb says; returns the row numbers of a training step, and which ids have one.
    fn turn(&mut self, verb: &Verb) -> (Vec<i64>, Vec<bool>) {
        match verb {
            Verb::Train(ids, weight) => {
                let (offsets, admitted) = self.look(ids, *weight);
                let with_row = ids.iter().zip(&admitted).filter(|(_, &has)| has);
                let keys: Vec<i64> = with_row.map(|(&id, _)| id).collect();
                let grads = vec![-1.0; keys.len() * DIM];
                let sgd = Sgd::new(1.0).unwrap();
                let target = Target::Ids(Ids::I64(&keys));
                self.table.apply(&self.pool, target, &grads, &sgd).unwrap();
                return (offsets, admitted);
            }
            Verb::Wait(seconds) => {
                self.now += i64::from(*seconds);
                self.look(&[], 1);
            }
            Verb::Evict => {
                let before = self.table.len();
                let (gone, _) = self.table.evict().unwrap();
                assert!(gone >= before - self.table.len());
            }
            Verb::SetThreshold(access) => self.table.set_access_threshold(*access).unwrap(),
            Verb::Assign(key) => {
                let ids = Ids::I64(std::slice::from_ref(key));
                self.table.assign(&self.pool, ids, &[0.5; DIM]).unwrap();
            }
            Verb::Clear => {
                self.table.clear();
            }
        }
        Default::default()
    }

    fn find(&self, ids: &[i64]) -> Vec<f32> {
        found_rows(&self.table, &self.pool, ids)
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn a_wide_sketch_decides_as_exact_counters_do(
        verbs in verbs(24, true), access in 0..4_u32, eviction in 1..20_u32,
    ) {
        let limits = thresholds(access, Some(eviction));
        let (mut exact, mut sketch) = (Run::new(0, limits), Run::new(1 << 16, limits));
        let keys: Vec<i64> = (-3..24).collect();
        for verb in &verbs {
            prop_assert_eq!(exact.turn(verb), sketch.turn(verb), "{:?}", verb);
            prop_assert_eq!(exact.find(&keys), sketch.find(&keys), "{:?}", verb);
            prop_assert_eq!(exact.table.len(), sketch.table.len());
        }
        prop_assert!(exact.table.export().unwrap() == sketch.table.export().unwrap());
    }

    #[test]
    fn a_crowded_sketch_admits_no_key_later_and_lets_none_go_earlier(
        verbs in verbs(400, false), access in 1..4_u32, eviction in 1..20_u32,
    ) {
        let limits = thresholds(access, Some(eviction));
        let (mut exact, mut sketch) = (Run::new(0, limits), Run::new(1024, limits));
        for verb in &verbs {
            let (expected, found) = (exact.turn(verb).1, sketch.turn(verb).1);
            prop_assert!(expected.iter().zip(&found).all(|(&expected, &found)| found || !expected), "{:?}", verb);
            let rows = sketch.table.export().unwrap().keys;
            let missing = exact.table.export().unwrap().keys.into_iter().find(|key| !rows.contains(key));
            prop_assert_eq!(missing, None);
        }
    }
}
