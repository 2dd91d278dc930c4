//! Measures the least time in which this machine's memory allows the work of a bench, as a process
//! that a bench asks for one repetition at a time.
//!
//! ```text
//! limit_bench --ids FILE --batches B --tables T --ids-of-table N --rows R --dim D
//!     --work read,update [--bag L] [--optimizer lazy_adam] [--threads 2]
//! ```
//! FILE holds int64 (B, T, N): the ids of each batch and table, below R; with `fresh` those of keys
//! that are new. A line `keyed K` on standard input runs the work of batch K with a line of an
//! index for each id, `arrays K` the same without, as if ids were places; each is answered by its
//! milliseconds. `read` copies the row of each id, or with bags adds them up, `update` runs an
//! optimizer over each distinct row, `fresh` makes rows in memory that was never touched, and with
//! `update` lets the optimizer step over each of them.

mod support {
    pub(crate) mod arguments;
    pub(crate) mod known_places;
}

use mx_rec_kernels::{Error, Pool, Result, RowOptimizer, OPTIMIZERS};
use std::io::{BufRead, Write};
use std::time::Instant;
use support::arguments::Arguments;
use support::known_places::{Batch, FreshPlaces, KnownPlaces, Traffic};

/// What the driver of the benches reads; it passes other lines by.
const PREFIX: &str = "peers: ";

fn main() -> Result<()> {
    let mut bench = Bench::from_arguments()?;
    let traffic = [true, false].map(|keyed| bench.traffic(keyed));
    let words: Vec<String> = traffic
        .iter()
        .map(|one| format!("{} {}", one.lines, one.bytes))
        .collect();
    answer(&format!("ready {}", words.join(" ")));
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Error::invalid(error.to_string()))?;
        let mut words = line.split_whitespace();
        let keyed = words.next() != Some("arrays");
        let number: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let begin = Instant::now();
        bench.step(number, keyed)?;
        answer(&format!("{:.6}", begin.elapsed().as_secs_f64() * 1e3));
    }
    Ok(())
}

fn answer(text: &str) {
    println!("{PREFIX}{text}");
    let _ = std::io::stdout().flush();
}

struct Bench {
    pool: Pool,
    places: KnownPlaces,
    batches: Vec<Batch>,
    fresh: Option<FreshPlaces>,
    /// Batches of new keys that have room, and those that are made.
    room: usize,
    made: usize,
    optimizer: Option<Box<dyn RowOptimizer>>,
    reads: bool,
    bag: usize,
    out: Vec<f32>,
    gradients: Vec<f32>,
    ids: usize,
}

