//! Every verb of one table at once, from many threads: no key sees another's row, no update is
//! lost, nothing is left over.
//!
//! Two seconds here, or as many as it takes to see enough; `scripts/stress threads` sets
//! MX_REC_STRESS_SECONDS to minutes.

use crate::directory::Directory;
use crate::singles::{Singles as _, Target};
use crate::support::{admitted, applied, found_rows, rounds, thresholds, tier};
use mx_rec_kernels::{checkpoint, Absent, Ids, Pool, Sgd, Table, TableConfig, TierStats};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DIM: usize = 4;

/// Keys that every step trains and nobody removes; they are never stale.
const HOT: i64 = 40;

/// Ids of a step.
const BATCH: usize = 600;

/// Keys that come into use with every step, and go out of use.
const DRIFT: i64 = 120;

/// Seconds, of one a step, until a key is stale.
const STALE: u32 = 100;

/// Rows in memory of a table with a tier: less than what all batches under way have together.
const IN_MEMORY: u64 = 900;

/// So much longer it goes on at most until it has seen enough.
const LONGEST: Duration = Duration::from_secs(120);

fn config() -> TableConfig {
    TableConfig {
        seed: 5,
        ..TableConfig::new("threads", DIM, 1 << 22)
    }
}

fn in_memory() -> Arc<Table> {
    Arc::new(Table::new(config()).unwrap())
}

fn tiered() -> Arc<Table> {
    let tier = tier(IN_MEMORY, vec![std::env::temp_dir()]);
    Arc::new(Table::tiered(config(), &tier).unwrap())
}

/// What one step subtracts from the row of a key: its first number tells how often, the others
/// whose row it is.
fn gradient(key: i64) -> [f32; DIM] {
    let number = (key % 4001 + 1) as f32;
    [1.0, number, (key % 251 + 1) as f32, -number]
}

/// Refuses a row that updates of other keys have reached, or only a part of an update.
fn check(key: i64, row: &[f32], who: &str) -> u64 {
    let times = -row[0];
    // Sums stay integers that floats hold exactly.
    let expected = gradient(key).map(|value| -times * value);
    assert_eq!(row, expected, "{who}: the row of {key}");
    times as u64
}

struct Shared {
    table: Arc<Table>,
    /// Steps of all threads, the time that they tell.
    clock: AtomicI64,
    /// Updates of hot keys that were applied.
    applied: Vec<AtomicU64>,
    /// Keys that were evicted.
    evicted: AtomicU64,
    until: Instant,
    stopped: AtomicBool,
    thread: AtomicU32,
}

/// Stops all threads when one of them panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, SeqCst);
        }
    }
}

impl Shared {
    fn run(&self, mut verb: impl FnMut(&mut Draw)) {
        let _stop = Stop(&self.stopped);
        let mut draw = Draw(u64::from(self.thread.fetch_add(1, SeqCst)) + 1);
        while !self.stopped.load(SeqCst) && !self.is_over() {
            verb(&mut draw);
        }
    }

    /// Whether the time is over, and so much has happened that the end can be looked at; on a slow
    /// or busy machine that takes longer.
    fn is_over(&self) -> bool {
        let now = Instant::now();
        now >= self.until && (self.has_seen_enough() || now >= self.until + LONGEST)
    }

    fn has_seen_enough(&self) -> bool {
        let tier = self.table.stats().tier;
        self.evicted.load(SeqCst) > 1000
            && tier.is_none_or(|tier| tier.misses > 1000 && tier.given_up > 0)
    }

    /// Keys of the present window, hot ones among them.
    fn ids(&self, draw: &mut Draw) -> Vec<i64> {
        let start = self.clock.load(SeqCst) * DRIFT;
        (0..BATCH)
            .map(|at| match at % 10 {
                0 => draw.below(HOT),
                _ => HOT + start + draw.below(DRIFT * 40),
            })
            .collect()
    }

