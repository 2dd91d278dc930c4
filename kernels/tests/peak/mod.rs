//! How much memory a process has, and its peak, for tests that are alone in theirs.

use std::fs;

/// The field `name` of /proc/self/status, in bytes.
pub(crate) fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kibibytes = line.split_whitespace().nth(1).unwrap();
    kibibytes.parse::<u64>().unwrap() << 10
}

/// Bytes by which the peak of `work` exceeds what there was before.
pub(crate) fn extra(work: impl FnOnce()) -> u64 {
    // Starts the peak anew.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS:");
    work();
    status("VmHWM:").saturating_sub(before)
}
