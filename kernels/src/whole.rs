//! Whether the longest tests have all of their cases.

/// Whether tests with many cases run all of them, as in `scripts/test whole`.
pub(crate) fn is_whole() -> bool {
    std::env::var_os("MX_REC_WHOLE").is_some()
}
