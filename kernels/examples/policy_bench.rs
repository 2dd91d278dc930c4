//! Which rows to keep in memory: misses of a batch by policy, on drawn batches.
//!
//!     cargo run --release -p mx_rec_kernels --example policy_bench -- \
//!         [ROWS [SHARE [ZIPF [BATCH [PINNED]]]]]
//!
//! The engine's policy has the rows of PINNED batches pinned, which are ahead of the step.

use mx_rec_kernels::tier::Policy;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Batches before the measurement, and in it.
const WARM: usize = 100;
const MEASURED: usize = 60;

/// What keeps rows in frames.
trait Cache {
    /// A batch of distinct rows: all of them are in frames afterwards. How many were not before.
    fn batch(&mut self, rows: &[u32]) -> usize;
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = |default: f64| {
        arguments
            .next()
            .map_or(default, |n| n.parse().expect("a number"))
    };
    let (rows, share) = (next(2e6) as usize, next(0.1));
    let (exponent, batch) = (next(1.05), next(65_536.0) as usize);
    let ahead = next(1.0) as usize;
    let frames = (rows as f64 * share) as usize;
    println!("{rows} rows, {frames} frames, Zipf {exponent}, batches of {batch}");
    println!("| policy | misses of a batch | of a batch after a scan | ns a distinct row |");
    println!("|---|---|---|---|");
    let draw = Zipf::new(rows, exponent);
    let policies: Vec<(&str, Box<dyn Cache>)> = vec![
        (
            "ideal: the most frequent rows",
            Box::new(Ideal::new(&draw, frames)),
        ),
        ("FIFO", Box::new(Clock::new(frames, 0))),
        ("CLOCK, one bit", Box::new(Clock::new(frames, 1))),
        ("CLOCK, two bits", Box::new(Clock::new(frames, 3))),
        ("LRU", Box::new(Lru::new(frames))),
        ("S3-FIFO (Policy)", Box::new(Framed::new(frames, ahead))),
    ];
    for (name, mut cache) in policies {
        let mut seed = 1;
        let mut distinct = 0;
        let (mut missed, mut took) = (0, Duration::ZERO);
        for number in 0..WARM + MEASURED {
            let rows = draw.batch(batch, &mut seed);
            let start = Instant::now();
            let misses = cache.batch(&rows);
            if number >= WARM {
                took += start.elapsed();
                missed += misses;
                distinct += rows.len();
            }
        }
        let piece = (frames / 20).max(1);
        // Every row once, as an export or a pass over cold data does.
        for start in (0..rows).step_by(piece) {
            let scan: Vec<u32> = (start..rows.min(start + piece))
                .map(|row| row as u32)
                .collect();
            cache.batch(&scan);
        }
        let after: usize = (0..4)
            .map(|_| cache.batch(&draw.batch(batch, &mut seed)))
            .sum();
        println!(
            "| {name} | {} of {} | {} | {:.0} |",
            missed / MEASURED,
            distinct / MEASURED,
            after / 4,
            took.as_nanos() as f64 / distinct as f64
        );
    }
}

/// Draws ranks by Zipf's law, given as scattered rows.
struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    fn new(rows: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=rows).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf {
            sums: sums.collect(),
        }
    }

    /// The row of a rank: scattered, so that no policy gains by neighbourhood.
    fn row(&self, rank: usize) -> u32 {
        // A prime, so that every rank has a row of its own.
        (rank as u64 * 2_654_435_761 % self.sums.len() as u64) as u32
    }

    /// The distinct rows of a batch, ascending.
    fn batch(&self, n: usize, seed: &mut u64) -> Vec<u32> {
        let total = self.sums[self.sums.len() - 1];
        let mut rows: Vec<u32> = (0..n)
            .map(|_| {
                *seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695);
                let at = (*seed >> 11) as f64 / (1_u64 << 53) as f64 * total;
                self.row(self.sums.partition_point(|&sum| sum < at))
            })
            .collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }
}

/// Knows which rows are the most frequent, and keeps them.
struct Ideal {
    kept: Vec<bool>,
}

impl Ideal {
    fn new(draw: &Zipf, frames: usize) -> Ideal {
        let mut kept = vec![false; draw.sums.len()];
        for rank in 0..frames {
            kept[draw.row(rank) as usize] = true;
        }
        Ideal { kept }
    }
}

