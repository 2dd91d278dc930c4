//! The work of a batch on rows whose places are known beforehand: what is left of it when nothing
//! is searched, and so the least time in which this machine's memory allows it.

use mx_rec_kernels::{Pool, Result, RowOptimizer};
use std::collections::HashMap;
use std::hint::black_box;
use std::ops::Range;

/// Floats of a cache line.
const LINE: usize = 16;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Bytes of an index a key: what the engine's takes (P11).
const INDEX_BYTES: usize = 18;

/// Rows that are on their way at a time.
const AHEAD: usize = 64;

/// The ids of a batch as places.
pub(crate) struct Batch {
    /// The row of each id.
    rows: Vec<u32>,
    /// The line of the index of each id.
    lines: Vec<u32>,
    /// The first id of each distinct row.
    first: Vec<u32>,
    /// Where the ids of each distinct row start in `same`, and the end.
    starts: Vec<u32>,
    /// Ids, those of a row together.
    same: Vec<u32>,
}

/// What a repetition does to memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    /// Cache lines at places that follow no order.
    pub(crate) lines: usize,
    /// Bytes of those lines, twice if they are written, and of what is read or written in order.
    pub(crate) bytes: usize,
}

/// Rows at known places, and an index of the size that they would need.
pub(crate) struct KnownPlaces {
    rows: Huge,
    index: Huge,
    dim: usize,
    width: usize,
    stride: usize,
}

impl KnownPlaces {
    /// `rows` rows of `dim` floats, `width` with slots.
    pub(crate) fn new(rows: usize, dim: usize, width: usize) -> KnownPlaces {
        let stride = match width <= LINE {
            true => width.next_power_of_two(),
            false => width.next_multiple_of(LINE),
        };
        let lines = (rows * INDEX_BYTES).div_ceil(LINE * 4).max(1);
        let mut all = KnownPlaces {
            rows: Huge::untouched(rows * stride),
            index: Huge::untouched(lines * LINE),
            dim,
            width,
            stride,
        };
        let small = |(at, float): (usize, &mut f32)| *float = (at % 1024) as f32 * 1e-6;
        all.rows.floats_mut().iter_mut().enumerate().for_each(small);
        all.index.floats_mut().iter_mut().for_each(|one| *one = 1.0);
        all
    }

    /// No rows, and the index of so many.
    pub(crate) fn index_of(keys: usize) -> KnownPlaces {
        let mut all = KnownPlaces::new(0, 1, 1);
        all.index = Huge::untouched((keys * INDEX_BYTES).div_ceil(LINE * 4).max(1) * LINE);
        all.index.floats_mut().iter_mut().for_each(|one| *one = 1.0);
        all
    }

