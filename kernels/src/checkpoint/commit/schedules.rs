//! Two saves at once, driven through every pair of their steps: one runs up to a step, the other up
//! to one of its own, then the first goes on, then the other. Either may die where it waits.

use super::names::Place;
use super::tests::{content, save_tables};
use super::*;
use crate::checkpoint::temp::Temp;
use crate::whole::is_whole;
use crate::Kind;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

/// More steps than any of these saves takes.
const MANY: usize = 200;

thread_local! {
    /// The gate of the save that this thread makes.
    static GATE: RefCell<Option<Arc<Gate>>> = const { RefCell::new(None) };
}

/// Told of each time that a save finds the lock held.
pub(super) fn wait_for_lock() {
    GATE.with_borrow(|gate| {
        if let Some(gate) = gate {
            gate.progress.lock().unwrap().is_blocked = true;
            gate.changed.notify_all();
        }
    });
}

#[derive(Default)]
struct Progress {
    /// The step that the save is about to take.
    next: usize,
    /// It waits before this one.
    allowed: usize,
    /// From this one on all are refused: its process is gone.
    dead: Option<usize>,
    /// The other one holds the lock that it wants.
    is_blocked: bool,
    has_ended: bool,
}

/// Lets a save take its steps up to a number.
#[derive(Default)]
struct Gate {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) -> io::Result<()> {
        let mut progress = self.progress.lock().unwrap();
        let number = progress.next;
        self.changed.notify_all();
        while number >= progress.allowed {
            progress = self.changed.wait(progress).unwrap();
        }
        progress.next += 1;
        match progress.dead.is_some_and(|from| number >= from) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }

    fn run<T>(&self, work: impl FnOnce(&mut Steps<'_>) -> T) -> T {
        let mut before = |_: Step, _: &Path| self.pass();
        work(&mut Steps::new(&mut before))
    }

    fn is_dead(&self) -> bool {
        let progress = self.progress.lock().unwrap();
        progress.dead.is_some_and(|from| progress.next > from)
    }

    /// Lets the save go on before step `end`, and waits until it is there, has ended, or waits for
    /// the other one. Whether it is there.
    fn go_on(&self, end: usize) -> bool {
        let mut progress = self.progress.lock().unwrap();
        progress.allowed = end;
        progress.is_blocked = false;
        self.changed.notify_all();
        while !progress.has_ended && !progress.is_blocked && progress.next < end {
            progress = self.changed.wait(progress).unwrap();
        }
        !progress.has_ended
    }

    fn die(&self) {
        let mut progress = self.progress.lock().unwrap();
        progress.dead = Some(progress.next);
    }
}

/// A save as Python's `checkpoint/commit.py` and TensorFlow make it.
fn save(dir: &Path, name: &str, text: &str, gate: &Gate) -> Result<(), Refused> {
    let target = dir.join(name);
    gate.run(|steps| clean(&target, steps))?;
    let mut commit = gate.run(|steps| Commit::begin(&target, steps))?;
    save_tables(&commit, text);
    if let Err(refused) = gate.run(|steps| commit.put_in_place(&content(), steps)) {
        let undone = gate.run(|steps| commit.undo(steps));
        assert!(undone.is_ok() || gate.is_dead(), "{undone:?}");
        return Err(refused);
    }
    for file in files(name) {
        let scratch = dir.join(format!("scratch-{text}"));
        fs::write(&scratch, text).unwrap();
        if let Err(refused) = gate.run(|steps| steps.rename(&scratch, &dir.join(file))) {
            fs::remove_file(&scratch).unwrap();
            return Err(refused);
        }
    }
    gate.run(|steps| commit.finish(steps))?;
    match gate.is_dead() {
        true => Err(Refused::NoDirectory(target)),
        false => Ok(()),
    }
}

/// The variables of a checkpoint, in the order in which TensorFlow writes them.
fn files(name: &str) -> [String; 2] {
    let place = Place::new(Path::new("/").join(name).as_path()).unwrap();
    [
        format!("{}.data-00000-of-00001", place.checkpoint()),
        place.index(),
    ]
}

