//! The commit of a whole checkpoint: all its tables, saved into one hidden directory, come into
//! place together, what they replace comes back if the variables fail, and what dead processes left
//! goes.
//!
//! docs/checkpoint-format.md says what is on disk after each step. `steps` takes every step on the
//! disk, and tells of it first; `names` says which names belong to a checkpoint, `processes` which
//! processes live, also by the `heartbeat` of those on other machines; `sealed` writes the
//! manifest; `recovery` puts back what was replaced, `leftovers` cleans, one
//! process at a time (`lock`), and `replace` is the commit.

mod heartbeat;
mod leftovers;
mod lock;
mod names;
mod processes;
mod recovery;
mod replace;
mod sealed;
mod steps;

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;

pub use leftovers::clean;
pub use recovery::{discard, flush_variables, recover};
pub use replace::Commit;
pub use sealed::manifest;
pub use steps::{Level, Refused, Step, Steps};
