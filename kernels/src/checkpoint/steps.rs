//! The steps that rows have missed which a delta has not, because steps of Adam alone have moved
//! them: written with the delta, and made up for by whoever reads what it follows.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use super::format::{damaged, STEPS};
use super::listing::Listing;
use super::manifest::Manifest;
use super::rows::Written;
use crate::halves::{folded, round_row, stream, Draws, Half};
use crate::optim::{is_still, Missed, Steps, MOMENTS};
use crate::partition::Partition;
use crate::simd::Level;
use crate::{Decay, Pool, Result, Rounding, RowDtype, Snapshot};
use std::path::Path;

/// Bytes of a span without its rates: two counts, two betas and epsilon. If embeddings have 2 bytes
/// a value there are 8 more, the number of its last step among the table's updates.
const HEAD: usize = 20;

/// A thread should let at least so many rows catch up.
const LEAST: usize = 1024;

/// Writes the steps after epoch `since` below `table`, if there were any.
///
/// # Errors
/// `Io` or `ResourceExhausted` for what the system refuses, with the file.
pub(super) fn write_steps(
    snapshot: &Snapshot<'_>,
    since: u32,
    table: &Path,
) -> Result<Option<Written>> {
    let mut bytes = Vec::new();
    for steps in snapshot.steps_since(since) {
        let decay = steps.decay;
        for count in [steps.count, steps.rates.len()] {
            bytes.extend_from_slice(&(count as u32).to_le_bytes());
        }
        let floats = [decay.beta1, decay.beta2, decay.epsilon];
        for float in floats.iter().chain(&steps.rates) {
            bytes.extend_from_slice(&float.to_le_bytes());
        }
        if snapshot.updates().is_some() {
            bytes.extend_from_slice(&steps.update.to_le_bytes());
        }
    }
    let file = (!bytes.is_empty()).then(|| Written::whole(table, STEPS, &bytes));
    file.transpose()
}

/// The steps of a delta, for rows of what it follows.
pub(super) struct SkippedSteps {
    /// The part whose rows have missed them; `None` for the whole table.
    holds: Option<Partition>,
    /// With the number of the last step.
    spans: Vec<(Missed, u64)>,
    /// How rows are rounded at the end of each span, if embeddings have 2 bytes a value.
    rounder: Option<Rounder>,
    /// Keys whose rows no step has moved, ascending.
    frozen: Vec<i64>,
}

impl SkippedSteps {
    /// The slots that rows catch up with: m and v.
    pub(super) fn slots() -> impl Iterator<Item = &'static str> + Clone {
        MOMENTS.iter().map(|slot| slot.name)
    }

    /// Reads the steps of a delta; `None` if its manifest lists none.
    ///
    /// # Errors
    /// `NotFound`, `DataLoss` or `Io` with the file.
    pub(super) fn read(
        holds: Option<Partition>,
        manifest: &Manifest,
        listing: &mut Listing,
    ) -> Result<Option<SkippedSteps>> {
        if listing.lists(STEPS) != Some(true) {
            return Ok(None);
        }
        let mut file = listing.open(STEPS)?;
        file.check_size()?;
        let mut bytes = Vec::new();
        file.each_block(&mut |block| {
            bytes.extend_from_slice(block);
            Ok(true)
        })?;
        file.finish()?;
        let rounder = Rounder::of(manifest);
        let mut spans = Vec::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (steps, later) = span(rest, rounder.is_some()).ok_or_else(|| {
                damaged(
                    "the steps that rows have missed cannot be understood",
                    &file.path,
                )
                .with("span", spans.len())
            })?;
            spans.push((Missed::all(&steps), steps.update));
            rest = later;
        }
        let frozen = manifest.config.as_ref();
        let frozen = frozen.and_then(|config| config.get("padding_keys")?.as_array());
        let mut frozen: Vec<i64> = frozen
            .into_iter()
            .flatten()
            .filter_map(serde_json::Value::as_i64)
            .collect();
        frozen.sort_unstable();
        Ok(Some(SkippedSteps {
            holds,
            spans,
            rounder,
            frozen,
        }))
    }

    /// Whether the row of a key has missed the steps.
    fn concern(&self, key: i64) -> bool {
        self.holds.is_none_or(|part| part.holds(key)) && self.frozen.binary_search(&key).is_err()
    }
}

/// Rounds rows as the table did that has missed the steps.
struct Rounder {
    /// As what the embedding, m and v are stored, and what each adds to the seed.
    parts: [(Option<Half>, u64); 3],
    rounding: Rounding,
    seed: u64,
    level: Level,
}

impl Rounder {
    /// That of a saved table; `None` if its embeddings are float32.
    fn of(manifest: &Manifest) -> Option<Rounder> {
        let config = manifest.config.as_ref();
        let of_slot = manifest.stored.of_slot(false).half();
        let [m, v] = MOMENTS.each_ref().map(|slot| (of_slot, stream(slot.name)));
        Some(Rounder {
            parts: [(Some(manifest.stored.dtype.half()?), 0), m, v],
            rounding: manifest.stored.rounding,
            seed: config.and_then(|config| config.get("seed")?.as_u64())?,
            level: Level::detect(),
        })
    }

    /// Rounds the row of a key, `[embedding | m | v]` of `dim` floats each, after an update.
    fn round(&self, key: i64, update: u64, row: &mut [f32], dim: usize) {
        for (&(half, stream), values) in self.parts.iter().zip(row.chunks_exact_mut(dim)) {
            if let Some(half) = half {
                let draws = (self.rounding == Rounding::Stochastic)
                    .then(|| Draws::new(self.seed ^ stream, update).of(folded(key)));
                round_row(self.level, half, draws, values);
            }
        }
    }
}

