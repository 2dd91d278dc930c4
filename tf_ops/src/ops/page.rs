//! The definitions of all ops for people (docs/ops.md), and as JSON for Python.

use crate::op_def::split;
use mx_rec_kernels::{Error, Kind, Number, Result, OPTIMIZERS};
use serde::Serialize;
use std::fmt::Write;

const HEAD: &str = "# Ops

The ops that `libmx_rec.so` adds to TensorFlow. This page is made from their definitions:
`cargo run -p mx_rec_tf_ops --example ops_doc > docs/ops.md`; a test compares the two.

`handle` is the number of a table, made by `MxRecTable`. Key -1 is padding: it never has a row, its
embedding is zeros, its gradient is dropped. An *offset* is the number of a row in its table. Every
error names the op and the table; an op that fails sets no output and leaves the table as it was.
Wrong types are refused by TensorFlow, wrong shapes with `INVALID_ARGUMENT`, when the graph is built
if they are known there and when the op runs otherwise. A handle of no table (its session was
closed) is `NOT_FOUND`. TensorFlow folds and merges ops only that are called stateless, and
gradients go only through those that are called differentiable.

In shapes, a name is a size that is the same wherever it occurs in an op; `s...` is any number of
sizes; `N times (u)` is a list of N tensors, N being an attribute, with a `u` for each of them;
`(e...) if B or (u)` is the first where the lists of B have tensors, else the second.
";

const OPTIMIZERS_HEAD: &str = "
## Optimizers

What `optimizer` of MxRecUpdate and MxRecPush names, and what `hyper` is in each case, in this
order. g is the summed gradient of a row, w the row; each slot has as many columns as the row.
";

/// docs/ops.md.
pub fn render() -> String {
    let mut page = HEAD.to_owned();
    for op in super::definitions() {
        let kind = match (op.stateful, op.differentiable) {
            (true, false) => "",
            (true, true) => " Differentiable.",
            (false, false) => " Stateless.",
            (false, true) => " Stateless, differentiable.",
        };
        let errors = match op.errors {
            "none of its own." => String::new(),
            errors => format!(" *Errors*: {errors}"),
        };
        let (name, doc) = (op.name, op.doc);
        let _ = write!(page, "\n## {name}\n\n{doc}{kind}{errors}\n\n");
        page.push_str("| | name | type | shape | meaning |\n|---|---|---|---|---|\n");
        for (kind, args) in [("input", op.inputs), ("output", op.outputs)] {
            for arg in args {
                let _ = writeln!(
                    page,
                    "| {kind} | {} | {} | {} | {} |",
                    arg.name(),
                    arg.dtype(),
                    arg.shape,
                    arg.doc
                );
            }
        }
        for attr in op.attrs {
            let (name, kind) = split(attr.spec);
            let _ = writeln!(page, "| attr | {name} | {kind} | | {} |", attr.doc);
        }
    }
    page.push_str(OPTIMIZERS_HEAD);
    for (number, optimizer) in OPTIMIZERS.iter().enumerate() {
        let (name, doc) = (optimizer.name, optimizer.doc);
        let _ = write!(
            page,
            "\n### {number}: {name}\n\n{doc}\n\n| | name | meaning |\n|---|---|---|\n"
        );
        for Number { name, range, doc } in optimizer.numbers {
            let _ = writeln!(page, "| number | {name} | {doc} It {}. |", range.rule);
        }
        for slot in optimizer.slots {
            let start = match slot.starts_at {
                Some(number) => format!("Starts at {number}."),
                None => format!("Starts at {}.", slot.initial),
            };
            let form = if slot.per_row {
                " One float for a row."
            } else {
                ""
            };
            let _ = writeln!(page, "| slot | {} | {start}{form} |", slot.name);
        }
    }
    page
}

/// The definitions as JSON in UTF-8; include/mx_rec.h has its fields.
///
/// # Errors
/// `Internal` if they cannot be written as JSON.
pub fn json() -> Result<Vec<u8>> {
    written(&super::definitions())
}

/// The optimizers as JSON in UTF-8; include/mx_rec.h has its fields.
///
/// # Errors
/// As [`json`].
pub fn optimizers() -> Result<Vec<u8>> {
    written(&OPTIMIZERS)
}

fn written(definitions: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(definitions).map_err(|error| {
        Error::new(Kind::Internal, "the definitions cannot be written as JSON").with("cause", error)
    })
}
