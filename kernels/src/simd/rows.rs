//! Small loops over one row that the table uses: prefetch and add.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks the processor to bring the cache line at `at` near, without waiting. Any address will do: none is read, and a bad one
/// is ignored. Does nothing where the target has no such instruction.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint: it neither reads nor writes in the sense of the language and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for every cache line of `row`.
#[inline(always)]
pub(crate) fn prefetch_row(row: &[f32]) {
    for at in (0..row.len()).step_by(LINE / size_of::<f32>()) {
        prefetch(row.as_ptr().wrapping_add(at));
    }
}

/// `sum[c] += row[c]` for every column both have.
///
/// A plain loop that the baseline's vectors already run at the speed of the loads; an AVX-512 twin measured no faster.
#[inline]
pub(crate) fn add_row(sum: &mut [f32], row: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(row) {
        *sum += value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetching_any_address_is_harmless() {
        prefetch(std::ptr::null::<u8>());
        prefetch(usize::MAX as *const u64);
        prefetch_row(&[]);
        prefetch_row(&[1.0; 100]);
    }

    #[test]
    fn rows_are_added_column_by_column() {
        let mut sum = vec![1.0; 37];
        add_row(&mut sum, &[0.5; 37]);
        assert_eq!(sum, [1.5; 37]);
    }
}