/// A save without a gate, that may die.
fn alone(dir: &Path, name: &str, text: &str, dies: Option<usize>) -> bool {
    let gate = Gate::default();
    {
        let mut progress = gate.progress.lock().unwrap();
        progress.allowed = usize::MAX;
        progress.dead = dies;
    }
    // Nobody hears of a dead one.
    let saved = save(dir, name, text, &gate);
    assert!(saved.is_ok() || dies.is_some(), "{saved:?}");
    saved.is_ok()
}

type Running = (Arc<Gate>, JoinHandle<Result<(), Refused>>);

fn start(dir: &Path, name: &'static str, text: &'static str) -> Running {
    let gate = Arc::new(Gate::default());
    let (own, dir) = (Arc::clone(&gate), dir.to_owned());
    let save = thread::spawn(move || {
        GATE.set(Some(Arc::clone(&own)));
        let saved = save(&dir, name, text, &own);
        own.progress.lock().unwrap().has_ended = true;
        own.changed.notify_all();
        saved
    });
    (gate, save)
}

/// Who dies where it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Nobody,
    First,
    Second,
}

/// What is there before two saves begin.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// A checkpoint.
    whole: Option<&'static str>,
    /// A save that has died before one of its steps.
    dead: Option<(&'static str, usize)>,
}

const NOTHING: Before = Before {
    whole: None,
    dead: None,
};

