//! Distinct keys by the part of the table that holds them, and rows that come back from the parts.

use super::distinct::{distinct, Scratch, Wanted};
use super::restore::out_of_range;
use crate::halves::unpack;
use crate::index::Index;
use crate::keeper::Keeper;
use crate::partition::{check_parts, part_of};
use crate::pool::{ranges, split_mut};
use crate::simd::Level;
use crate::{Error, Ids, Pool, Result, RowDtype};

/// Working memory that is kept for later batches, at most so many pieces of at most so many bytes
/// in all.
const KEPT: (usize, usize) = (4, 256 << 20);

/// A thread should have at least so many ids.
const LEAST: usize = 1 << 14;

/// A thread should copy at least so many floats.
const LEAST_FLOATS: usize = 1 << 15;

/// Makes batches distinct and splits them by part, without a table.
pub struct Splitter {
    /// No key has a row here: batches are made distinct as for a table.
    index: Index,
    scratch: Keeper<Scratch>,
}

impl std::fmt::Debug for Splitter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Splitter").finish_non_exhaustive()
    }
}

/// The distinct keys of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitKeys {
    /// Those of the first part, then those of the second, and so on; within a part in order of
    /// first occurrence.
    pub keys: Vec<i64>,
    /// How many each part has.
    pub counts: Vec<usize>,
}

impl Splitter {
    /// One that keeps no working memory yet.
    ///
    /// # Errors
    /// `ResourceExhausted` without memory.
    pub fn new() -> Result<Splitter> {
        Ok(Splitter {
            index: Index::new(1)?,
            scratch: Keeper::new(KEPT.0, KEPT.1),
        })
    }

