//! From keys to row numbers: the hash, one shard, and all shards of a table.

mod hash;
mod shard;
mod sharded;

pub(crate) use hash::{hash, scale, top};
pub(crate) use sharded::Index;
