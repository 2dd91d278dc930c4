//! Measures what each part of a step with bags takes, engine alone, one JSON line per part.
//!
//! ```text
//! cargo run --release -p mx_rec_kernels --example bags_bench -- [--quick] [--threads N]
//!     [--reps N] [--rows N] [--dim N] [--bags N] [--length N] [--tables N] [--only NAME]
//!     [--exponent F] [--far]
//! ```
//! `ours` is the median of milliseconds for one batch in all tables, ids drawn by Zipf's law
//! (exponent 1.05; 0 draws all rows alike), keys from 0 on or, with `--far`, anywhere; `peer` is
//! the sum of the same rows in arrays, at places that are known.

#[expect(dead_code, reason = "other benches use the rest")]
mod support;

#[expect(
    dead_code,
    reason = "programs share the file, and each uses some of it"
)]
#[path = "../tests/singles/mod.rs"]
mod singles;

use crate::singles::Singles as _;
use mx_rec_kernels::{
    Absent, Bags, Columns, Ids, KeysOf, LazyAdam, Lease, LookupGradients, Pool, Result,
    RowOptimizer, RowsOf, Table,
};
use std::hint::black_box;
use std::sync::Arc;
use support::arguments::Arguments;
use support::{key, line, median, table, time, zipf};

/// Batches that are drawn: so many that their rows do not stay in the caches.
const BATCHES: usize = 32;

fn main() -> Result<()> {
    let arguments = Arguments::of_process();
    let number = |name: &str, full, small| arguments.number(name, full, small);
    let (rows, dim) = (number("--rows", 200_000, 20_000), number("--dim", 32, 32));
    let (bags, length) = (number("--bags", 4096, 256), number("--length", 20, 20));
    let (tables, reps) = (number("--tables", 4, 2), number("--reps", 41, 5));
    let pool = Pool::new(number("--threads", 2, 2))?;
    let only = arguments.text("--only");
    let n = bags * length;
    let exponent = arguments.text("--exponent");
    let exponent = exponent.map_or(Ok(1.05), str::parse).unwrap_or(1.05);
    let far = arguments.has("--far");
    let drawn = zipf(exponent, tables * BATCHES, n, rows);
    let mut sides = Vec::new();
    for of_table in drawn.chunks(BATCHES) {
        sides.push(Side::new(&pool, rows, dim, of_table, far)?);
    }
    let ends: Vec<i64> = (1..=bags).map(|bag| (bag * length) as i64).collect();
    let described = Bags {
        ends: &ends,
        ..Bags::default()
    };
    let optimizer = LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.9, 0.999)?;
    let mut work = Work {
        pool: &pool,
        bags: &described,
        dim,
        optimizer: &optimizer,
        out: vec![0.0; bags * dim],
        inverse: vec![vec![0; n]; tables],
        leases: Vec::new(),
    };
    let parts: [(&str, Part<'_>); 5] = [
        ("known", |work, sides, at| work.known(sides, at)),
        ("evaluation", |work, sides, at| work.evaluate(sides, at)),
        ("distinct", |work, sides, at| work.distinct(sides, at)),
        ("pooled", |work, sides, at| work.pool(sides, at)),
        ("update", |work, sides, at| work.update(sides, at)),
    ];
    let mut times = vec![Vec::new(); parts.len()];
    for rep in 0..reps + 5 {
        for ((name, part), times) in parts.iter().zip(&mut times) {
            let is_wanted = only.is_none_or(|only| only == *name) || *name == "distinct";
            let taken = match is_wanted {
                true => time(|| part(&mut work, &sides, rep % BATCHES)),
                false => 0.0,
            };
            if rep >= 5 {
                times.push(taken);
            }
        }
    }
    let medians: Vec<f64> = times.iter_mut().map(|times| median(times)).collect();
    for ((name, _), ours) in parts.iter().zip(&medians) {
        let peer = medians[0];
        line("bags", name, *ours, peer, peer / ours, 0.0, true);
    }
    Ok(())
}

type Part<'a> = fn(&mut Work<'a>, &[Side], usize) -> Result<()>;

