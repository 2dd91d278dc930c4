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
//! plan       the decisions and their encoding
//! ```

mod describe;
pub mod graph_def;
mod iterators;
mod library;
mod plan;
mod slice;
pub mod wire;

pub use plan::{IteratorKind, LookupKind, Plan, PlannedIds, PlannedIterator, PlannedLookup};