impl Bench {
    fn from_arguments() -> Result<Bench> {
        let arguments = Arguments::of_process();
        let missing = |name: &str| Error::invalid(format!("limit_bench needs {name}"));
        let number = |name: &'static str| match arguments.number(name, 0, 0) {
            0 => Err(missing(name)),
            number => Ok(number),
        };
        let (batches, tables) = (number("--batches")?, number("--tables")?);
        let (of_table, rows) = (number("--ids-of-table")?, number("--rows")?);
        let dim = number("--dim")?;
        let bag = arguments.number("--bag", 1, 1).max(1);
        let pool = Pool::new(arguments.number("--threads", 2, 2))?;
        let path = arguments.text("--ids").ok_or_else(|| missing("--ids"))?;
        let ids = std::fs::read(path)
            .map_err(|error| Error::invalid(error.to_string()).with("path", path))?;
        let ids: Vec<usize> = ids
            .as_chunks::<8>()
            .0
            .iter()
            .map(|&bytes| i64::from_le_bytes(bytes) as usize)
            .collect();
        let count = tables * of_table;
        if ids.len() != batches * count {
            return Err(Error::invalid("the file of ids has another size")
                .with("ids", ids.len())
                .with("expected", batches * count));
        }
        let work = arguments.text("--work").unwrap_or("read");
        let has = |what: &str| work.split(',').any(|one| one == what);
        let optimizer = match has("update") {
            true => Some(optimizer(
                arguments.text("--optimizer").unwrap_or_default(),
            )?),
            false => None,
        };
        let slots = optimizer.as_ref().map_or(0, |one| one.slots().len());
        let width = dim * (1 + slots);
        let places = match has("fresh") {
            true => KnownPlaces::index_of(rows * tables),
            false => KnownPlaces::new(rows * tables, dim, width),
        };
        let batches: Vec<Batch> = ids
            .chunks_exact(count)
            .map(|batch| {
                let rows = batch.iter().enumerate().map(|(at, &id)| {
                    // Rows made anew have places behind each other in memory of their own.
                    at / of_table * rows + id % rows
                });
                places.batch(rows)
            })
            .collect();
        // Each form of each repetition makes its own rows.
        let room = 2 * batches.len();
        Ok(Bench {
            pool,
            places,
            fresh: has("fresh").then(|| FreshPlaces::new(room * count, width)),
            room,
            made: 0,
            optimizer,
            reads: has("read"),
            bag,
            out: vec![0.0; count / bag * dim],
            gradients: vec![1e-3; count / bag * dim],
            batches,
            ids: count,
        })
    }

    fn step(&mut self, number: usize, keyed: bool) -> Result<()> {
        // The two forms never meet rows that the other has just brought into the cache.
        let shift = if keyed { 0 } else { self.batches.len() / 2 };
        let batch = &self.batches[(number + shift) % self.batches.len()];
        if let Some(fresh) = &mut self.fresh {
            if self.made == self.room {
                return Err(Error::invalid(
                    "each batch of new keys can be made once a form",
                ));
            }
            self.made += 1;
            let index = keyed.then_some((&mut self.places, batch));
            let update = self.optimizer.as_deref();
            let update = update.map(|optimizer| (optimizer, self.gradients.as_slice()));
            fresh.make(&self.pool, self.ids, index, update);
            return Ok(());
        }
        // The line of the index that a read has brought serves the update as well.
        let index = keyed;
        if self.reads {
            let (out, bag) = (&mut self.out, self.bag);
            self.places.read(&self.pool, batch, index, bag, out);
        }
        if let Some(optimizer) = self.optimizer.as_deref() {
            let index = index && !self.reads;
            let gradients = &self.gradients;
            self.places
                .update(&self.pool, batch, index, self.bag, gradients, optimizer);
        }
        Ok(())
    }

    /// What a repetition moves, the mean of all batches.
    fn traffic(&self, keyed: bool) -> Traffic {
        let mut all = Traffic::default();
        let mut add = |one: Traffic| {
            all.lines += one.lines;
            all.bytes += one.bytes;
        };
        for batch in &self.batches {
            if let Some(fresh) = &self.fresh {
                add(fresh.traffic(self.ids, keyed.then_some(batch)));
                continue;
            }
            if self.reads {
                add(self.places.traffic_of_reads(batch, keyed, self.bag));
            }
            if self.optimizer.is_some() {
                let index = keyed && !self.reads;
                add(self.places.traffic_of_updates(batch, index, self.bag));
            }
        }
        Traffic {
            lines: all.lines / self.batches.len(),
            bytes: all.bytes / self.batches.len(),
        }
    }
}

fn optimizer(name: &str) -> Result<Box<dyn RowOptimizer>> {
    let numbers: &[f32] = match name {
        "lazy_adam" => &[0.01, 0.9, 0.999, 0.9, 0.999, 1e-8],
        "adagrad" => &[0.01, 0.1],
        "ftrl" => &[0.01, -0.5, 0.1, 0.0, 0.0, 0.0],
        "momentum" => &[0.01, 0.9],
        _ => &[0.01, 0.0],
    };
    match OPTIMIZERS.iter().find(|one| one.name == name) {
        Some(one) => one.step(numbers),
        None => Err(Error::invalid("no such optimizer").with("optimizer", name)),
    }
}
