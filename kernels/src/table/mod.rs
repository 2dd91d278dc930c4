//! One embedding table: keys, rows, and every verb on them.
//!
//! A [`Table`] is its configuration, its keys and its rows. Each of the two has its data, its locks
//! and the functions on them; the verbs of the table order the locks.
//!
//! | file | what |
//! |---|---|
//! | `config`, `args`, `stats` | settings, arguments, results, counters |
//! | `engine` | the table, new rows, removal |
//! | `keys` | by key: the index, the history, counters |
//! | `decision`, `observed` | which observed keys are admitted |
//! | `rows` | by row number: content, leases, offsets |
//! | `content`, `free_rows` | rows in use, free, frozen; the slots of a row |
//! | `changes` | which rows changed since which save |
//! | `offset`, `offset_buffers` | row numbers with their generation; memory for them |
//! | `flight`, `fingerprint`, `key_map` | staged, leased and retired rows |
//! | `lease` | batches that are prepared ahead of their step |
//! | `read` | lookup and find |
//! | `initial` | the rows that keys start with |
//! | `pooled` | lookup and find of bags |
//! | `admission`, `evict` | which keys get rows, and which lose them |
//! | `apply` | updates and assignment |
//! | `fields` | updates that are computed outside of the table |
//! | `group*` | lookups and updates of many tables at once |
//! | `tier` | what a table on disk has beside its rows |
//! | `crowding` | whether memory is too small for the batches ahead |
//! | `tiered`, `exchange` | how rows on disk get into memory for a verb, and others out of it |
//! | `export`, `load`, `swap`, `history_io` | the whole content, out and in; its history |
//!
//! Where the floats of a row are, in memory or on disk, is the business of `rows`: here rows have
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

mod admission;
#[cfg(test)]
mod admission_tests;
mod apply;
mod args;
mod changes;
mod config;
mod content;
mod crowding;
mod decision;
mod engine;
mod evict;
mod exchange;
mod export;
mod fields;
mod fingerprint;
mod flight;
mod free_rows;
mod group;
mod group_apply;
mod group_lookup;
mod group_pooled;
mod group_prepare;
mod group_push;
mod group_read;
mod history_io;
mod initial;
mod key_map;
mod keys;
mod lease;
mod load;
mod observed;
mod offset;
mod offset_buffers;
mod pooled;
mod read;
mod rows;
mod same_ids;
mod shared_keys;
mod stats;
mod swap;
mod tier;
mod tiered;

pub use admission::Thresholds;
pub use args::{Absent, Export, LookupGradients, Memory, Target};
pub use config::{TableConfig, TierConfig, MAX_CAPACITY, MAX_DIM};
pub use engine::Table;
pub use export::Snapshot;
pub(crate) use export::Window;
pub use fields::{BatchRows, Field, FieldUpdate};
pub use group_apply::{LookupColumns, RowGradients};
pub use group_lookup::IdsOf;
pub use group_pooled::{BagsOf, KeyBagsOf};
pub use group_push::{KeyGradients, Push, Pushed};
pub use group_read::{KeysOf, RowsOf};
pub use lease::Lease;
pub(crate) use load::BuiltContent;
pub use load::Loading;
pub use shared_keys::SharedKeys;
pub use stats::Stats;
pub use tier::TierStats;
