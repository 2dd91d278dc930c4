//! What an op is, as data: registration, shape functions, Python's static shapes and gradients, and
//! docs/ops.md follow from it.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// An input or an output.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// TensorFlow's notation: name, and its word for the type or the name of a type attribute;
    /// `N * type` is a list.
    pub spec: &'static str,
    /// Its shape, in the notation of [`crate::infer_shapes`].
    pub shape: &'static str,
    /// What it holds.
    pub doc: &'static str,
}

impl Arg {
    /// Its name.
    pub fn name(&self) -> &'static str {
        split(self.spec).0
    }

    /// Its type.
    pub fn dtype(&self) -> &'static str {
        split(self.spec).1
    }
}

impl Serialize for Arg {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Arg", 4)?;
        fields.serialize_field("name", self.name())?;
        fields.serialize_field("type", self.dtype())?;
        fields.serialize_field("shape", self.shape)?;
        fields.serialize_field("doc", self.doc)?;
        fields.end()
    }
}

/// The name in TensorFlow's notation, and what is said of it.
pub(crate) fn split(spec: &'static str) -> (&'static str, &'static str) {
    spec.split_once(": ").unwrap_or((spec, ""))
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

impl OpDef {
    /// What ops on tables have in common: no gradient goes through them, and they fail only for
    /// wrong types and shapes.
    pub const STATEFUL: OpDef = OpDef {
        name: "",
        doc: "",
        inputs: &[],
        outputs: &[],
        attrs: &[],
        errors: "none of its own.",
        stateful: true,
        differentiable: false,
    };
    /// The same of ops that work on tensors alone.
    pub const STATELESS: OpDef = OpDef {
        stateful: false,
        ..OpDef::STATEFUL
    };
}