    /// [`Splitter::split`] of several batches, each ids and their places. Small batches are worked
    /// on at the same time.
    ///
    /// # Errors
    /// That of the first batch that has one.
    pub fn split_each(
        &self,
        pool: &Pool,
        batches: Vec<(Ids<'_>, &mut [i32])>,
        parts: u32,
    ) -> Result<Vec<SplitKeys>> {
        let mut found: Vec<SplitKeys> = Vec::new();
        found.resize_with(batches.len(), SplitKeys::default);
        let total = batches.iter().map(|(ids, _)| ids.len()).sum();
        let is_large = |ids: &Ids<'_>| ids.len() >= 2 * LEAST;
        let work: Vec<_> = batches.into_iter().zip(&mut found).collect();
        if pool.parts(total, LEAST) == 1 || work.iter().any(|((ids, _), _)| is_large(ids)) {
            for ((ids, places), found) in work {
                *found = self.split(pool, ids, parts, places)?;
            }
        } else {
            let alone = Pool::alone();
            pool.try_each(work, |((ids, places), found)| {
                *found = self.split(&alone, ids, parts, places)?;
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// De-duplicates `ids` and sorts the distinct keys by part. `places[i]` becomes the place of
    /// `ids[i]` among them, or -1 for padding.
    ///
    /// # Errors
    /// `InvalidArgument` if `places` is not as long as `ids`, for 2^31 ids or more, and for a
    /// number of parts that is none.
    pub fn split(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        parts: u32,
        places: &mut [i32],
    ) -> Result<SplitKeys> {
        check_parts(parts)?;
        if places.len() != ids.len() || i32::try_from(ids.len()).is_err() {
            return Err(
                Error::invalid("places must be as many as ids, and below 2^31")
                    .with("places", places.len())
                    .with("ids", ids.len()),
            );
        }
        let mut scratch = self.scratch.take(|_| true).unwrap_or_default();
        let room = |n: usize| vec![0; n];
        let found = distinct(
            pool,
            &self.index,
            ids,
            Wanted::Occurrences,
            &mut scratch,
            places,
            room,
        );
        self.scratch.keep(scratch);
        let (listed, _) = found.list;
        let parts_of: Vec<u32> = listed.iter().map(|&key| part_of(key, parts)).collect();
        let mut counts = vec![0; parts as usize];
        parts_of.iter().for_each(|&part| counts[part as usize] += 1);
        let mut next: Vec<usize> = counts
            .iter()
            .scan(0, |end, count| {
                let start = *end;
                *end += count;
                Some(start)
            })
            .collect();
        let mut keys = vec![0; listed.len()];
        let mut moved = vec![0_i32; listed.len()];
        for ((&key, &part), moved) in listed.iter().zip(&parts_of).zip(&mut moved) {
            let place = &mut next[part as usize];
            keys[*place] = key;
            *moved = *place as i32;
            *place += 1;
        }
        if parts > 1 {
            let bounds = ranges(places.len(), pool.parts(places.len(), LEAST));
            pool.each(split_mut(places, 1, &bounds), |places| {
                for place in places.iter_mut().filter(|place| **place >= 0) {
                    *place = moved[*place as usize];
                }
            });
        }
        Ok(SplitKeys { keys, counts })
    }
}

/// One lookup whose rows come back from the parts.
#[derive(Debug)]
pub struct StitchTo<'a> {
    /// Floats of a row.
    pub dim: usize,
    /// As what the parts send them: [`pack_rows`](crate::pack_rows).
    pub dtype: RowDtype,
    /// How many rows each part sends, as [`SplitKeys::counts`].
    pub counts: &'a [i64],
    /// For each id the place of its key, as [`Splitter::split`] gives it; -1 gives zeros.
    pub places: &'a [i32],
    /// A row for each id.
    pub out: &'a mut [f32],
}

/// Copies rows to ids. `sent` are what the parts sent, one behind the other: each sent the rows of
/// the first lookup, then those of the second, and so on. Small lookups are worked on at the same
/// time.
///
/// # Errors
/// `InvalidArgument` if the lookups do not have as many counts each, for a count below 0, for
/// another number of floats than the counts ask for, and for a place that is none. The outputs are
/// then unspecified.
pub fn stitch(pool: &Pool, sent: &[f32], lookups: Vec<StitchTo<'_>>) -> Result<()> {
    let parts = lookups.first().map_or(0, |one| one.counts.len());
    let mut sizes = Vec::with_capacity(parts * lookups.len());
    let mut expected = 0_usize;
    for part in 0..parts {
        for lookup in &lookups {
            let words = lookup.dtype.words(lookup.dim);
            let size = count_of(lookup.counts, part)?.saturating_mul(words);
            expected = expected.saturating_add(size);
            sizes.push(size);
        }
    }
    if lookups.iter().any(|one| one.counts.len() != parts) || expected != sent.len() {
        return Err(
            Error::invalid("the rows of all parts must be as many as their counts say")
                .with("floats", sent.len())
                .with("expected", expected),
        );
    }
    let mut rows: Vec<Vec<&[f32]>> = lookups.iter().map(|_| Vec::new()).collect();
    let mut rest = sent;
    for (at, size) in sizes.into_iter().enumerate() {
        let of = at % lookups.len();
        let (own, behind) = rest.split_at_checked(size).unwrap_or_default();
        let words = lookups[of].dtype.words(lookups[of].dim);
        rows[of].extend(own.chunks_exact(words.max(1)));
        rest = behind;
    }
    let floats: usize = lookups.iter().map(|lookup| lookup.out.len()).sum();
    let threads = pool.parts(floats, LEAST_FLOATS);
    let level = Level::detect();
    let mut work = Vec::new();
    for (lookup, rows) in lookups.into_iter().zip(&rows) {
        let (dim, dtype) = (lookup.dim, lookup.dtype);
        let (places, out) = (lookup.places, lookup.out);
        if dim == 0 || places.len().checked_mul(dim) != Some(out.len()) {
            return Err(Error::invalid("a lookup needs dim floats for each id")
                .with("ids", places.len())
                .with("dim", dim)
                .with("floats", out.len()));
        }
        // Of one large lookup a range of ids for each thread.
        let bounds = ranges(places.len(), pool.parts(out.len(), LEAST_FLOATS));
        for (range, out) in bounds.iter().cloned().zip(split_mut(out, dim, &bounds)) {
            let unpack = move |row: &[f32], out: &mut [f32]| unpack(level, dtype, row, out);
            work.push((rows, dim, &places[range], out, unpack));
        }
    }
    if threads == 1 {
        return work.into_iter().try_for_each(stitch_some);
    }
    pool.try_each(work, stitch_some)
}

/// Copies rows to some of the ids of a lookup: its rows, dim, places and room, and how one is read.
fn stitch_some<U: Fn(&[f32], &mut [f32])>(
    (rows, dim, places, out, unpack): (&Vec<&[f32]>, usize, &[i32], &mut [f32], U),
) -> Result<()> {
    for (&place, out) in places.iter().zip(out.chunks_exact_mut(dim)) {
        match usize::try_from(place)
            .ok()
            .and_then(|place| rows.get(place))
        {
            Some(row) => unpack(row, out),
            None if place == -1 => out.fill(0.0),
            None => return Err(out_of_range(place, rows.len())),
        }
    }
    Ok(())
}

fn count_of(counts: &[i64], part: usize) -> Result<usize> {
    let count = counts.get(part).copied().unwrap_or(-1);
    usize::try_from(count).map_err(|_| {
        Error::invalid("each part needs a count, 0 or more")
            .with("part", part)
            .with("count", count)
    })
}

/// The rows of one part among `rows (u, dim)`, which are in the order of [`SplitKeys::keys`].
///
/// # Errors
/// `InvalidArgument` if the counts, 0 or more each, are not those of the rows, or there is no such
/// part.
pub fn rows_of_part<'a>(
    rows: &'a [f32],
    dim: usize,
    counts: &[i64],
    part: usize,
) -> Result<&'a [f32]> {
    let (mut before, mut all) = (0_usize, 0_usize);
    for at in 0..counts.len() {
        let count = count_of(counts, at)?;
        all = all.saturating_add(count);
        before = before.saturating_add(if at < part { count } else { 0 });
    }
    let count = count_of(counts, part)?;
    let floats = all.checked_mul(dim);
    if floats != Some(rows.len()) {
        return Err(Error::invalid("the counts must be those of the rows")
            .with("floats", rows.len())
            .with("rows", all)
            .with("dim", dim));
    }
    Ok(&rows[before * dim..(before + count) * dim])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PADDING;

    fn ids() -> Vec<i64> {
        let one = |at: i64| match at % 17 {
            0 => PADDING,
            _ => at * at % 3_331 - 900,
        };
        (0..70_000).map(one).collect()
    }

    #[test]
    fn keys_are_distinct_in_their_parts_and_each_id_finds_its_own() -> Result<()> {
        let splitter = Splitter::new()?;
        let ids = ids();
        for parts in [1, 2, 3, 8] {
            let mut of_threads = Vec::new();
            for threads in [1, 3] {
                let pool = Pool::new(threads)?;
                let mut places = vec![7; ids.len()];
                let found = splitter.split(&pool, Ids::I64(&ids), parts, &mut places)?;
                assert_eq!(found.counts.len(), parts as usize);
                let mut bound = 0;
                for (part, count) in found.counts.iter().enumerate() {
                    for &key in &found.keys[bound..bound + count] {
                        assert_eq!(part_of(key, parts) as usize, part);
                    }
                    bound += count;
                }
                assert_eq!(bound, found.keys.len());
                let mut sorted = found.keys.clone();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!(sorted.len(), bound);
                for (&id, &place) in ids.iter().zip(&places) {
                    match id {
                        PADDING => assert_eq!(place, -1),
                        _ => assert_eq!(found.keys[place as usize], id),
                    }
                }
                of_threads.push((found, places));
            }
            assert_eq!(of_threads[0], of_threads[1]);
        }
        Ok(())
    }

    #[test]
    fn batches_that_are_split_together_are_split_as_if_alone() -> Result<()> {
        let (pool, splitter) = (Pool::new(3)?, Splitter::new()?);
        let ids = ids();
        // Small ones alone, and beside a large one.
        for sizes in [&[9_000, 0, 20_000, 12_000][..], &[50, 60_000, 3_000]] {
            let starts = sizes.iter().enumerate();
            let batches: Vec<&[i64]> = starts.map(|(at, size)| &ids[at..at + size]).collect();
            let mut places: Vec<Vec<i32>> = sizes.iter().map(|&size| vec![7; size]).collect();
            let asked = batches.iter().zip(&mut places);
            let asked = asked.map(|(ids, places)| (Ids::I64(ids), &mut places[..]));
            let found = splitter.split_each(&pool, asked.collect(), 3)?;
            assert_eq!(found.len(), sizes.len());
            for ((ids, found), places) in batches.iter().zip(found).zip(places) {
                let mut alone = vec![8; ids.len()];
                let expected = splitter.split(&pool, Ids::I64(ids), 3, &mut alone)?;
                assert_eq!((found, places), (expected, alone));
            }
        }
        let mut places = [0; 3];
        let asked = vec![(Ids::I64(&ids[..3]), &mut places[..2])];
        assert!(splitter.split_each(&pool, asked, 3).is_err());
        Ok(())
    }

    #[test]
    fn a_batch_of_nothing_has_no_keys() -> Result<()> {
        let (pool, splitter) = (Pool::new(2)?, Splitter::new()?);
        for ids in [&[][..], &[PADDING, PADDING]] {
            let mut places = vec![3; ids.len()];
            let found = splitter.split(&pool, Ids::I32(&vec![-1; ids.len()]), 3, &mut places)?;
            assert_eq!((found.keys.len(), found.counts), (0, vec![0, 0, 0]));
            assert!(places.iter().all(|&place| place == -1));
        }
        Ok(())
    }

    #[test]
    fn rows_of_two_lookups_come_back_to_their_ids() -> Result<()> {
        let pool = Pool::new(2)?;
        // Two parts; lookup a has dim 1, lookup b dim 2.
        let rows = [10.0, 11.0, 20.0, 21.0, 12.0, 22.0, 23.0, 24.0, 25.0];
        let (mut a, mut b) = (vec![9.0; 4], vec![9.0; 6]);
        let lookups = vec![
            StitchTo {
                dtype: RowDtype::Float32,
                dim: 1,
                counts: &[2, 1],
                places: &[2, -1, 0, 1],
                out: &mut a,
            },
            StitchTo {
                dtype: RowDtype::Float32,
                dim: 2,
                counts: &[1, 2],
                places: &[1, 0, 2],
                out: &mut b,
            },
        ];
        stitch(&pool, &rows, lookups)?;
        assert_eq!(a, [12.0, 0.0, 10.0, 11.0]);
        assert_eq!(b, [22.0, 23.0, 20.0, 21.0, 24.0, 25.0]);
        Ok(())
    }

    #[test]
    fn lookups_that_are_stitched_by_several_threads_get_their_own_rows() -> Result<()> {
        let dim = 4;
        let rows: Vec<f32> = (0..300 * dim).map(|at| at as f32).collect();
        let places = |seed: usize, n: usize| -> Vec<i32> {
            (0..n)
                .map(|at| ((at * 7 + seed) % 101) as i32 - 1)
                .collect()
        };
        // The last one is shared among the threads.
        let all: Vec<Vec<i32>> = vec![places(1, 5_000), places(2, 4_000), places(3, 40_000)];
        let run = |threads| -> Result<Vec<Vec<f32>>> {
            let pool = Pool::new(threads)?;
            let room = all.iter().map(|places| vec![-1.0; places.len() * dim]);
            let mut outs: Vec<Vec<f32>> = room.collect();
            let lookups = all.iter().zip(&mut outs).map(|(places, out)| StitchTo {
                dtype: RowDtype::Float32,
                dim,
                counts: &[60, 40],
                places,
                out,
            });
            stitch(&pool, &rows, lookups.collect())?;
            Ok(outs)
        };
        let one = run(1)?;
        assert_eq!(one, run(3)?);
        for (lookup, (places, out)) in all.iter().zip(&one).enumerate() {
            for (&place, out) in places.iter().zip(out.chunks(dim)) {
                // Rows 0 to 179 are of the first part, 60 of each lookup.
                let row = |place: usize| match place {
                    0..60 => lookup * 60 + place,
                    _ => 180 + lookup * 40 + place - 60,
                };
                let expected = usize::try_from(place).map_or(0.0, |at| (row(at) * dim) as f32);
                assert_eq!(out[0], expected);
            }
        }
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_refused() -> Result<()> {
        let pool = Pool::new(1)?;
        let refused = |rows: &[f32], counts: &[i64], places: &[i32], named: &str| {
            let mut out = vec![0.0; places.len() * 2];
            let lookup = StitchTo {
                dtype: RowDtype::Float32,
                dim: 2,
                counts,
                places,
                out: &mut out,
            };
            let error = stitch(&pool, rows, vec![lookup]).err();
            let text = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains(named), "{text}");
        };
        refused(&[0.0; 4], &[1, 2], &[0], "expected=6");
        refused(&[0.0; 6], &[4, -1], &[0], "count=-1");
        refused(&[0.0; 6], &[1, 2], &[3], "3");
        refused(&[0.0; 6], &[1, 2], &[-2], "-2");
        refused(&[0.0; 2], &[i64::MAX, 2], &[0], "expected");
        let rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(rows_of_part(&rows, 2, &[1, 2], 1)?, &rows[2..]);
        assert_eq!(rows_of_part(&rows, 2, &[0, 3], 0)?.len(), 0);
        for (counts, part) in [(&[1, 1][..], 0), (&[1, 2], 2), (&[4, -1], 0)] {
            assert!(rows_of_part(&rows, 2, counts, part).is_err());
        }
        Ok(())
    }
}
