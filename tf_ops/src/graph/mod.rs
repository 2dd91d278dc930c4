//! The graph pass: reads a GraphDef and plans what can move into the input pipeline. It needs no
//! TensorFlow.
//!
//! ```text
//! wire       protobuf's wire format
//! graph_def  GraphDef, NodeDef, FunctionDef, OpList, borrowed from the input
//! describe   nodes and names in the reasons of a plan
//! library    which functions are stateful
//! slice      the walk from ids back to the iterator
//! iterators  which iterators may be extended
//! lists      nodes that take lists of tensors
//! tensors    static shapes and constants
//! sizes      the sizes that shapes are computed from
//! consumers  who reads a tensor
//! known      what a search finds, or that it cannot be told
//! readers    the nodes that read rows, and those that take their gradients
//! weights    products of rows with one weight for each id
//! repeated   what a gradient repeats for the ids of a bag
//! sums       the rule for sums over bags
//! concats    the rule for concatenations of lookups
//! columns    gradients that are columns of the gradient of a concatenation
//! updates    the rules for updates of tables
//! numbers    which numbers of optimizers are the same
//! alive      which nodes have a value in each run
//! bags       what moves with the ids of pooled lookups
//! together   the rule for lookups that share an op
//! requests   the rule for lookups on parameter servers that share requests
//! plan       the decisions and their encoding
//! ```

mod alive;
mod bags;
mod columns;
mod concats;
mod consumers;
mod describe;
pub mod graph_def;
mod iterators;
mod known;
mod library;
mod lists;
mod numbers;
mod plan;
mod readers;
mod repeated;
mod requests;
mod sizes;
mod slice;
mod sums;
mod tensors;
mod together;
mod updates;
mod weights;
pub mod wire;

pub use concats::{PlannedColumns, PlannedConcat, PlannedPart};
pub use graph_def::ShapeOf;
pub use plan::{IteratorKind, LookupKind, Plan, PlannedIds, PlannedIterator, PlannedLookup};
pub use repeated::Repeated;
pub use requests::PlannedRequests;
pub use sums::{Combiner, PlannedGradient, PlannedSum, PlannedSums};
pub use together::PlannedGroup;
pub use updates::{PlannedMember, PlannedUpdate, PlannedUpdates};
pub use weights::PlannedWeights;