    /// Looks at rows and updates each once.
    fn train(&self, pool: &Pool, ids: &[i64], offsets: &[i64], inverse: &[i32], who: &str) {
        let mut keys = vec![None; offsets.len()];
        for (&id, &at) in ids.iter().zip(inverse) {
            if at >= 0 {
                keys[at as usize] = Some(id);
            }
        }
        let keys: Vec<i64> = keys.into_iter().map(|key| key.unwrap()).collect();
        let mut rows = vec![9.0; offsets.len() * DIM];
        self.table.lookup(pool, offsets, &mut rows).unwrap();
        for (&key, row) in keys.iter().zip(rows.chunks_exact(DIM)) {
            check(key, row, who);
        }
        let grads: Vec<f32> = keys.iter().flat_map(|&key| gradient(key)).collect();
        let sgd = Sgd::new(1.0).unwrap();
        applied(&self.table, pool, Target::Offsets(offsets), &grads, &sgd);
        for &key in keys.iter().filter(|&&key| key < HOT) {
            self.applied[key as usize].fetch_add(1, SeqCst);
        }
    }

    /// A step with admission.
    fn step(&self, pool: &Pool, draw: &mut Draw, access: u32) {
        let ids = self.ids(draw);
        let now = self.clock.fetch_add(1, SeqCst) + 1;
        let limits = thresholds(access, Some(STALE));
        let (lease, inverse) = admitted(&self.table, pool, &ids, (1, Some(now)), limits);
        self.train(pool, &ids, lease.offsets(), &inverse, "step");
    }
}

/// Random numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ mixed >> 27) % end as u64) as i64
    }
}

#[test]
fn every_verb_at_once_mixes_no_rows_up_and_loses_no_update() {
    every_verb_at_once(in_memory, "memory");
}

#[test]
fn every_verb_at_once_mixes_no_rows_up_and_loses_no_update_on_disk() {
    assert!(every_verb_at_once(tiered, "disk").is_some());
}

fn every_verb_at_once(made: fn() -> Arc<Table>, name: &str) -> Option<TierStats> {
    let seconds = std::env::var("MX_REC_STRESS_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let shared = Shared {
        table: made(),
        clock: AtomicI64::new(0),
        applied: (0..HOT).map(|_| AtomicU64::new(0)).collect(),
        evicted: AtomicU64::new(0),
        until: Instant::now() + Duration::from_secs(seconds.unwrap_or(2)),
        stopped: AtomicBool::new(false),
        thread: AtomicU32::new(0),
    };
    let dir = Directory::new(name);
    let dir = &dir.0;
    let (shared, table) = (&shared, &shared.table);
    let two = || Pool::new(2).unwrap();
    // Hot keys are there from the start: their counts stay above every threshold.
    let pool = two();
    for _ in 0..4 {
        shared.step(&pool, &mut Draw(99), 1);
    }
    std::thread::scope(|scope| {
        for threads in [1, 2] {
            scope.spawn(move || {
                let pool = Pool::new(threads).unwrap();
                shared.run(|draw| shared.step(&pool, draw, 1));
            });
        }
        // Batches ahead.
        scope.spawn(|| {
            let (pool, mut ahead) = (two(), VecDeque::new());
            shared.run(|draw| {
                let (ids, mut inverse) = (shared.ids(draw), vec![0; BATCH]);
                let lease = table.prepare(&pool, Ids::I64(&ids), None, &mut inverse);
                ahead.push_back((ids, inverse, lease));
                if ahead.len() < 3 {
                    return;
                }
                let Some((ids, mut inverse, lease)) = ahead.pop_front() else {
                    return;
                };
                let (batch, offsets) = (Ids::I64(&ids), lease.offsets());
                // Memory that is small for batches ahead refuses one now and then, unchanged.
                let claim = || table.claim(&pool, batch, offsets, None, &inverse);
                if draw.below(6) == 0 {
                    // Dropped.
                } else if claim().or_else(|_| claim()).unwrap() {
                    shared.train(&pool, &ids, offsets, &inverse, "claim");
                } else {
                    let lease = table.lease(&pool, batch, None, &mut inverse).unwrap();
                    shared.train(&pool, &ids, lease.offsets(), &inverse, "lease");
                }
            });
        });
        scope.spawn(|| {
            let pool = two();
            shared.run(|draw| {
                let (ids, mut rows) = (shared.ids(draw), vec![9.0; BATCH * DIM]);
                let batch = Ids::I64(&ids);
                table.find(&pool, batch, Absent::Zeros, &mut rows).unwrap();
                for (&key, row) in ids.iter().zip(rows.chunks_exact(DIM)) {
                    check(key, row, "find");
                }
            });
        });
        scope.spawn(|| {
            shared.run(|_| {
                // Many rows become stale meanwhile, so that the others move together.
                std::thread::sleep(Duration::from_millis(150));
                let (evicted, _) = table.evict().unwrap();
                shared.evicted.fetch_add(evicted, SeqCst);
            });
        });
        scope.spawn(|| {
            shared.run(|draw| {
                let mut ids = shared.ids(draw);
                ids.retain(|&id| id >= HOT);
                table.remove(Ids::I64(&ids[..50])).unwrap();
                table
                    .set_access_threshold(draw.below(3) as u32 + 1)
                    .unwrap();
                table.stats();
                std::thread::sleep(Duration::from_millis(3));
            });
        });
        scope.spawn(|| {
            let pool = two();
            shared.run(|draw| {
                if draw.below(2) == 0 {
                    checkpoint::save(table, &pool, dir).unwrap();
                    let copy = made();
                    checkpoint::load(&copy, &pool, dir).unwrap();
                    expect_sound(&copy, "a saved copy");
                } else {
                    expect_rows(&table.export().unwrap(), "a snapshot");
                }
            });
        });
    });
    let (evicted, tier) = (&shared.evicted, table.stats().tier);
    assert!(
        shared.has_seen_enough(),
        "{evicted:?} keys were evicted, {tier:?}"
    );
    expect_sound(table, "the end");
    let keys: Vec<i64> = (0..HOT).collect();
    table.set_access_threshold(1).unwrap();
    let rows = found_rows(table, &pool, &keys);
    for (key, row) in rows.chunks_exact(DIM).enumerate() {
        let applied = shared.applied[key].load(SeqCst);
        assert_eq!(check(key as i64, row, "hot"), applied, "updates of {key}");
    }
    // Nothing is in flight: all that is known goes, and all memory of rows.
    let now = shared.clock.fetch_add(2 * i64::from(STALE), SeqCst) + 2 * i64::from(STALE);
    let limits = thresholds(1, Some(STALE));
    table
        .observe(None, &pool, Ids::I64(&[-1]), 1, Some(now), limits, &mut [0])
        .unwrap();
    assert_eq!(table.evict().unwrap().1, 0);
    assert_eq!((table.len(), table.memory().rows_bytes), (0, 0));
    table.stats().tier
}

