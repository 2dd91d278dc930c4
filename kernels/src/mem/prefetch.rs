//! Asks for a cache line before it is needed.

/// The bytes that one prefetch brings.
pub(crate) const LINE: usize = 64;

/// So many rows are asked for at once, before the first of them is needed.
pub(crate) const BLOCK: usize = 64;

/// Starts to bring the line that holds the first byte of `place` into the second cache; does
/// nothing where there is no such instruction.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    fetch(std::ptr::from_ref(place).cast());
}

/// [`prefetch`] of as many lines as some floats fill; of fewer floats than that others share the
/// line.
#[inline(always)]
pub(crate) fn prefetch_lines(floats: &[f32]) {
    let (lines, _) = floats.as_chunks::<{ LINE / size_of::<f32>() }>();
    lines.iter().for_each(prefetch);
}

/// [`prefetch`] of what would lie `count` places behind `place` in an array.
#[inline(always)]
pub(crate) fn prefetch_behind<T>(place: &T, count: usize) {
    fetch(std::ptr::from_ref(place).wrapping_add(count).cast());
}

/// Calls `f` with each item, a block after `ask`, which asks for what `f` will need. Both get
/// `state`.
///
/// A block is asked for at once: what is read while lines are on their way waits for these.
#[inline(always)]
pub(crate) fn each_asked<S, I: Iterator + Clone>(
    mut state: S,
    items: I,
    ask: impl Fn(&S, I::Item),
    mut f: impl FnMut(&mut S, I::Item),
) {
    let mut later = items.clone();
    for item in later.by_ref().take(BLOCK) {
        ask(&state, item);
    }
    for (at, item) in items.enumerate() {
        if at % BLOCK == 0 {
            for item in later.by_ref().take(BLOCK) {
                ask(&state, item);
            }
        }
        f(&mut state, item);
    }
}

/// Starts to bring the line of any address into the second cache. The address need not be mapped: a
/// prefetch never faults.
///
/// Of lines on their way to the first cache a processor knows a few, 24 on Zen 4, and the next
/// prefetch waits until one is there; the second cache has room for more of them, and for a block
/// of rows until it is needed.
#[inline(always)]
pub(super) fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHT1 is a hint; it is part of every x86_64 and no address makes it fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM is a hint; it is part of every aarch64, no address makes it fault, and it
    // touches no register, flag or memory that the program sees.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{0}]", in(reg) address,
            options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
