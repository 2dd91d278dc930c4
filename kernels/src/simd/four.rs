//! Four floats that stay in one register.
//!
//! The compiler takes an array that is added up in a loop apart into single floats, and what it
//! makes of these shuffles more than it adds. It leaves vectors whole.

/// Floats of a [`Four`].
pub(crate) const FOUR: usize = 4;

#[cfg(target_arch = "x86_64")]
type Register = std::arch::x86_64::__m128;
#[cfg(not(target_arch = "x86_64"))]
type Register = [f32; FOUR];

/// Four floats. Sums and products are those of the floats one by one.
#[derive(Clone, Copy)]
pub(crate) struct Four(Register);

#[cfg(target_arch = "x86_64")]
impl Four {
    /// Four times the same.
    #[inline(always)]
    pub(crate) fn all(value: f32) -> Four {
        // SAFETY: SSE2 is part of every x86_64.
        Four(unsafe { std::arch::x86_64::_mm_set1_ps(value) })
    }

    /// Reads them.
    #[inline(always)]
    pub(crate) fn of(floats: &[f32; FOUR]) -> Four {
        // SAFETY: SSE2 is part of every x86_64; `floats` are 16 bytes, of any alignment.
        Four(unsafe { std::arch::x86_64::_mm_loadu_ps(floats.as_ptr()) })
    }

    /// Writes them.
    #[inline(always)]
    pub(crate) fn put(self, out: &mut [f32; FOUR]) {
        // SAFETY: SSE2 is part of every x86_64; `out` are 16 bytes, of any alignment.
        unsafe { std::arch::x86_64::_mm_storeu_ps(out.as_mut_ptr(), self.0) }
    }

    /// The sums.
    #[inline(always)]
    pub(crate) fn plus(self, other: Four) -> Four {
        // SAFETY: SSE2 is part of every x86_64.
        Four(unsafe { std::arch::x86_64::_mm_add_ps(self.0, other.0) })
    }

    /// The products.
    #[inline(always)]
    pub(crate) fn times(self, other: Four) -> Four {
        // SAFETY: SSE2 is part of every x86_64.
        Four(unsafe { std::arch::x86_64::_mm_mul_ps(self.0, other.0) })
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Four {
    /// Four times the same.
    #[inline(always)]
    pub(crate) fn all(value: f32) -> Four {
        Four([value; FOUR])
    }

    /// Reads them.
    #[inline(always)]
    pub(crate) fn of(floats: &[f32; FOUR]) -> Four {
        Four(*floats)
    }

    /// Writes them.
    #[inline(always)]
    pub(crate) fn put(self, out: &mut [f32; FOUR]) {
        *out = self.0;
    }

    /// The sums.
    #[inline(always)]
    pub(crate) fn plus(self, other: Four) -> Four {
        Four(std::array::from_fn(|at| self.0[at] + other.0[at]))
    }

    /// The products.
    #[inline(always)]
    pub(crate) fn times(self, other: Four) -> Four {
        Four(std::array::from_fn(|at| self.0[at] * other.0[at]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_single_floats_give_bit_for_bit() {
        let one = [1.5, -0.0, f32::MIN_POSITIVE, 3.0e38];
        let other = [0.1, -0.0, 0.3, 3.0e38];
        let mut found = [[7.0; FOUR]; 3];
        Four::of(&one).plus(Four::of(&other)).put(&mut found[0]);
        Four::of(&one).times(Four::of(&other)).put(&mut found[1]);
        Four::all(0.25).put(&mut found[2]);
        for at in 0..FOUR {
            let expected = [one[at] + other[at], one[at] * other[at], 0.25];
            for (found, expected) in found.iter().zip(expected) {
                assert_eq!(found[at].to_bits(), expected.to_bits());
            }
        }
    }
}