/// Every row is its key's, and no key comes twice.
fn expect_rows(export: &crate::singles::Export, who: &str) {
    let keys: HashSet<i64> = export.keys.iter().copied().collect();
    assert_eq!(keys.len(), export.keys.len(), "{who}: a key comes twice");
    for (&key, row) in export.keys.iter().zip(export.embedding.chunks_exact(DIM)) {
        check(key, row, who);
    }
}

/// [`expect_rows`], and the index has these keys, each with a row of its own.
fn expect_sound(table: &Table, who: &str) {
    let export = table.export().unwrap();
    expect_rows(&export, who);
    assert_eq!(export.keys.len() as u64, table.len(), "{who}: rows");
    let mut inverse = vec![0; export.keys.len()];
    let ids = Ids::I64(&export.keys);
    let pool = Pool::new(1).unwrap();
    let offsets = table
        .id_offset(&pool, ids, false, None, &mut inverse)
        .unwrap();
    let different: HashSet<i64> = offsets.iter().copied().collect();
    assert_eq!(different.len(), export.keys.len(), "{who}: shared rows");
}

/// Exports and lookups beside an assignment of new keys gave rows that the keys start with.
fn an_assignment_is_seen_whole(table: &Table) {
    let keys: Vec<i64> = (1000..1400).collect();
    let (pool, done) = (Pool::new(1).unwrap(), AtomicBool::new(false));
    // Zeros are what rows start with.
    let rows = vec![1.0; keys.len() * DIM];
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = 0;
                    while !done.load(SeqCst) {
                        let rows = table.export().unwrap();
                        let starts = rows.embedding.iter().filter(|&&one| one == 0.0).count();
                        assert_eq!((starts, rows.keys.len() % keys.len()), (0, 0));
                        seen += 1;
                    }
                    seen
                })
            })
            .collect();
        for _ in 0..rounds(3000) {
            table.assign(&pool, Ids::I64(&keys), &rows).unwrap();
            table.remove(Ids::I64(&keys)).unwrap();
        }
        done.store(true, SeqCst);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
}

#[test]
fn an_assignment_is_seen_whole_in_memory() {
    an_assignment_is_seen_whole(&in_memory());
}

#[test]
fn an_assignment_is_seen_whole_with_rows_on_disk() {
    an_assignment_is_seen_whole(&tiered());
}
