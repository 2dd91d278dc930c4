//! Which process a hidden directory belongs to, and whether it may still use it.

use super::names::{Hidden, Place};
use crate::mem::{process_exists, ticks_per_second};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// How far the clocks of a process and of a file system may be apart, in seconds.
const CLOCKS: f64 = 1.0;

/// The saves of this process that are not finished.
static ACTIVE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The name of a save of this process; its hidden directories are in use as long as it lives.
#[derive(Debug)]
pub(super) struct Token(String);

impl Token {
    pub(super) fn new(place: &Place) -> Token {
        let token = free_token(place);
        ACTIVE.lock().insert(token.clone());
        Token(token)
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        ACTIVE.lock().remove(&self.0);
    }
}

/// A name of which there are no hidden directories.
pub(super) fn free_token(place: &Place) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let token = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        if !place.has_hidden(&token) && place.token().as_ref() != Some(&token) {
            return token;
        }
    }
}

/// Whether the process that made a hidden directory may still use it.
pub(super) fn is_in_use(path: &Path, hidden: &Hidden) -> bool {
    let process = hidden.process().parse();
    if process == Ok(i64::from(std::process::id())) {
        return ACTIVE.lock().contains(&hidden.token);
    }
    is_alive(process.unwrap_or(i64::MAX), changed(path))
}

/// Whether a process runs that was there at a time, in seconds since 1970.
pub(super) fn is_alive(process: i64, since: f64) -> bool {
    let Ok(number) = i32::try_from(process) else {
        // The system has no such numbers: who made it cannot be told.
        return true;
    };
    process_exists(number) && started(process).is_none_or(|started| started <= since + CLOCKS)
}

/// When a process was started, in seconds since 1970; `None` where that is unknown.
pub(super) fn started(process: i64) -> Option<f64> {
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: f64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    Some(now() - uptime + ticks / ticks_per_second())
}

/// When something was last changed or renamed, in seconds since 1970.
pub(super) fn changed(path: &Path) -> f64 {
    let seconds = |whole: i64, nanoseconds: i64| whole as f64 + nanoseconds as f64 * 1e-9;
    fs::symlink_metadata(path).map_or_else(
        |_| now(),
        |found| {
            let changed = seconds(found.ctime(), found.ctime_nsec());
            seconds(found.mtime(), found.mtime_nsec()).max(changed)
        },
    )
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_started_later_is_another_one() {
        let own = i64::from(std::process::id());
        let started = started(own).unwrap();
        assert!(started < now());
        assert!(is_alive(own, now()) && !is_alive(own, started - 10.0));
        assert!(!is_alive(i64::from(i32::MAX), now()) && is_alive(i64::MAX, now()));
    }
}