/// The first of some spans, and the rest; `None` for what is none. `has_update`: whether it says
/// the number of its last step among the table's updates.
fn span(bytes: &[u8], has_update: bool) -> Option<(Steps, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let ([count, rates, beta1, beta2, epsilon], []) =
        head.as_chunks::<4>().0.split_first_chunk()?
    else {
        return None;
    };
    let [count, rates] = [count, rates].map(|&word| u32::from_le_bytes(word) as usize);
    let [beta1, beta2, epsilon] = [beta1, beta2, epsilon].map(|&word| f32::from_le_bytes(word));
    let are_betas = [beta1, beta2].iter().all(|beta| (0.0..=1.0).contains(beta));
    let is_sound = are_betas
        && epsilon > 0.0
        && epsilon.is_finite()
        && (1..=Missed::MOST).contains(&count)
        && rates <= count;
    let (floats, rest) = rest.split_at_checked(rates.checked_mul(4)?)?;
    let (update, rest) = match has_update {
        true => rest.split_first_chunk()?,
        false => (&[0; 8], rest),
    };
    // A step that moves rows tells its rate.
    let moves = rates > 0;
    let rates = floats.as_chunks::<4>().0.iter();
    let decay = Decay {
        beta1,
        beta2,
        epsilon,
        lr: 0.0,
        moves,
    };
    let rates = rates.map(|&word| f32::from_le_bytes(word)).collect();
    let steps = Steps {
        decay,
        count,
        update: u64::from_le_bytes(*update),
        rates,
    };
    is_sound.then_some((steps, rest))
}

/// Brings rows to the state after the steps of `later` that concern them, in their order: `keys
/// (n)`, and weights, m and v, `(n, dim)` each.
pub(super) fn catch_up(
    pool: &Pool,
    later: &[&SkippedSteps],
    keys: &[i64],
    [weights, m, v]: [&mut [f32]; 3],
    dim: usize,
) {
    let rows = keys.len().div_ceil(pool.parts(keys.len(), LEAST)).max(1);
    let floats = rows.saturating_mul(dim);
    let work = keys
        .chunks(rows)
        .zip(weights.chunks_mut(floats))
        .zip(m.chunks_mut(floats).zip(v.chunks_mut(floats)));
    let behind = [0, dim];
    pool.each(work, |((keys, weights), (m, v))| {
        let mut row = Vec::with_capacity(dim.saturating_mul(3));
        let moments = m.chunks_exact_mut(dim).zip(v.chunks_exact_mut(dim));
        let rows = weights.chunks_exact_mut(dim).zip(moments);
        for (&key, (weights, (m, v))) in keys.iter().zip(rows) {
            row.clear();
            for part in [&*weights, m, v] {
                row.extend_from_slice(part);
            }
            if is_still(RowDtype::Float32, [m, v]) {
                continue;
            }
            for steps in later.iter().filter(|steps| steps.concern(key)) {
                for (span, update) in &steps.spans {
                    let (weights, slots) = row.split_at_mut(dim);
                    span.catch_up(0, weights, slots, behind);
                    if let Some(rounder) = &steps.rounder {
                        rounder.round(key, *update, &mut row, dim);
                    }
                }
            }
            for (part, now) in [weights, m, v].into_iter().zip(row.chunks_exact(dim)) {
                part.copy_from_slice(now);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::span;
    use proptest::prelude::*;

    fn bytes(count: u32, rates: &[f32], [beta1, beta2, epsilon]: [f32; 3]) -> Vec<u8> {
        let words = [count, rates.len() as u32].map(u32::to_le_bytes);
        let floats = [beta1, beta2, epsilon]
            .into_iter()
            .chain(rates.iter().copied());
        words
            .into_iter()
            .chain(floats.map(f32::to_le_bytes))
            .flatten()
            .collect()
    }

    const USUAL: [f32; 3] = [0.9, 0.999, 1e-8];

    #[test]
    fn spans_are_read_one_after_the_other_and_what_cannot_be_is_refused() {
        let both = [bytes(300, &[0.5, 0.25], USUAL), bytes(1, &[0.1], USUAL)].concat();
        let (steps, rest) = span(&both, false).unwrap();
        assert_eq!((steps.count, steps.rates), (300, vec![0.5, 0.25]));
        assert_eq!(steps.decay.beta2.to_bits(), 0.999_f32.to_bits());
        assert_eq!(rest, bytes(1, &[0.1], USUAL));
        for wrong in [
            bytes(0, &[], USUAL),
            bytes(1, &[0.1, 0.2], USUAL),
            bytes(65_535, &[0.1], USUAL),
            bytes(2, &[0.1], [1.5, 0.999, 1e-8]),
            bytes(2, &[0.1], [0.9, f32::NAN, 1e-8]),
            bytes(2, &[0.1], [0.9, 0.999, 0.0]),
            bytes(2, &[0.1], [0.9, 0.999, f32::INFINITY]),
            bytes(2, &[0.1], USUAL)[..23].to_vec(),
        ] {
            assert!(span(&wrong, false).is_none(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_spans_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut rest = bytes.as_slice();
            while let Some((steps, later)) = span(rest, false) {
                prop_assert!(later.len() < rest.len() && steps.rates.len() <= steps.count);
                rest = later;
            }
        }
    }
}