/// Drives two saves; gives whether each of them waited at its step, rather than to have ended.
fn drive(names: [&'static str; 2], before: Before, ends: [usize; 2], death: Death) -> [bool; 2] {
    let context = format!("{names:?} {before:?} {ends:?} {death:?}");
    let temp = Temp::in_memory();
    let dir = &temp.0;
    if let Some(name) = before.whole {
        alone(dir, name, "old", None);
    }
    if let Some((name, step)) = before.dead {
        alone(dir, name, "dead", Some(step));
    }
    let saves = [start(dir, names[0], "one"), start(dir, names[1], "two")];
    let mut waited = [false; 2];
    for (number, (gate, _)) in saves.iter().enumerate() {
        waited[number] = gate.go_on(ends[number]);
        let dies = [Death::First, Death::Second][number] == death;
        if dies {
            gate.die();
            gate.go_on(usize::MAX);
        }
    }
    for (gate, _) in &saves {
        gate.go_on(usize::MAX);
    }
    let [(first, one), (second, two)] = saves;
    let results = [one, two].map(|save| save.join().unwrap());
    let died = [first, second].map(|gate| gate.is_dead());
    let is_same = files(names[0]) == files(names[1]);
    for (number, other) in [(0, 1), (1, 0)] {
        let is_excused = match &results[number] {
            Err(Refused::Unsound(error)) if error.kind() == Kind::Aborted => {
                is_same && (results[other].is_ok() || died[other])
            }
            result => result.is_ok(),
        };
        assert!(is_excused || died[number], "{context} {results:?}");
    }
    // Where something is left, the next save of each base removes it.
    if temp.entries().iter().any(|name| name.starts_with('.')) {
        for next in ["sparse-m-9", "sparse-n-9"] {
            alone(dir, next, "next", None);
        }
    }
    let mut left: Vec<String> = temp.entries();
    left.sort();
    let hidden: Vec<_> = left.iter().filter(|name| name.starts_with('.')).collect();
    assert!(hidden.is_empty(), "{context} {left:?}");
    let texts = ["one", "two"];
    let of_dead = before.dead.map(|(name, _)| name);
    for name in names.iter().chain(&before.whole).chain(&of_dead) {
        let own = files(name);
        let mut done = Vec::new();
        done.extend(before.whole.filter(|old| files(old) == own).map(|_| "old"));
        let saved = results.iter().zip(texts).zip(names);
        let saved = saved.filter(|((result, _), other)| result.is_ok() && files(other) == own);
        done.extend(saved.map(|((_, text), _)| text));
        let mut said = Vec::new();
        let place = Place::new(&dir.join(name)).unwrap();
        for tables in [&place, &place.other_kind()] {
            said.extend(fs::read_to_string(tables.path().join("text")).ok());
            assert!(!tables.path().exists() || tables.path().join("users/manifest.json").is_file());
        }
        said.extend(
            own.iter()
                .filter_map(|file| fs::read_to_string(dir.join(file)).ok()),
        );
        let is_whole = said.len() == 3 && said.iter().all(|text| *text == said[0]);
        assert!(
            is_whole || (said.is_empty() && done.is_empty()),
            "{context} {name} {said:?} {left:?}"
        );
        let lasts = texts
            .into_iter()
            .zip(died)
            .filter(|(_, died)| *died)
            .map(|(text, _)| text);
        let allowed: Vec<&str> = done.iter().copied().chain(lasts).chain(["dead"]).collect();
        assert!(
            said.first()
                .is_none_or(|text| allowed.contains(&text.as_str())),
            "{context} {said:?}"
        );
        // What was replaced does not come back over what replaced it.
        if done.iter().any(|text| *text != "old") {
            assert!(said[0] != "old" && said[0] != "dead", "{context} {said:?}");
        }
    }
    waited
}

/// Every pair of steps; gives how many schedules that were. Where the first save has died before the
/// second begins, nothing happens while that one waits, wherever it does: it does not wait.
fn drive_all(names: [&'static str; 2], before: Before, deaths: &[Death]) -> usize {
    let mut count = 0;
    for &death in deaths {
        let seconds = match death {
            Death::First => MANY..MANY + 1,
            _ => 0..MANY,
        };
        for first in 0..MANY {
            let mut is_waiting = false;
            for second in seconds.clone() {
                let waited = drive(names, before, [first, second], death);
                count += 1;
                is_waiting = waited[0];
                if !waited[1] {
                    break;
                }
            }
            if !is_waiting {
                break;
            }
        }
    }
    count
}

const ALL: [Death; 3] = [Death::Nobody, Death::First, Death::Second];

#[test]
fn saves_of_two_steps_bases_or_kinds_leave_each_other_whole() {
    let others = ["sparse-m-2", "sparse-n-1", "delta-sparse-m-2"];
    for other in others.into_iter().take(if is_whole() { 3 } else { 1 }) {
        assert!(drive_all(["sparse-m-1", other], NOTHING, &ALL) > 300);
    }
}

#[test]
fn of_two_saves_of_one_step_one_stays_whole() {
    let old = Before {
        whole: Some("sparse-m-1"),
        dead: None,
    };
    for names in [
        ["sparse-m-1", "sparse-m-1"],
        ["sparse-m-1", "delta-sparse-m-1"],
    ] {
        assert!(drive_all(names, old, &ALL) > 200);
        if is_whole() {
            assert!(drive_all(names, NOTHING, &ALL) > 200);
        }
    }
}

#[test]
fn what_a_dead_save_left_is_put_right_by_one_of_two() {
    let mut removed = 0;
    for (number, step) in (0..MANY).step_by(4).enumerate() {
        let whole = [None, Some("sparse-m-1")][number % 2];
        let before = Before {
            whole,
            dead: Some(("sparse-m-1", step)),
        };
        let others = [
            ["sparse-m-2", "sparse-m-3"],
            ["sparse-m-1", "sparse-m-2"],
            ["sparse-m-2", "sparse-m-1"],
            ["sparse-m-1", "sparse-m-1"],
        ];
        drive_all(others[number / 2 % 4], before, &[Death::Nobody]);
        removed += 1;
        let temp = Temp::in_memory();
        if alone(&temp.0, "sparse-m-1", "dead", Some(step)) {
            break;
        }
    }
    assert!(removed > 3);
}
