//! One embedding table: keys, rows, and every verb on them.
//!
//! A [`Table`] is its configuration, its keys and its rows. Each of the two has its data, its locks
//! and the functions on them; the verbs of the table order the locks.
//!
//! | room | what |
//! |---|---|
//! | `config`, `args` | settings, arguments, results |
//! | `rows` | by row number: content, offsets; rows in use, free, frozen, staged, leased, retired |
//! | `stats`, `keys` | counters; by key: the index, the history, which observed keys are admitted |
//! | `engine`, `initial` | the table, new rows and what they start with, removal |
//! | `group` | what verbs on many tables share |
//! | `disk` | how rows on disk get into memory for a verb, and others out of it |
//! | `verbs` | lookups, updates, admission, eviction; `group*` are those on many tables at once |
//! | `whole` | the whole content with its history: out, in, and changed for another |
//!
//! A room uses those above it, and none below.
//!
//! Where the floats of a row are, in memory or on disk, is the business of `stores`: here rows have
//! numbers.
//!
//! # Locks
//!
//! A thread that needs several locks takes them in this order, and releases them in any:
//!
//! | lock | of | guards |
//! |---|---|---|
//! | `turn` | tier | who moves rows between memory and disk |
//! | `index` | keys | which key has which row |
//! | `flight` | rows | staged, leased and retired rows |
//! | `content` | rows | the rows' floats, and which rows are used |
//! | `births` | rows | the generations of rows; taken inside of `Content` and `Rows` alone |
//! | `history` | keys | how often and when keys were seen |
//!
//! [`Table::swap_contents`] and the verbs on groups of tables take locks of several tables: first
//! `index` of all, then `flight` and `content` of each, both times in the order of the tables'
//! addresses. They wait for another table while they hold locks, and nobody else does.
//!
//! `observed`, `scratch` and the offset buffers have locks that are held for a moment, with no
//! other lock taken under them. `index` and `content` are held for a whole batch each, so that the
//! key work of one batch overlaps the update of another. Work handed to a [`Pool`](crate::Pool)
//! takes no lock but one of a shard of counters. Generations of rows change only under the write
//! lock of `content`; rows leave their keys only under that of `index` as well.

mod args;
mod config;
mod disk;
mod engine;
mod group;
mod initial;
mod keys;
mod rows;
mod stats;
mod verbs;
mod whole;

pub use args::{Absent, LookupGradients, Memory, RowGradients, SlotValues};
pub use config::{RowStorage, TableConfig, TierConfig, MAX_CAPACITY, MAX_DIM};
pub use engine::Table;
pub use rows::tier::TierStats;
pub use stats::Stats;
pub use verbs::admission::Thresholds;
pub use verbs::by_key::KeysOf;
pub use verbs::fields::{BatchRows, Field, FieldUpdate};
pub use verbs::group_lookup::IdsOf;
pub use verbs::group_push::{KeyGradients, Push, Pushed};
pub use verbs::lease::Lease;
pub use verbs::read::RowsOf;
pub use whole::export::Snapshot;
pub(crate) use whole::export::Window;
pub(crate) use whole::load::BuiltContent;
pub use whole::load::Loading;