    /// The places of rows, which stand for keys.
    pub(crate) fn batch(&self, rows: impl Iterator<Item = usize>) -> Batch {
        let rows: Vec<u32> = rows.map(|row| row as u32).collect();
        let lines = (self.index.len / LINE) as u64;
        let scattered = |&row: &u32| {
            let mixed = (u64::from(row) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (((mixed >> 32) * lines) >> 32) as u32
        };
        let lines = rows.iter().map(scattered).collect();
        let mut ids: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut first = Vec::new();
        for (at, &row) in (0_u32..).zip(&rows) {
            let of_row = ids.entry(row).or_default();
            if of_row.is_empty() {
                first.push(at);
            }
            of_row.push(at);
        }
        let (mut starts, mut same) = (vec![0], Vec::new());
        for &at in &first {
            same.extend(&ids[&rows[at as usize]]);
            starts.push(same.len() as u32);
        }
        Batch {
            rows,
            lines,
            first,
            starts,
            same,
        }
    }

    /// Sums the rows of each bag of `bag` ids to `out (n / bag, dim)`, or copies the row of each
    /// id where a bag is 1; with `index` reads the line of each id first.
    pub(crate) fn read(
        &self,
        pool: &Pool,
        batch: &Batch,
        index: bool,
        bag: usize,
        out: &mut [f32],
    ) {
        let dim = self.dim;
        let parts = ranges(batch.rows.len() / bag, pool.threads() * 4);
        run(
            pool,
            parts,
            out,
            |at| at * dim,
            |range, out| match (bag, dim) {
                (1, 16) => self.copy(batch, range, index, out, copy::<16>),
                (1, 32) => self.copy(batch, range, index, out, copy::<32>),
                (1, 64) => self.copy(batch, range, index, out, copy::<64>),
                (1, _) => self.copy(batch, range, index, out, |row, out| {
                    out.copy_from_slice(row)
                }),
                (_, 16) => self.sum::<16>(batch, range, index, bag, out),
                (_, 32) => self.sum::<32>(batch, range, index, bag, out),
                (_, 64) => self.sum::<64>(batch, range, index, bag, out),
                _ => out.fill(0.0),
            },
        );
        black_box(out);
    }

    /// Updates each distinct row with the sum of its gradients, of `gradients (n / bag, dim)` one
    /// for each bag of ids; with `index` reads the line of each distinct id first.
    pub(crate) fn update(
        &mut self,
        pool: &Pool,
        batch: &Batch,
        index: bool,
        bag: usize,
        gradients: &[f32],
        optimizer: &dyn RowOptimizer,
    ) {
        let parts = ranges(batch.first.len(), pool.threads() * 4);
        let rows = Shared(self.rows.start());
        let this: &KnownPlaces = self;
        let slots: Vec<usize> = (1..this.width / this.dim).map(|at| at * this.dim).collect();
        run(
            pool,
            parts,
            &mut [],
            |_| 0,
            |range, _| {
                let mut seen = 0.0;
                let mut sum = vec![0.0_f32; this.dim];
                for at in range {
                    if let Some(&later) = batch.first.get(at + AHEAD) {
                        this.ask(batch, later as usize, index, this.stride);
                    }
                    let first = batch.first[at] as usize;
                    if index {
                        seen += this.line(batch.lines[first]);
                    }
                    let ids = &batch.same[batch.starts[at] as usize..batch.starts[at + 1] as usize];
                    let of = |id: u32| {
                        let from = id as usize / bag * this.dim;
                        &gradients[from..from + this.dim]
                    };
                    let gradient = match ids {
                        [one] => of(*one),
                        _ => {
                            sum.fill(0.0);
                            for &id in ids {
                                sum.iter_mut()
                                    .zip(of(id))
                                    .for_each(|(sum, one)| *sum += one);
                            }
                            &sum
                        }
                    };
                    let place = batch.rows[first] as usize * this.stride;
                    // SAFETY: the row lies in the array, which `&mut self` keeps from all others; a
                    // distinct row is in one range, and ranges do not overlap.
                    let row = unsafe {
                        std::slice::from_raw_parts_mut(rows.get().add(place), this.width)
                    };
                    optimizer.update(row, &slots, gradient);
                }
                black_box(seen);
            },
        );
    }

    /// What [`KnownPlaces::read`] moves.
    pub(crate) fn traffic_of_reads(&self, batch: &Batch, index: bool, bag: usize) -> Traffic {
        let lines = batch.first.len() * self.dim.div_ceil(LINE);
        let index = if index { distinct(&batch.lines) } else { 0 };
        let ordered = batch.rows.len() * 8 + batch.rows.len() / bag * self.dim * 4;
        Traffic {
            lines: lines + index,
            bytes: (lines + index) * LINE * 4 + ordered,
        }
    }

    /// What [`KnownPlaces::update`] moves.
    pub(crate) fn traffic_of_updates(&self, batch: &Batch, index: bool, bag: usize) -> Traffic {
        let lines = batch.first.len() * self.stride.div_ceil(LINE);
        let index = if index { distinct(&batch.lines) } else { 0 };
        let ordered = batch.rows.len() * 8 + batch.rows.len() / bag * self.dim * 4;
        Traffic {
            lines: lines + index,
            bytes: (2 * lines + index) * LINE * 4 + ordered,
        }
    }

    fn copy(
        &self,
        batch: &Batch,
        range: Range<usize>,
        index: bool,
        out: &mut [f32],
        copy: impl Fn(&[f32], &mut [f32]),
    ) {
        let mut seen = 0.0;
        for (at, out) in range.zip(out.chunks_exact_mut(self.dim)) {
            if at + AHEAD < batch.rows.len() {
                self.ask(batch, at + AHEAD, index, self.dim);
            }
            if index {
                seen += self.line(batch.lines[at]);
            }
            copy(self.row(batch.rows[at]), out);
        }
        black_box(seen);
    }

    fn sum<const DIM: usize>(
        &self,
        batch: &Batch,
        bags: Range<usize>,
        index: bool,
        bag: usize,
        out: &mut [f32],
    ) {
        let mut seen = 0.0;
        for (number, out) in bags.zip(out.chunks_exact_mut(DIM)) {
            let mut sum = [0.0_f32; DIM];
            for at in number * bag..(number + 1) * bag {
                if at + AHEAD < batch.rows.len() {
                    self.ask(batch, at + AHEAD, index, DIM);
                }
                if index {
                    seen += self.line(batch.lines[at]);
                }
                if let Some(row) = self.row(batch.rows[at]).first_chunk::<DIM>() {
                    sum.iter_mut().zip(row).for_each(|(sum, one)| *sum += one);
                }
            }
            out.copy_from_slice(&sum);
        }
        black_box(seen);
    }

    fn row(&self, row: u32) -> &[f32] {
        let place = row as usize * self.stride;
        &self.rows.floats()[place..place + self.dim]
    }

    fn line(&self, line: u32) -> f32 {
        self.index.floats()[line as usize * LINE]
    }

    /// Starts to bring the row of an id into the cache, and its line of the index.
    #[inline(always)]
    fn ask(&self, batch: &Batch, at: usize, index: bool, floats: usize) {
        if index {
            prefetch(&self.index.floats()[batch.lines[at] as usize * LINE]);
        }
        let place = batch.rows[at] as usize * self.stride;
        let row = &self.rows.floats()[place..place + self.stride];
        row.iter().take(floats).step_by(LINE).for_each(prefetch);
    }
}

/// Memory that no one has touched, for rows that are made in their order.
pub(crate) struct FreshPlaces {
    rows: Huge,
    width: usize,
    made: usize,
}

impl FreshPlaces {
    /// Space for `rows` rows of `width` floats.
    pub(crate) fn new(rows: usize, width: usize) -> FreshPlaces {
        FreshPlaces {
            rows: Huge::untouched(rows * width),
            width,
            made: 0,
        }
    }

