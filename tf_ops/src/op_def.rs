//! What an op is, as data: registration, shape functions, Python's static shapes and gradients, and
//! docs/ops.md follow from it.

use serde::Serialize;

/// An input or an output.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Arg {
    /// Its name.
    pub name: &'static str,
    /// TensorFlow's word for its type, or the name of a type attribute; `N * type` is a list.
    #[serde(rename = "type")]
    pub dtype: &'static str,
    /// Its shape, in the notation of [`crate::infer_shapes`].
    pub shape: &'static str,
    /// What it holds.
    pub doc: &'static str,
}

/// An attribute.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Attr {
    /// TensorFlow's notation: name, type, default.
    pub spec: &'static str,
    /// What it decides.
    pub doc: &'static str,
}

/// An op.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OpDef {
    /// Its name in a graph.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// Its inputs, in order.
    pub inputs: &'static [Arg],
    /// Its outputs, in order.
    pub outputs: &'static [Arg],
    /// Its attributes.
    pub attrs: &'static [Attr],
    /// When it fails, beyond wrong types and shapes.
    pub errors: &'static str,
    /// Whether TensorFlow must run it once for each step that asks for it, and fold or merge
    /// nothing.
    pub stateful: bool,
    /// Whether it has a gradient (python/mx_rec/ops/gradients.py); without one, no gradient goes
    /// through it.
    pub differentiable: bool,
}
