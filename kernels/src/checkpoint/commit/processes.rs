//! Which process a hidden directory belongs to, and whether it may still use it.

use super::heartbeat::SILENT;
use super::names::{Hidden, Place, Use};
use super::steps::exists;
use crate::mem::{process_exists, ticks_per_second};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// How far the clocks of a process and of a file system may be apart, in seconds.
const CLOCKS: f64 = 1.0;

/// Bits of the number in a token that count the saves of a process. Above them are those of the
/// start of the machine or container, then those of its name.
const COUNT_BITS: u32 = 24;
const START_BITS: u32 = 24;

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
        let count = NEXT.fetch_add(1, Relaxed) & ((1 << COUNT_BITS) - 1);
        let token = format!("{}-{}", std::process::id(), here() | count);
        if !place.has_hidden(&token) && place.token().as_ref() != Some(&token) {
            return token;
        }
    }
}

/// Where this process runs, in the bits of a token's number above [`COUNT_BITS`]: processes of one
/// machine and container have the same number, which is not 0.
fn here() -> u64 {
    static HERE: LazyLock<u64> = LazyLock::new(|| {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let inside = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let start = text("/proc/sys/kernel/random/boot_id") + &inside.to_string_lossy();
        let digest = |text: &str| u64::from(crc32c::crc32c(text.as_bytes()));
        let name = digest(&text("/proc/sys/kernel/hostname")) & 0xFFFF;
        let start = digest(&start) & ((1 << START_BITS) - 1);
        name.max(1) << (START_BITS + COUNT_BITS) | start << COUNT_BITS
    });
    *HERE
}

/// Whether the process that made a hidden directory beside `place` may still use it.
pub(super) fn is_in_use(place: &Place, hidden: &Hidden) -> bool {
    let path = place.parent.join(&hidden.entry);
    is_token_in_use(&place.beside(&hidden.name), &hidden.token, &path)
}

/// Whether the save `token` of `place` may still be under way, after it has last changed `path`.
pub(super) fn is_token_in_use(place: &Place, token: &str, path: &Path) -> bool {
    let (process, number) = token.split_once('-').unwrap_or((token, "0"));
    let process = process.parse().unwrap_or(i64::MAX);
    let machine = number.parse().unwrap_or(0_u64) >> COUNT_BITS << COUNT_BITS;
    // Earlier versions had no machine in their tokens.
    if machine == 0 || machine == here() {
        return match process == i64::from(std::process::id()) {
            true => ACTIVE.lock().contains(token),
            false => is_alive(process, changed(path)),
        };
    }
    let name = |machine: u64| machine >> (START_BITS + COUNT_BITS);
    let mark = place.hidden(Use::Owner, token);
    // A machine of the same name that was started again has no process of before. The mark of a
    // save is there from its begin to its end.
    name(machine) != name(here()) && shows_signs(&mark, now())
}

/// Whether the save of an owner's mark has shown a sign of life lately.
fn shows_signs(mark: &Path, now: f64) -> bool {
    exists(mark) && now - changed(mark) < SILENT
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
    let changed = |found: fs::Metadata| {
        let changed = seconds(found.ctime(), found.ctime_nsec());
        seconds(found.mtime(), found.mtime_nsec()).max(changed)
    };
    fs::symlink_metadata(path).map_or_else(|_| now(), changed)
}

/// When the save of an owner's mark began, in seconds since 1970.
pub(super) fn began(mark: &Path) -> f64 {
    let modified = |found: fs::Metadata| seconds(found.mtime(), found.mtime_nsec());
    fs::symlink_metadata(mark).map_or_else(|_| now(), modified)
}

fn seconds(whole: i64, nanoseconds: i64) -> f64 {
    whole as f64 + nanoseconds as f64 * 1e-9
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::temp::Temp;

    #[test]
    fn an_owner_is_dead_only_where_that_can_be_known() {
        let temp = Temp::new();
        let place = Place::new(&temp.at("sparse-m-1")).unwrap();
        let (dead, own) = (i32::MAX as u64, u64::from(std::process::id()));
        let in_use = |process: u64, number: u64| {
            let token = format!("{process}-{number}");
            fs::create_dir(place.hidden(Use::Owner, &token)).unwrap();
            is_token_in_use(&place, &token, &place.parent)
        };
        assert!(!in_use(dead, here()) && !in_use(dead, 3) && !in_use(own, here() | 77));
        // Another start of this machine, and another machine.
        assert!(!in_use(1, here() ^ 1 << COUNT_BITS));
        let elsewhere = here() ^ 1 << (START_BITS + COUNT_BITS);
        assert!(in_use(dead, elsewhere));
        let token = format!("{dead}-{elsewhere}");
        let mark = place.hidden(Use::Owner, &token);
        assert!(!shows_signs(&mark, now() + SILENT));
        fs::remove_dir(&mark).unwrap();
        assert!(!is_token_in_use(&place, &token, &place.parent));
    }

    #[test]
    fn a_process_that_was_started_later_is_another_one() {
        let own = i64::from(std::process::id());
        let started = started(own).unwrap();
        assert!(started < now());
        assert!(is_alive(own, now()) && !is_alive(own, started - 10.0));
        assert!(!is_alive(i64::from(i32::MAX), now()) && is_alive(i64::MAX, now()));
    }
}
