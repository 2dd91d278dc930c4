//! Room in an array for values that may come.

use std::collections::TryReserveError;

/// Makes room for `len` values in all, more than that if the array has to move: what is not written
/// takes no memory.
pub(crate) fn reserve<T>(values: &mut Vec<T>, len: usize) -> Result<(), TryReserveError> {
    if len <= values.capacity() {
        return Ok(());
    }
    let most = len.checked_next_power_of_two().unwrap_or(len);
    values.try_reserve_exact(most - values.len())
}
