//! A host of the plugin in Rust: sessions of TensorFlow 2.x through its C API.
//!
//! `library` opens TensorFlow and has it load the plugin; `graph`, `session` and `tensor` are the
//! parts of the C API that the tests need, with owners and errors; `status` reports what TensorFlow
//! refused. It never runs Python and is linked into nothing but tests. docs/c-abi.md says how to
//! run them.

mod graph;
mod library;
mod session;
mod status;
mod tensor;

pub use graph::{Graph, Node, NodeBuilder, Output, Shape};
pub use library::{load_plugin, op_list, plugin_path, version};
pub use session::Session;
pub use status::{Code, Failure, Result};
pub use tensor::{Element, Tensor};