impl Cache for Ideal {
    fn batch(&mut self, rows: &[u32]) -> usize {
        rows.iter().filter(|&&row| !self.kept[row as usize]).count()
    }
}

/// Frames on a circle; a row that was used since the hand passed has another turn for each use, up
/// to `most`.
struct Clock {
    frames: Vec<(u32, u8)>,
    places: HashMap<u32, usize>,
    size: usize,
    hand: usize,
    most: u8,
}

impl Clock {
    fn new(size: usize, most: u8) -> Clock {
        Clock {
            frames: Vec::new(),
            places: HashMap::new(),
            size,
            hand: 0,
            most,
        }
    }
}

impl Cache for Clock {
    fn batch(&mut self, rows: &[u32]) -> usize {
        let mut new = Vec::new();
        for &row in rows {
            match self.places.get(&row) {
                Some(&at) => self.frames[at].1 = (self.frames[at].1 + 1).min(self.most),
                None => new.push(row),
            }
        }
        let pinned: HashMap<u32, ()> = rows.iter().map(|&row| (row, ())).collect();
        for &row in &new {
            if self.frames.len() < self.size {
                self.places.insert(row, self.frames.len());
                self.frames.push((row, 0));
                continue;
            }
            loop {
                let at = self.hand;
                self.hand = (at + 1) % self.size;
                let (old, count) = &mut self.frames[at];
                if *count > 0 {
                    *count -= 1;
                } else if !pinned.contains_key(old) {
                    self.places.remove(old);
                    self.places.insert(row, at);
                    self.frames[at] = (row, 0);
                    break;
                }
            }
        }
        new.len()
    }
}

/// The row that was not used for the longest time goes.
struct Lru {
    size: usize,
    used: HashMap<u32, u32>,
    queue: VecDeque<(u32, u32)>,
    now: u32,
}

impl Lru {
    fn new(size: usize) -> Lru {
        Lru {
            size,
            used: HashMap::new(),
            queue: VecDeque::new(),
            now: 0,
        }
    }
}

impl Cache for Lru {
    fn batch(&mut self, rows: &[u32]) -> usize {
        self.now += 1;
        let mut misses = 0;
        for &row in rows {
            misses += usize::from(self.used.insert(row, self.now).is_none());
            self.queue.push_back((row, self.now));
        }
        while self.used.len() > self.size {
            let (row, when) = self.queue.pop_front().expect("as many as rows");
            if self.used.get(&row) == Some(&when) {
                self.used.remove(&row);
            }
        }
        misses
    }
}

/// The engine's own policy, with frames.
struct Framed {
    policy: Policy,
    places: HashMap<u32, u32>,
    rows: Vec<u32>,
    /// The batch up to which each frame is pinned.
    pinned: Vec<u32>,
    now: u32,
    ahead: u32,
}

impl Framed {
    fn new(size: usize, ahead: usize) -> Framed {
        Framed {
            policy: Policy::new(),
            places: HashMap::new(),
            rows: Vec::new(),
            pinned: vec![0; size],
            now: 0,
            ahead: ahead as u32,
        }
    }
}

impl Cache for Framed {
    fn batch(&mut self, rows: &[u32]) -> usize {
        let mut new = Vec::new();
        self.now += 1;
        let (until, now) = (self.now + self.ahead, self.now);
        for &row in rows {
            match self.places.get(&row) {
                Some(&frame) => {
                    self.policy.touch(frame);
                    self.pinned[frame as usize] = until;
                }
                None => new.push(row),
            }
        }
        let free = self.pinned.len() - self.rows.len();
        let mut frames = Vec::new();
        let wanted = new.len().saturating_sub(free);
        self.policy.victims(
            wanted,
            |frame| self.pinned[frame as usize] > now,
            &mut frames,
        );
        assert_eq!(frames.len(), wanted);
        for &frame in &frames {
            self.places.remove(&self.rows[frame as usize]);
        }
        while frames.len() < new.len() {
            frames.push(self.rows.len() as u32);
            self.rows.push(0);
        }
        for (&row, frame) in new.iter().zip(frames) {
            self.rows[frame as usize] = row;
            self.places.insert(row, frame);
            self.pinned[frame as usize] = until;
            self.policy.admit(frame, row);
        }
        new.len()
    }
}
