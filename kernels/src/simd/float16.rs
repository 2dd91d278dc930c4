//! Float16 to float32 by the processor's own instruction, F16C.
//!
//! It quiets not-a-numbers, and asks nobody whether denormals are zeros.

use super::Level;

/// Words that are read at a time.
pub(crate) const WORDS: usize = 8;

impl Level {
    /// Reads two float16 a word, `low` from the lower halves of `words` and `high` from the upper
    /// ones; false, and nothing happens, without the instruction.
    #[inline(always)]
    pub(crate) fn read_float16(
        self,
        words: &[u32; WORDS],
        low: &mut [f32; WORDS],
        high: &mut [f32; WORDS],
    ) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self.has_f16c() {
            // SAFETY: a `Level` exists only for an instruction set that this machine has.
            unsafe { f16c(words, low, high) };
            return true;
        }
        false
    }
}

/// # Safety
/// The machine must run AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn f16c(words: &[u32; WORDS], low: &mut [f32; WORDS], high: &mut [f32; WORDS]) {
    use std::arch::x86_64::*;
    // SAFETY: `words`, `low` and `high` are 32 bytes each, of any alignment.
    unsafe {
        let words = _mm256_loadu_si256(words.as_ptr().cast());
        let lows = _mm256_and_si256(words, _mm256_set1_epi32(0xFFFF));
        let highs = _mm256_srli_epi32::<16>(words);
        // Four of each, and the other four of each.
        let packed = _mm256_packus_epi32(lows, highs);
        let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
        let lows = _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
        let highs = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(packed));
        _mm256_storeu_ps(low.as_mut_ptr(), lows);
        _mm256_storeu_ps(high.as_mut_ptr(), highs);
    }
}
