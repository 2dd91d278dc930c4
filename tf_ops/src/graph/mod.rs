//! The graph pass: a GraphDef in, a plan out, of what can move into the input pipeline. It needs no TensorFlow.
//!
//! ```text
//! wire       protobuf's wire format
//! graph_def  GraphDef, NodeDef, FunctionDef, OpList, read in place
//! library    which functions keep state
//! slice      the walk from ids back to the iterator
//! iterators  which iterators may be extended
//! plan       the decision and its form
//! ```

pub mod graph_def;
mod iterators;
mod library;
mod plan;
mod slice;
pub mod wire;
mod words;

pub use plan::{Ids, Iterator, IteratorKind, Lookup, LookupKind, Plan};