/// A table, the same rows as an array, and ids.
struct Side {
    table: Arc<Table>,
    array: Vec<f32>,
    keys: Vec<Vec<i64>>,
    places: Vec<Vec<u32>>,
}

impl Side {
    fn new(pool: &Pool, rows: usize, dim: usize, drawn: &[Vec<i64>], far: bool) -> Result<Side> {
        let key = |place: i64| if far { key(place) } else { place };
        let table = table(dim, rows as u64 + rows as u64 / 16)?;
        // In an order that is not that of their numbers, nor of how often they occur.
        let order: Vec<i64> = (0..rows)
            .map(|at| key((at * 48_271 % rows) as i64))
            .collect();
        let mut inverse = vec![0; rows];
        table.id_offset(pool, Ids::I64(&order), true, None, &mut inverse)?;
        let of_batch = |batch: &Vec<i64>| batch.iter().map(|&place| place as u32).collect();
        let keys = |batch: &Vec<i64>| batch.iter().map(|&place| key(place)).collect();
        Ok(Side {
            table: Arc::new(table),
            array: vec![0.5; rows * dim],
            keys: drawn.iter().map(keys).collect(),
            places: drawn.iter().map(of_batch).collect(),
        })
    }
}

/// What the parts of a step share.
struct Work<'a> {
    pool: &'a Pool,
    bags: &'a Bags<'a>,
    dim: usize,
    optimizer: &'a dyn RowOptimizer,
    out: Vec<f32>,
    inverse: Vec<Vec<i32>>,
    leases: Vec<Lease>,
}

impl Work<'_> {
    fn known(&mut self, sides: &[Side], batch: usize) -> Result<()> {
        let (dim, length) = (self.dim, self.bags.ends[0] as usize);
        for side in sides {
            let bags = self.bags.len();
            let half = bags.div_ceil(self.pool.threads());
            let work = side.places[batch]
                .chunks(half * length)
                .zip(self.out.chunks_mut(half * dim));
            self.pool
                .try_each(work, |(places, out): (&[u32], &mut [f32])| {
                    for (bag, out) in places.chunks(length).zip(out.chunks_mut(dim)) {
                        out.fill(0.0);
                        for &place in bag {
                            let row = &side.array[place as usize * dim..][..dim];
                            out.iter_mut().zip(row).for_each(|(sum, one)| *sum += one);
                        }
                    }
                    Ok(())
                })?;
        }
        black_box(&self.out);
        Ok(())
    }

    fn evaluate(&mut self, sides: &[Side], batch: usize) -> Result<()> {
        sides.iter().try_for_each(|side| {
            let ids = Ids::I64(&side.keys[batch]);
            let keys = KeysOf {
                table: &side.table,
                ids,
                absent: Absent::Zeros,
                bags: Some(*self.bags),
            };
            Table::find_many(self.pool, &[keys], vec![&mut self.out])
        })
    }

    fn distinct(&mut self, sides: &[Side], batch: usize) -> Result<()> {
        self.leases.clear();
        for (side, inverse) in sides.iter().zip(&mut self.inverse) {
            let ids = Ids::I64(&side.keys[batch]);
            let lease = side.table.lease(self.pool, ids, None, inverse)?;
            self.leases.push(lease);
        }
        Ok(())
    }

    fn pool(&mut self, sides: &[Side], _: usize) -> Result<()> {
        for ((side, inverse), lease) in sides.iter().zip(&self.inverse).zip(&self.leases) {
            let rows = RowsOf {
                table: &side.table,
                offsets: lease.offsets(),
                inverse,
                bags: Some(*self.bags),
            };
            Table::embed_many(self.pool, &[rows], vec![&mut self.out], Vec::new())?;
        }
        Ok(())
    }

    fn update(&mut self, sides: &[Side], _: usize) -> Result<()> {
        for ((side, inverse), lease) in sides.iter().zip(&self.inverse).zip(&self.leases) {
            let lookup = LookupGradients {
                offsets: lease.offsets(),
                inverse,
                grads: Columns::all(&self.out, side.table.dim())?,
                bags: Some(*self.bags),
            };
            side.table
                .apply_lookups(self.pool, &[lookup], self.optimizer)?;
        }
        Ok(())
    }
}
