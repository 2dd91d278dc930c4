//! The ops, one file for each family, and docs/ops.md, which is made from their definitions.

mod admission;
mod bag_inputs;
mod bags;
mod cluster;
mod cluster_admission;
mod cluster_parts;
mod cluster_rows;
mod fields;
mod file;
mod find;
mod handle;
mod inspect;
mod keys;
mod lists;
mod page;
mod pooled;
mod read;
mod resolve;
mod rows;
mod sparse_bags;
mod support;
mod update;
mod variables;

pub use page::{json, optimizers, render};

use crate::op_def::OpDef;
use crate::sys::TensorFlow;
use crate::tf::{has_kernel, register, OpKernel};
use mx_rec_kernels::{Error, Kind, Result};

/// Calls `$with::<K>($args)` for every op; the one list of ops.
macro_rules! for_each_op {
    ($with:ident) => {
        $with!(
            handle::MakeTable,
            resolve::IdOffset,
            resolve::Prepare,
            admission::Observe,
            admission::Admit,
            admission::SetThreshold,
            admission::Evict,
            read::Read,
            rows::Restore,
            rows::Reduce,
            rows::ReduceColumns,
            find::Find,
            bags::BagEnds,
            bags::RaggedBagEnds,
            bags::SparseBagEnds,
            bags::BagWeights,
            bags::BagDivisors,
            pooled::RestorePooled,
            pooled::ReducePooled,
            pooled::PooledWeightGradient,
            sparse_bags::SparseBagsMany,
            update::Update,
            fields::ReadRows,
            fields::WriteRows,
            admission::Stats,
            inspect::Export,
            keys::Assign,
            keys::Remove,
            inspect::Clear,
            file::Save,
            file::Load,
            cluster::ClusterTable,
            cluster::DistinctSplit,
            cluster::Stitch,
            cluster::PackGradients,
            cluster_rows::Pull,
            cluster_rows::Push,
            cluster_parts::Init,
            cluster_parts::PartNode,
            cluster_parts::StagePart,
            cluster_parts::Discard,
            cluster_parts::Publish,
            cluster_admission::PartObserve,
            variables::CheckedIds
        )
    };
}

/// Whether the TensorFlow of this process has our ops already: from another copy of the plugin.
///
/// # Errors
/// TensorFlow's message.
pub(crate) fn registered(api: &'static TensorFlow) -> Result<bool, String> {
    has_kernel(api, handle::MakeTable::DEF.name)
}

/// Registers every op.
///
/// # Errors
/// TensorFlow's message for the first op it refuses.
pub(crate) fn register_all(api: &'static TensorFlow) -> Result<(), String> {
    macro_rules! all {
        ($($op:ty),*) => { $(register::<$op>(api)?;)* };
    }
    for_each_op!(all);
    Ok(())
}

/// The definitions of all ops, in the order of docs/ops.md.
pub fn definitions() -> Vec<&'static OpDef> {
    macro_rules! all {
        ($($op:ty),*) => { vec![$(<$op as OpKernel>::DEF),*] };
    }
    for_each_op!(all)
}

/// The definition of an op.
///
/// # Errors
/// `NotFound` if there is no such op.
pub fn definition(name: &str) -> Result<&'static OpDef> {
    let found = definitions().into_iter().find(|def| def.name == name);
    found.ok_or_else(|| Error::new(Kind::NotFound, "the plugin has no such op").with("op", name))
}