    /// Writes each float of `n` more rows, with an `index` a line of it for each, and lets an
    /// `update` step over each row while it is in the cache.
    pub(crate) fn make(
        &mut self,
        pool: &Pool,
        n: usize,
        index: Option<(&mut KnownPlaces, &Batch)>,
        update: Option<(&dyn RowOptimizer, &[f32])>,
    ) {
        let (width, first) = (self.width, self.made * self.width);
        self.made += n;
        let rows = &mut self.rows.floats_mut()[first..first + n * width];
        let index = index.map(|(places, batch)| (Shared(places.index.start()), batch));
        let dim = update.map_or(width, |(_, gradients)| gradients.len() / n.max(1));
        let slots: Vec<usize> = (1..width / dim.max(1)).map(|at| at * dim).collect();
        // Pieces of about a huge page: two threads that touch the same one make it twice.
        let pieces = (rows.len() * 4).div_ceil(HUGE).max(pool.threads());
        run(
            pool,
            ranges(n, pieces),
            rows,
            |at| at * width,
            |range, rows| {
                for (at, row) in range.zip(rows.chunks_exact_mut(width)) {
                    if let Some((index, batch)) = &index {
                        let line = |at: usize| batch.lines[at] as usize * LINE;
                        if at + AHEAD < batch.lines.len() {
                            ask_for(index.get().wrapping_add(line(at + AHEAD)));
                        }
                        // SAFETY: the line lies in the index, which is borrowed exclusively for
                        // this call; a line that two ids share is written twice, with the same
                        // value.
                        unsafe { index.get().add(line(at)).write_volatile(1.0) };
                    }
                    row.fill(0.01);
                    if let Some((optimizer, gradients)) = update {
                        optimizer.update(row, &slots, &gradients[at * dim..(at + 1) * dim]);
                    }
                }
            },
        );
    }

