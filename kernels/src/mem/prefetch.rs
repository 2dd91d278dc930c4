//! Asks for a cache line before it is needed.

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

/// The bytes that one prefetch brings.
pub(crate) const LINE: usize = 64;

/// The most rows that are asked for ahead: the size of the rings of those that were.
pub(crate) const MOST_AHEAD: usize = 64;

/// How many rows of `floats` floats should be on their way at a time: so many that their lines keep
/// the memory busy, and stay in the first cache until they are used.
#[inline(always)]
pub(crate) fn rows_ahead(floats: usize) -> usize {
    const LINES: usize = 96;
    (LINES / lines(floats)).clamp(8, MOST_AHEAD)
}

/// How many of them should be asked for at once. A prefetch waits until the address of its page is
/// found, and nothing behind it is done with before: between two of them there must not be the work
/// on a row, or pages are looked for one by one. Too many lines at once wait for each other.
#[inline(always)]
pub(crate) fn rows_at_once(floats: usize) -> usize {
    const LINES: usize = 32;
    (LINES / lines(floats)).clamp(1, 8)
}

#[inline(always)]
fn lines(floats: usize) -> usize {
    (floats * size_of::<f32>()).div_ceil(LINE).max(1)
}

/// Starts to bring the line that holds the first byte of `place` into the cache; does nothing where
/// there is no such instruction.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    fetch(std::ptr::from_ref(place).cast());
}

/// The same of a place that is going to be written, see [`fetch_to_write`].
#[inline(always)]
pub(crate) fn prefetch_to_write<T>(place: &T) {
    fetch_to_write(std::ptr::from_ref(place).cast());
}

/// [`prefetch`] of what would lie `count` places behind `place` in an array.
#[inline(always)]
pub(crate) fn prefetch_behind<T>(place: &T, count: usize) {
    fetch(std::ptr::from_ref(place).wrapping_add(count).cast());
}

/// Whether the processor has PREFETCHW; older ones run it as an instruction that does nothing.
#[cfg(target_arch = "x86_64")]
static HAS_PREFETCHW: LazyLock<bool> = LazyLock::new(|| {
    use std::arch::x86_64::__cpuid;
    let extended = 0x8000_0000;
    __cpuid(extended).eax > extended && __cpuid(extended + 1).ecx >> 8 & 1 == 1
});

/// [`fetch`] of a line that is going to be written. Where another processor has read it, as a
/// lookup does on other threads than its update, the first write would wait until that one has
/// given it up.
#[inline(always)]
pub(super) fn fetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    match *HAS_PREFETCHW {
        // SAFETY: PREFETCHW is a hint, which this processor has; no address makes it fault, and it
        // touches no register, flag or memory that the program sees.
        true => unsafe {
            std::arch::asm!("prefetchw [{0}]", in(reg) address,
                options(readonly, nostack, preserves_flags));
        },
        false => fetch(address),
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as of `fetch`.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{0}]", in(reg) address,
            options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Starts to bring the line of any address into the cache. The address need not be mapped: a
/// prefetch never faults.
#[inline(always)]
pub(super) fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHT0 is a hint; it is part of every x86_64 and no address makes it fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM is a hint; it is part of every aarch64, no address makes it fault, and it
    // touches no register, flag or memory that the program sees.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address,
            options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
