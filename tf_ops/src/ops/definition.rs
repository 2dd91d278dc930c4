//! What an op is, as data, and how it reads as documentation.

use std::fmt::Write;

/// An input or an output.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Its name.
    pub name: &'static str,
    /// TensorFlow's word for its type, or the name of a type attribute.
    pub dtype: &'static str,
    /// Its shape.
    pub shape: &'static str,
    /// What it holds.
    pub doc: &'static str,
}

/// An attribute.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// TensorFlow's notation: name, type, default.
    pub spec: &'static str,
    /// What it decides.
    pub doc: &'static str,
}

/// An op.
#[derive(Clone, Copy, Debug)]
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
    /// Whether TensorFlow must run it once for each step that asks for it, and fold or merge nothing.
    pub stateful: bool,
}

const HEAD: &str = "# Ops

The ops that `libmx_rec.so` adds to TensorFlow. This page is made from their definitions: `cargo run -p mx_rec_tf_ops
--example ops_doc > docs/ops.md`; a test compares the two.

`handle` is the number of a table, made by `MxRecTable`. Key -1 is padding: it never has a row, its embedding is zeros,
its gradient is dropped. An *offset* is the number of a row in its table. Every error names the op and the table; an op
that fails sets no output and leaves the table as it was. Wrong types are refused by TensorFlow, wrong shapes with
`INVALID_ARGUMENT`, when the graph is built if they are known there and when the op runs otherwise. A handle of no
table (its session was closed) is `NOT_FOUND`.
";

/// docs/ops.md.
pub fn render() -> String {
    let mut page = HEAD.to_owned();
    for op in super::definitions() {
        let _ = write!(page, "\n## {}\n\n{}\n\n", op.name, op.doc);
        page.push_str("| | name | type | shape | meaning |\n|---|---|---|---|---|\n");
        for (kind, args) in [("input", op.inputs), ("output", op.outputs)] {
            for arg in args {
                let _ = writeln!(
                    page,
                    "| {kind} | {} | {} | {} | {} |",
                    arg.name, arg.dtype, arg.shape, arg.doc
                );
            }
        }
        for attr in op.attrs {
            let (name, kind) = attr.spec.split_once(':').unwrap_or((attr.spec, ""));
            let _ = writeln!(page, "| attr | {name} | {} | | {} |", kind.trim(), attr.doc);
        }
        let _ = write!(
            page,
            "\n{}. Errors: {}\n",
            if op.stateful { "Stateful" } else { "Stateless" },
            op.errors
        );
    }
    page
}
