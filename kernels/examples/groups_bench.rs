//! Measures what each part of a step on many tables takes, engine alone, one JSON line per part.
//!
//! ```text
//! cargo run --release -p mx_rec_kernels --example groups_bench -- [--quick] [--threads N]
//!     [--reps N] [--rows N] [--dim N] [--ids N] [--tables N] [--between MB]
//! ```
//! `ours` is the median of milliseconds for one batch of `ids` ids in each of all tables, drawn by
//! Zipf's law (exponent 1.05). Before each part `between` megabytes of other memory are read, as
//! other work of a step does.

#[expect(dead_code, reason = "other benches use the rest")]
mod support;

use mx_rec_kernels::{
    Absent, Columns, Ids, IdsOf, KeysOf, LazyAdam, Lease, LookupGradients, Pool, Result, RowsOf,
    Table,
};
use std::hint::black_box;
use std::sync::Arc;
use support::arguments::Arguments;
use support::{draw, fill, key, line, median, table, time};

/// Batches that are drawn.
const BATCHES: usize = 64;

fn main() -> Result<()> {
    let arguments = Arguments::of_process();
    let number = |name: &str, full, small| arguments.number(name, full, small);
    let (rows, dim) = (number("--rows", 200_000, 2_000), number("--dim", 16, 16));
    let (ids, tables) = (number("--ids", 2048, 256), number("--tables", 26, 4));
    let (reps, between) = (number("--reps", 256, 5), number("--between", 0, 0));
    let pool = Pool::new(number("--threads", 2, 2))?;
    let cumulated = cumulated(rows);
    let mut sides = Vec::new();
    for at in 0..tables {
        sides.push(Side::new(&pool, at, (rows, dim, ids), &cumulated)?);
    }
    let mut work = Work {
        pool: &pool,
        dim,
        optimizer: LazyAdam::new(0.01, 0.9, 0.999, 1e-8, 0.9, 0.999)?,
        out: vec![0.0; tables * ids * dim],
        inverse: vec![vec![0; ids]; tables],
        leases: Vec::new(),
    };
    let parts: [(&str, Part<'_>); 5] = [
        ("resolve", |work, sides, at| work.resolve(sides, at)),
        ("embed", |work, sides, at| work.embed(sides, at)),
        ("gradient", |work, sides, at| work.gradient(sides, at)),
        ("update", |work, sides, at| work.update(sides, at)),
        ("find", |work, sides, at| work.find(sides, at)),
    ];
    let mut times = vec![Vec::new(); parts.len()];
    let other = vec![1_u8; between << 20];
    for rep in 0..reps + BATCHES {
        for ((_, part), times) in parts.iter().zip(&mut times) {
            black_box(
                other
                    .iter()
                    .step_by(64)
                    .map(|&one| u64::from(one))
                    .sum::<u64>(),
            );
            let taken = time(|| part(&mut work, &sides, rep % BATCHES));
            if rep >= BATCHES {
                times.push(taken);
            }
        }
    }
    for ((name, _), times) in parts.iter().zip(&mut times) {
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        let what = format!("{tables} tables, {ids} ids, dim {dim}; the fastest {best:.4}");
        line(
            name,
            &what,
            median(times),
            f64::NAN,
            f64::NAN,
            f64::NAN,
            true,
        );
    }
    Ok(())
}

type Part<'a> = fn(&mut Work<'a>, &[Side], usize) -> Result<()>;

/// A table and batches of ids for it.
struct Side {
    table: Arc<Table>,
    keys: Vec<Vec<i64>>,
}

impl Side {
    fn new(
        pool: &Pool,
        at: usize,
        (rows, dim, ids): (usize, usize, usize),
        cumulated: &[f64],
    ) -> Result<Side> {
        let table = table(dim, rows as u64 + rows as u64 / 16)?;
        fill(&table, pool, 0, rows, 65_536, |_| {})?;
        let all = cumulated.last().copied().unwrap_or(1.0);
        // Popular rows lie anywhere.
        let step = 7919 + 2 * at;
        let of_batch = |batch: usize| {
            let drawn = draw((at * BATCHES + batch) as u64 + 1, ids, 1 << 40);
            let keys = drawn.iter().map(|&one| {
                let wanted = one as f64 / (1_u64 << 40) as f64 * all;
                let rank = cumulated.partition_point(|&upto| upto < wanted);
                key((rank * step % rows) as i64)
            });
            keys.collect()
        };
        let keys = (0..BATCHES).map(of_batch).collect();
        let table = Arc::new(table);
        Ok(Side { table, keys })
    }
}

/// Zipf's weights of the ranks up to each.
fn cumulated(rows: usize) -> Vec<f64> {
    let mut sum = 0.0;
    let weights = (1..=rows).map(|rank| {
        sum += (rank as f64).powf(-1.05);
        sum
    });
    weights.collect()
}

/// What the parts of a step share.
struct Work<'a> {
    pool: &'a Pool,
    dim: usize,
    optimizer: LazyAdam,
    out: Vec<f32>,
    inverse: Vec<Vec<i32>>,
    leases: Vec<Lease>,
}

impl Work<'_> {
    fn resolve(&mut self, sides: &[Side], batch: usize) -> Result<()> {
        self.leases.clear();
        let group = sides.iter().zip(&mut self.inverse).map(|(side, inverse)| {
            let ids = Ids::I64(&side.keys[batch]);
            IdsOf {
                table: &side.table,
                ids,
                inverse,
            }
        });
        self.leases = Table::lease_many(self.pool, group.collect(), None)?;
        Ok(())
    }

    fn embed(&mut self, sides: &[Side], _: usize) -> Result<()> {
        let members = sides.iter().zip(&self.leases).zip(&self.inverse);
        let group: Vec<RowsOf<'_>> = members
            .map(|((side, lease), inverse)| RowsOf {
                table: &side.table,
                offsets: lease.offsets(),
                inverse,
                bags: None,
            })
            .collect();
        Table::embed_side_by_side(self.pool, &group, &mut self.out)
    }

    /// Writes the gradients as other work of a step does: cut by rows.
    fn gradient(&mut self, _: &[Side], _: usize) -> Result<()> {
        let half = self.out.len().div_ceil(2).max(1);
        self.pool.try_each(self.out.chunks_mut(half), |floats| {
            floats.iter_mut().for_each(|one| *one *= 0.9999);
            Ok(())
        })
    }

    fn update(&mut self, sides: &[Side], _: usize) -> Result<()> {
        let (dim, width) = (self.dim, self.dim * sides.len());
        let members = sides
            .iter()
            .zip(&self.leases)
            .zip(&self.inverse)
            .enumerate();
        let group: Result<Vec<_>> = members
            .map(|(at, ((side, lease), inverse))| {
                let lookup = LookupGradients {
                    offsets: lease.offsets(),
                    inverse,
                    grads: Columns::of(&self.out, width, at * dim, dim)?,
                    bags: None,
                };
                Ok((&*side.table, lookup))
            })
            .collect();
        Table::apply_lookups_many(self.pool, &group?, &self.optimizer)?;
        Ok(())
    }

    fn find(&mut self, sides: &[Side], batch: usize) -> Result<()> {
        let group: Vec<KeysOf<'_>> = sides
            .iter()
            .map(|side| KeysOf {
                table: &side.table,
                ids: Ids::I64(&side.keys[batch]),
                absent: Absent::Zeros,
                bags: None,
            })
            .collect();
        let floats = self.out.len() / sides.len();
        let outs = self.out.chunks_mut(floats.max(1)).collect();
        Table::find_many(self.pool, &group, outs)
    }
}
