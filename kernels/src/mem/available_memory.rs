//! How much memory the system can still give, asked before a table takes a large piece.
//!
//! Address space is not memory: the kernel hands out more than there is and kills the process that
//! touches the rest. So a table that grows until memory ends must ask first.

use crate::{Error, Kind, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Smaller pieces are not asked for.
const ASKED: u64 = 1 << 20;

/// What is left to the rest of the process and the machine.
const SPARE: u64 = 256 << 20;

/// Where the kernel tells.
struct Places<'p> {
    /// The machine's memory, `/proc/meminfo`.
    machine: &'p Path,
    /// The control groups of this process, `/proc/self/cgroup`.
    groups: &'p Path,
    /// Where control groups are mounted, `/sys/fs/cgroup`.
    mount: &'p Path,
}

/// Refuses `bytes` that the machine, or the control group of the process, has not got.
///
/// What the kernel does not tell counts as plenty.
///
/// # Errors
/// `ResourceExhausted` with the bytes that are left.
pub(crate) fn check(bytes: u64) -> Result<()> {
    if bytes < ASKED {
        return Ok(());
    }
    match available() {
        Some(available) if bytes.saturating_add(SPARE) > available => Err(Error::new(
            Kind::ResourceExhausted,
            "the system has no more memory",
        )
        .with("bytes", bytes)
        .with("available", available)
        .with("kept_free", SPARE)),
        _ => Ok(()),
    }
}

/// An empty list with room for `n` values; `message` says what there is no memory for, and `what`
/// they are.
///
/// # Errors
/// `ResourceExhausted` if the system gives no memory.
pub(crate) fn reserved<T>(n: usize, message: &str, what: &'static str) -> Result<Vec<T>> {
    let mut list = Vec::new();
    let reserved = list.try_reserve_exact(n);
    reserved.map_err(|_| Error::new(Kind::ResourceExhausted, message).with(what, n))?;
    Ok(list)
}

/// Bytes that can still be used without swapping or being killed; `None` if nothing tells.
pub(super) fn available() -> Option<u64> {
    let places = Places {
        machine: Path::new("/proc/meminfo"),
        groups: Path::new("/proc/self/cgroup"),
        mount: Path::new("/sys/fs/cgroup"),
    };
    places.available()
}

impl Places<'_> {
    /// Bytes that can still be used without swapping or being killed; `None` if nothing tells.
    fn available(&self) -> Option<u64> {
        let machine = fs::read_to_string(self.machine)
            .ok()
            .and_then(|text| field(&text, "MemAvailable:"))
            .map(|kibibytes| kibibytes.saturating_mul(1024));
        let groups = fs::read_to_string(self.groups).unwrap_or_default();
        let group = groups.lines().filter_map(|line| self.of_group(line)).min();
        machine.into_iter().chain(group).min()
    }

    /// What the limits of one line of `groups`, `number:controllers:path`, leave.
    fn of_group(&self, line: &str) -> Option<u64> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (root, files) = if controllers.is_empty() {
            let unified = self.mount.join("unified");
            let root = if unified.is_dir() {
                unified
            } else {
                self.mount.to_owned()
            };
            (root, ["memory.max", "memory.current", "inactive_file"])
        } else if controllers.split(',').any(|name| name == "memory") {
            let files = [
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            ];
            (self.mount.join("memory"), files)
        } else {
            return None;
        };
        // A group is limited by all that it lies in; inside a container its path may start
        // elsewhere.
        let below = path.trim_start_matches('/');
        Path::new(below)
            .ancestors()
            .filter_map(|group| left(&root.join(group), files))
            .min()
    }
}

/// The limit of one control group less what it uses; file pages that can be dropped are not used.
fn left(group: &Path, [limit, used, droppable]: [&str; 3]) -> Option<u64> {
    let number = |name: &str| -> Option<u64> { read(group.join(name))?.trim().parse().ok() };
    let droppable = read(group.join("memory.stat"))
        .and_then(|text| field(&text, droppable))
        .unwrap_or(0);
    Some(number(limit)?.saturating_sub(number(used)?.saturating_sub(droppable)))
}

fn read(path: PathBuf) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The number behind a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!(
            "mx_rec_room_{}_{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        for (name, text) in files {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn available(files: &[(&str, &str)]) -> Option<u64> {
        let root = written(files);
        let found = Places {
            machine: &root.join("meminfo"),
            groups: &root.join("groups"),
            mount: &root.join("cgroup"),
        }
        .available();
        fs::remove_dir_all(root).ok();
        found
    }

    const MACHINE: (&str, &str) = (
        "meminfo",
        "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:   700 kB\n",
    );

    #[test]
    fn the_machine_is_the_limit_without_control_groups() {
        assert_eq!(available(&[MACHINE]), Some(700 * 1024));
        assert_eq!(available(&[]), None);
        assert_eq!(available(&[("meminfo", "MemAvailable: many kB\n")]), None);
    }

    #[test]
    fn the_tightest_group_of_version_1_is_the_limit() {
        let found = available(&[
            MACHINE,
            (
                "groups",
                "9:name=systemd:/\n4:cpu,memory:/outer/inner\n0::/\n",
            ),
            ("cgroup/unified/cgroup.procs", ""),
            (
                "cgroup/memory/outer/inner/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("cgroup/memory/outer/inner/memory.usage_in_bytes", "5000\n"),
            ("cgroup/memory/outer/memory.limit_in_bytes", "10000\n"),
            ("cgroup/memory/outer/memory.usage_in_bytes", "6000\n"),
            (
                "cgroup/memory/outer/memory.stat",
                "cache 1\ntotal_inactive_file 1500\n",
            ),
        ]);
        assert_eq!(found, Some(10000 - (6000 - 1500)));
    }

    #[test]
    fn a_group_of_version_2_is_the_limit() {
        let group = |limit| {
            available(&[
                MACHINE,
                ("groups", "0::/job\n"),
                ("cgroup/job/memory.max", limit),
                ("cgroup/job/memory.current", "3000\n"),
                ("cgroup/job/memory.stat", "anon 1\ninactive_file 500\n"),
            ])
        };
        assert_eq!(group("4000\n"), Some(1500));
        assert_eq!(group("2000\n"), Some(0));
        assert_eq!(group("max\n"), Some(700 * 1024));
    }

    #[test]
    fn more_than_the_machine_has_is_refused_and_a_little_is_not() {
        assert_eq!(check(u64::MAX).unwrap_err().kind(), Kind::ResourceExhausted);
        assert!(check(ASKED - 1).is_ok());
    }
}
