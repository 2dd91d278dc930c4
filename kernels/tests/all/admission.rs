//! Which keys get rows and which lose them, against a plain model and by hand.

use crate::singles::{Singles as _, Target};
use crate::support::{admitted, cases, created, expect_error, found_rows, thresholds};
use crate::table::rows;
use mx_rec_kernels::{
    Ids, Initializer, Kind, LazyAdam, Lease, Pool, Sgd, Stats, Table, TableConfig, Thresholds,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

const DIM: usize = 4;

fn table(capacity: u64) -> Arc<Table> {
    Arc::new(
        Table::new(TableConfig {
            seed: 5,
            initializer: Initializer::RandomUniform { min: 1.0, max: 2.0 },
            ..TableConfig::new("admission", DIM, capacity)
        })
        .unwrap(),
    )
}

/// One lookup: observed and admitted; returns the lease and whether each id has a row.
pub(crate) fn look(
    table: &Arc<Table>,
    pool: &Pool,
    ids: &[i64],
    weight: u32,
    time: Option<i64>,
    limits: Thresholds,
) -> (Lease, Vec<bool>) {
    let (lease, inverse) = admitted(table, pool, ids, (weight, time), limits);
    (lease, inverse.iter().map(|&at| at >= 0).collect())
}

#[test]
fn of_the_worked_example_only_33_is_refused() {
    let (table, pool) = (table(100), Pool::new(1).unwrap());
    let entries = [
        (11, 1),
        (11, 2),
        (33, 1),
        (44, 3),
        (11, 1),
        (55, 1),
        (88, 4),
        (55, 1),
    ];
    let mut ids = Vec::new();
    for (key, occurrences) in entries {
        ids.extend(std::iter::repeat_n(key, occurrences));
    }
    let (lease, admitted) = look(&table, &pool, &ids, 1, None, thresholds(2, None));
    for (&id, &admitted) in ids.iter().zip(&admitted) {
        assert_eq!(admitted, id != 33, "{id}");
    }
    assert_eq!((lease.offsets().len(), table.len()), (4, 4));
    let stats = table.stats();
    assert_eq!((stats.new, stats.refused, stats.hits), (4, 1, 0));
    assert!(found_rows(&table, &pool, &[33])
        .iter()
        .all(|&value| value == 0.0));
    assert!(found_rows(&table, &pool, &[55])
        .iter()
        .all(|&value| value >= 1.0));
    let (_, admitted) = look(&table, &pool, &[33, -1], 1, None, thresholds(2, None));
    assert_eq!(admitted, [true, false]);
}

#[test]
fn all_lookups_of_a_batch_count_before_any_is_admitted_and_weights_multiply() {
    let (table, pool) = (table(100), Pool::new(1).unwrap());
    let limits = thresholds(6, None);
    let mut places = [[0; 2]; 2];
    let mut keys = Vec::new();
    for (places, ids) in places.iter_mut().zip([[7, 8], [7, 9]]) {
        let observed = table.observe(None, &pool, Ids::I64(&ids), 3, None, limits, places);
        keys.push(observed.unwrap());
    }
    for (keys, places) in keys.iter().zip(&places) {
        let mut inverse = [0; 2];
        let lease = table
            .admit(&pool, keys, None, places, &mut inverse)
            .unwrap();
        assert_eq!((inverse, lease.offsets().len()), ([0, -1], 1));
    }
}

#[test]
fn thresholds_change_while_training_and_0_stops_counting() {
    let (table, pool) = (table(100), Pool::new(1).unwrap());
    let limits = thresholds(3, None);
    let has = |ids: &[i64]| look(&table, &pool, ids, 1, None, limits).1;
    assert_eq!(has(&[1, 1, 2]), [false; 3]);
    table.set_access_threshold(2).unwrap();
    assert_eq!(has(&[2]), [true]);
    table.set_access_threshold(0).unwrap();
    // Known: 1 counted twice. Unknown keys are not counted, however often they come.
    assert_eq!(has(&[1, 5, 5, 5]), [true, false, false, false]);
    assert_eq!(has(&[5]), [false]);
    // A higher one hides rows that were admitted under a lower one, and shows them again.
    table.set_access_threshold(4).unwrap();
    let hidden = found_rows(&table, &pool, &[2]);
    assert!(hidden.iter().all(|&value| value == 0.0));
    assert_eq!(has(&[2]), [false]);
    assert_eq!(has(&[2]), [true]);
    assert!(found_rows(&table, &pool, &[2])
        .iter()
        .all(|&value| value >= 1.0));
}

#[test]
fn a_threshold_may_be_set_before_the_first_batch_and_wins() {
    let (table, pool) = (table(100), Pool::new(1).unwrap());
    table.set_access_threshold(2).unwrap();
    let limits = thresholds(50, Some(10));
    assert_eq!(
        look(&table, &pool, &[1, 1], 1, Some(1), limits).1,
        [true; 2]
    );
    assert_eq!(look(&table, &pool, &[2], 1, Some(11), limits).1, [false]);
    assert_eq!(table.evict().unwrap(), (1, 1));
}

#[test]
fn keys_go_when_they_were_not_seen_for_the_threshold_and_come_back_as_new() {
    let (table, pool) = (table(1000), Pool::new(1).unwrap());
    let limits = thresholds(1, Some(60));
    let keys: Vec<i64> = (0..300).collect();
    drop(look(&table, &pool, &keys, 1, Some(1000), limits));
    let fresh = found_rows(&table, &pool, &keys);
    let adam = LazyAdam::new(0.5, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap();
    let grads = vec![1.0; keys.len() * DIM];
    let target = Target::Ids(Ids::I64(&keys));
    table.apply(&pool, target, &grads, &adam).unwrap();
    let learned = found_rows(&table, &pool, &keys);
    drop(look(&table, &pool, &keys[200..], 1, Some(1059), limits));
    assert_eq!(table.evict().unwrap(), (0, 300), "59 s");
    drop(look(&table, &pool, &keys[250..], 1, Some(1060), limits));
    assert_eq!(table.evict().unwrap(), (200, 100), "60 s");
    assert_eq!(table.stats().evicted, 200);
    let found = found_rows(&table, &pool, &keys);
    assert!(found[..200 * DIM].iter().all(|&value| value == 0.0));
    assert_eq!(found[200 * DIM..], learned[200 * DIM..]);
    drop(look(&table, &pool, &keys, 1, Some(1061), limits));
    let found = found_rows(&table, &pool, &keys);
    assert_eq!(found[..200 * DIM], fresh[..200 * DIM]);
    let exported = table.export().unwrap();
    for (at, key) in exported.keys.iter().enumerate() {
        let moments = &exported.slots[0].1[at * DIM..(at + 1) * DIM];
        assert_eq!(moments.iter().all(|&value| value == 0.0), *key < 200);
    }
}

#[test]
fn most_rows_go_the_others_move_together_and_those_in_flight_stay() {
    let (table, pool) = (table(1 << 20), Pool::new(2).unwrap());
    let limits = thresholds(1, Some(100));
    let keys: Vec<i64> = (0..200_000).collect();
    drop(look(&table, &pool, &keys, 1, Some(1000), limits));
    let adam = LazyAdam::new(0.5, 0.9, 0.999, 1e-8, 0.9, 0.999).unwrap();
    let grads: Vec<f32> = (0..keys.len() * DIM).map(|at| at as f32 - 9e4).collect();
    let target = Target::Ids(Ids::I64(&keys));
    table.apply(&pool, target, &grads, &adam).unwrap();
    let kept: Vec<i64> = keys.iter().copied().filter(|key| key % 9 == 0).collect();
    // Two batches on their way: one of keys that stay, one of keys that go.
    let (staying, _) = look(&table, &pool, &kept[20_000..], 1, Some(1100), limits);
    drop(look(&table, &pool, &kept, 1, Some(1100), limits));
    let mut inverse = vec![0; 50];
    let going: Vec<i64> = (150_001..150_051).filter(|key| key % 9 != 0).collect();
    inverse.truncate(going.len());
    let leaving = table
        .lease(&pool, Ids::I64(&going), None, &mut inverse)
        .unwrap();
    let rows = |offsets: &[i64]| {
        let mut out = vec![0.0; offsets.len() * DIM];
        table.lookup(&pool, offsets, &mut out).unwrap();
        out
    };
    let before = (rows(staying.offsets()), rows(leaving.offsets()));
    let all = found_rows(&table, &pool, &keys);
    let slots = |table: &Table| -> HashMap<i64, Vec<u32>> {
        let export = table.export().unwrap();
        let bits = |at: usize| {
            let of = |values: &[f32]| values[at * DIM..(at + 1) * DIM].to_vec();
            let values = export.slots.iter().flat_map(|(_, values)| of(values));
            values.map(f32::to_bits).collect()
        };
        (export.keys.iter().enumerate())
            .map(|(at, &key)| (key, bits(at)))
            .collect()
    };
    let moments = slots(&table);
    let memory = table.memory().rows_bytes;
    let (gone, known) = table.evict().unwrap();
    assert_eq!((gone + known, known), (200_000, kept.len() as u64));
    assert_eq!(before, (rows(staying.offsets()), rows(leaving.offsets())));
    // The batches in flight hold rows near the end.
    drop((staying, leaving));
    table.remove(Ids::I64(&[0])).unwrap();
    drop(look(&table, &pool, &[0], 1, Some(1100), limits));
    for (&key, values) in keys
        .iter()
        .zip(found_rows(&table, &pool, &keys).chunks(DIM))
    {
        let expected = match key % 9 {
            0 if key == 0 => continue,
            0 => &all[key as usize * DIM..(key as usize + 1) * DIM],
            _ => &[0.0; DIM],
        };
        assert_eq!(values, expected, "{key}");
    }
    let after = slots(&table);
    assert!(kept[1..].iter().all(|key| after[key] == moments[key]));
    // Nothing holds the others now: the next eviction leaves about as many rows as there are keys.
    drop(look(&table, &pool, &kept[..2000], 1, Some(1201), limits));
    assert_eq!(table.evict().unwrap(), (kept.len() as u64 - 2000, 2000));
    let memory_now = table.memory().rows_bytes;
    assert!(memory_now <= memory / 100 + 64, "{memory_now} of {memory}");
    assert_eq!(
        found_rows(&table, &pool, &kept[1..2000]),
        all.chunks(DIM * 9)
            .skip(1)
            .take(1999)
            .flat_map(|rows| rows[..DIM].to_vec())
            .collect::<Vec<_>>()
    );
}

#[test]
fn refusals_name_the_table_and_change_nothing() {
    let (table, pool) = (table(3), Pool::new(1).unwrap());
    let observe = |time, limits| {
        let mut places = [0; 2];
        let ids = Ids::I64(&[4, 5]);
        let observed = table.observe(None, &pool, ids, 1, time, limits, &mut places);
        observed.map(|_| ())
    };
    for time in [0, -5, i64::from(u32::MAX), i64::MAX] {
        let error = observe(Some(time), thresholds(1, Some(5))).unwrap_err();
        expect_error(
            &error,
            Kind::InvalidArgument,
            &["admission", &time.to_string()],
        );
    }
    let error = observe(None, thresholds(1, Some(5))).unwrap_err();
    assert!(error.to_string().contains("timestamp"), "{error}");
    assert_eq!(table.evict().unwrap(), (0, 0));
    assert_eq!(table.stats().history_bytes, 0);
    let keys = [1, 2, 3, 4];
    let admit = |keys: &[i64], limit, places: &[i32]| {
        let mut inverse = vec![0; places.len()];
        let admitted = table.admit(&pool, keys, limit, places, &mut inverse);
        admitted.map(|_| ()).unwrap_err().to_string()
    };
    observe(None, thresholds(1, None)).unwrap();
    table.set_access_threshold(1).unwrap();
    drop(look(
        &table,
        &pool,
        &[1, 2, 3],
        1,
        None,
        thresholds(1, None),
    ));
    let text = admit(&[-1], None, &[0]);
    assert!(text.contains("padding"), "{text}");
    let text = admit(&[4, 5, 4], None, &[0]);
    assert!(
        text.contains("twice") && text.contains("key=4") || text.contains("key: 4"),
        "{text}"
    );
    let text = admit(&keys, None, &[4]);
    assert!(text.contains("place"), "{text}");
    let text = admit(&keys, Some(2), &[0]);
    assert!(text.contains("limit"), "{text}");
    let text = admit(&keys, None, &[0]);
    assert!(text.contains("admission"), "{text}");
    assert_eq!(table.len(), 3);
}

/// Fails unless many steps on a new table admit the same on any number of threads; returns what the
/// table says of itself in the end.
pub(crate) fn many_steps(table: impl Fn() -> Arc<Table>, limits: Thresholds) -> Stats {
    let run = |threads: usize| {
        let (table, pool) = (table(), Pool::new(threads).unwrap());
        let mut all = Vec::new();
        for step in 0..20_i64 {
            let ids: Vec<i64> = (0..30_000)
                .map(|at| at * 2_654_435_761 % 20_011 + step * 2_000)
                .collect();
            let (lease, admitted) = look(&table, &pool, &ids, 1, Some(step + 1), limits);
            all.push((rows(lease.offsets()), admitted));
            drop(lease);
            if step % 6 == 5 {
                table.evict().unwrap();
            }
        }
        (all, table.export().unwrap(), table.stats())
    };
    let one = run(1);
    assert!(run(2) == one);
    assert!(run(5) == one);
    one.2
}

#[test]
fn many_steps_on_any_number_of_threads_admit_the_same() {
    let stats = many_steps(|| table(1 << 20), thresholds(3, Some(4)));
    assert!(stats.evicted > 1000 && stats.refused > 1000, "{stats:?}");
}

/// A verb of a random history.
#[derive(Clone, Debug)]
enum Verb {
    /// A training step: a gradient of 1 for every id, as SGD with rate 1.
    Train(Vec<i64>, u32),
    /// Time goes on by so many seconds.
    Wait(u8),
    Evict,
    Remove(Vec<i64>),
    SetThreshold(u32),
    Assign(i64),
    Clear,
}

fn verbs() -> impl Strategy<Value = Vec<Verb>> {
    let ids = || proptest::collection::vec(-3_i64..24, 0..12);
    let verb = prop_oneof![
        12 => (ids(), 1..3_u32).prop_map(|(ids, weight)| Verb::Train(ids, weight)),
        4 => (0..9_u8).prop_map(Verb::Wait),
        3 => Just(Verb::Evict),
        1 => ids().prop_map(Verb::Remove),
        1 => (0..5_u32).prop_map(Verb::SetThreshold),
        1 => (0..24_i64).prop_map(Verb::Assign),
        1 => Just(Verb::Clear),
    ];
    proptest::collection::vec(verb, 1..60)
}

/// The rules in maps.
struct Model {
    access: u32,
    counting: bool,
    eviction: u32,
    now: u32,
    /// The time of the latest batch since the table was cleared; 0 for none.
    told: u32,
    count: HashMap<i64, (u32, u32)>,
    /// Gradients that reached a row.
    rows: HashMap<i64, f32>,
}

impl Model {
    fn admitted(&self, key: i64) -> bool {
        self.access == 0
            || self
                .count
                .get(&key)
                .is_some_and(|seen| seen.0 >= self.access)
    }

    /// A batch of now: the first one dates what was set before it.
    fn tell(&mut self) {
        if self.told == 0 {
            for seen in self.count.values_mut().filter(|seen| seen.0 > 0) {
                seen.1 = self.now;
            }
        }
        self.told = self.now;
    }

    fn train(&mut self, ids: &[i64], weight: u32) {
        self.tell();
        let ids = ids.iter().filter(|&&id| id != -1);
        for &id in ids.clone() {
            if self.counting || self.count.contains_key(&id) {
                let seen = self.count.entry(id).or_default();
                seen.0 += if self.counting { weight } else { 0 };
                seen.1 = seen.1.max(self.now);
            }
        }
        for &id in ids {
            if self.admitted(id) {
                *self.rows.entry(id).or_default() += 1.0;
            }
        }
    }

    fn evict(&mut self) -> u64 {
        let stale: Vec<i64> = (self.count.iter())
            .filter(|(_, seen)| seen.1 != 0 && self.now - seen.1 >= self.eviction)
            .map(|(&key, _)| key)
            .collect();
        for key in &stale {
            self.count.remove(key);
            self.rows.remove(key);
        }
        stale.len() as u64
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn random_histories_follow_the_rules(verbs in verbs(), access in 0..4_u32, eviction in 1..20_u32) {
        let (table, pool) = (table(1000), Pool::new(1).unwrap());
        let limits = thresholds(access, Some(eviction));
        let mut model = Model {
            access,
            counting: access > 0,
            eviction,
            now: 1,
            told: 1,
            count: HashMap::new(),
            rows: HashMap::new(),
        };
        drop(look(&table, &pool, &[], 1, Some(1), limits));
        let sgd = Sgd::new(1.0).unwrap();
        let base = {
            let other = self::table(1000);
            let keys: Vec<i64> = (-3..24).filter(|&key| key != -1).collect();
            created(&other, &pool, &keys);
            found_rows(&other, &pool, &(-3..24).collect::<Vec<_>>())
        };
        for verb in verbs {
            match verb {
                Verb::Train(ids, weight) => {
                    let (lease, admitted) =
                        look(&table, &pool, &ids, weight, Some(model.now.into()), limits);
                    model.train(&ids, weight);
                    for (&id, &admitted) in ids.iter().zip(&admitted) {
                        prop_assert_eq!(admitted, id != -1 && model.admitted(id), "key {}", id);
                    }
                    let mut sums: Vec<i64> = ids.iter().copied().filter(|&id| id != -1 && model.admitted(id)).collect();
                    let grads = vec![-1.0; sums.len() * DIM];
                    if lease.offsets().is_empty() {
                        sums.clear();
                    }
                    table.apply(&pool, Target::Ids(Ids::I64(&sums)), &grads, &sgd).unwrap();
                }
                Verb::Wait(seconds) => {
                    model.now += u32::from(seconds);
                    model.tell();
                    drop(look(&table, &pool, &[], 1, Some(model.now.into()), limits));
                }
                Verb::Evict => {
                    let gone = model.evict();
                    prop_assert_eq!(table.evict().unwrap(), (gone, model.count.len() as u64));
                }
                Verb::Remove(ids) => {
                    table.remove(Ids::I64(&ids)).unwrap();
                    ids.iter().for_each(|id| {
                        model.rows.remove(id);
                        model.count.remove(id);
                    });
                }
                Verb::SetThreshold(access) => {
                    table.set_access_threshold(access).unwrap();
                    model.access = if access > 0 { access } else { model.access };
                    model.counting = access > 0;
                }
                Verb::Assign(key) => {
                    // By hand: the row is there, and its key counts as admitted now.
                    let at = (key + 3) as usize * DIM;
                    table.assign(&pool, Ids::I64(&[key]), &base[at..at + DIM]).unwrap();
                    if model.rows.insert(key, 0.0).is_none() && model.access > 0 {
                        let seen = model.count.entry(key).or_insert((0, model.told));
                        seen.0 = seen.0.max(model.access);
                    }
                }
                Verb::Clear => {
                    table.clear();
                    model.rows.clear();
                    model.count.clear();
                    model.told = 0;
                }
            }
            prop_assert_eq!(table.len(), model.rows.len() as u64);
            let keys: Vec<i64> = (-3..24).collect();
            for ((&key, found), base) in keys.iter().zip(found_rows(&table, &pool, &keys).chunks(DIM)).zip(base.chunks(DIM)) {
                let shown = model.rows.get(&key).filter(|_| model.admitted(key));
                for (&found, &base) in found.iter().zip(base) {
                    let expected = shown.map_or(0.0, |sum| base + sum);
                    prop_assert!((found - expected).abs() < 1e-3, "key {}: {} and not \
                        {}", key, found, expected);
                }
            }
        }
    }
}