    /// What making `n` rows moves.
    pub(crate) fn traffic(&self, n: usize, index: Option<&Batch>) -> Traffic {
        let lines = index.map_or(0, |batch| distinct(&batch.lines));
        // The system writes a page before it gives it.
        let bytes = 2 * n * self.width * 4 + n * 8 + 2 * lines * LINE * 4;
        Traffic { lines, bytes }
    }
}

/// Calls `f` with each range and its piece of `out`, on the threads of a pool; `start` is where a
/// range begins there.
fn run(
    pool: &Pool,
    parts: Vec<Range<usize>>,
    out: &mut [f32],
    start: impl Fn(usize) -> usize,
    f: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    let mut rest = out;
    let mut work = Vec::with_capacity(parts.len());
    for range in parts {
        let len = (start(range.end) - start(range.start)).min(rest.len());
        let (piece, behind) = rest.split_at_mut(len);
        rest = behind;
        work.push((range, piece));
    }
    let done: Result<()> = pool.try_each(work, |(range, piece)| {
        f(range, piece);
        Ok(())
    });
    debug_assert!(done.is_ok());
}

/// `0..n` in at most so many pieces.
fn ranges(n: usize, parts: usize) -> Vec<Range<usize>> {
    let size = n.div_ceil(parts.max(1)).max(1);
    (0..n)
        .step_by(size)
        .map(|from| from..n.min(from + size))
        .collect()
}

fn distinct(lines: &[u32]) -> usize {
    lines.iter().collect::<std::collections::HashSet<_>>().len()
}

#[inline(always)]
fn copy<const DIM: usize>(row: &[f32], out: &mut [f32]) {
    if let (Some(row), Some(out)) = (row.first_chunk::<DIM>(), out.first_chunk_mut::<DIM>()) {
        *out = *row;
    }
}

/// An address that threads share; who writes what is up to the code that gets it.
struct Shared(*mut f32);

// SAFETY: an address; each use says who else touches the memory.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self) -> *mut f32 {
        self.0
    }
}

/// Floats on huge pages that the system gives when they are touched for the first time.
struct Huge {
    floats: Vec<f32>,
    first: usize,
    len: usize,
}

impl Huge {
    fn untouched(len: usize) -> Huge {
        // Zeros from the allocator are pages that nobody has touched.
        let floats = vec![0.0_f32; len + HUGE / 4];
        let first = floats.as_ptr().align_offset(HUGE).min(HUGE / 4);
        // SAFETY: the range lies in the vector's own allocation; the advice changes no contents.
        unsafe {
            let address = floats.as_ptr().add(first).cast_mut();
            libc::madvise(address.cast(), len * 4, libc::MADV_HUGEPAGE);
        }
        Huge { floats, first, len }
    }

    fn floats(&self) -> &[f32] {
        &self.floats[self.first..self.first + self.len]
    }

    fn floats_mut(&mut self) -> &mut [f32] {
        &mut self.floats[self.first..self.first + self.len]
    }

    fn start(&mut self) -> *mut f32 {
        self.floats_mut().as_mut_ptr()
    }
}

#[inline(always)]
fn prefetch(place: &f32) {
    ask_for(place);
}

/// Starts to bring the line of an address into the second cache.
#[inline(always)]
fn ask_for(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint and faults at no address.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T1};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
