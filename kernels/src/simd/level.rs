//! Instruction-set levels: found once, carried as a value, entered through one function.

/// The instruction sets that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Isa {
    /// What the target guarantees (SSE2 on x86_64).
    Scalar,
    /// 256-bit vectors, with conversions of float16 (F16C).
    Avx2,
    /// 512-bit vectors with 64-bit multiplication and masks (F, DQ, VL, BW), with F16C.
    Avx512,
}

/// Proof that this machine runs an [`Isa`]: it can only be made by asking the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(Isa);

/// A computation that is compiled for every level.
///
/// `run` must be `#[inline(always)]`, and so must what it calls in its hot loop: only code inlined
/// into the level's entry is compiled for that level.
pub(crate) trait Vectorized {
    /// What the kernel gives back.
    type Output;
    /// Does the work.
    fn run(self) -> Self::Output;
}

impl Level {
    /// The best level of this machine. Costs a load or two after the first call.
    pub(crate) fn detect() -> Level {
        [Isa::Avx512, Isa::Avx2]
            .into_iter()
            .find_map(Level::forced)
            .unwrap_or(Level(Isa::Scalar))
    }

    /// The level of `isa`, or `None` where the machine lacks it. For tests and comparisons of
    /// levels.
    pub(crate) fn forced(isa: Isa) -> Option<Level> {
        runs_here(isa).then_some(Level(isa))
    }

    /// Whether it has conversions of float16.
    #[inline(always)]
    pub(super) fn has_f16c(self) -> bool {
        self.0 >= Isa::Avx2
    }

    /// Runs `kernel` as compiled for this level.
    #[inline]
    pub(crate) fn run<K: Vectorized>(self, kernel: K) -> K::Output {
        match self.0 {
            Isa::Scalar => kernel.run(),
            // SAFETY: a `Level` exists only for an instruction set that `runs_here` has found on
            // this machine.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { avx512(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => kernel.run(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn runs_here(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
        Isa::Avx512 => {
            runs_here(Isa::Avx2)
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn runs_here(isa: Isa) -> bool {
    isa == Isa::Scalar
}

/// `kernel` compiled with AVX2 and F16C.
///
/// # Safety
/// The machine must run AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn avx2<K: Vectorized>(kernel: K) -> K::Output {
    kernel.run()
}

/// `kernel` compiled with AVX-512.
///
/// # Safety
/// The machine must run F16C and AVX-512 F, DQ, VL and BW.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "f16c,avx512f,avx512dq,avx512vl,avx512bw")]
unsafe fn avx512<K: Vectorized>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scalar_level_runs_everywhere_and_detection_finds_a_level_that_runs() {
        assert!(Level::forced(Isa::Scalar).is_some());
        assert!(runs_here(Level::detect().0));
    }

    #[test]
    fn every_level_of_this_machine_runs_a_kernel() {
        struct Sum<'a>(&'a [u32]);
        impl Vectorized for Sum<'_> {
            type Output = u32;
            #[inline(always)]
            fn run(self) -> u32 {
                self.0.iter().sum()
            }
        }
        let numbers: Vec<u32> = (0..1000).collect();
        for level in [Isa::Scalar, Isa::Avx2, Isa::Avx512]
            .into_iter()
            .filter_map(Level::forced)
        {
            assert_eq!(level.run(Sum(&numbers)), 499_500);
        }
    }
}
