//! The border that no panic crosses, and how an error reads.

use mx_rec_kernels::{Error, Kind, Result};
use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs `work`; a panic becomes an `Internal` error that carries the panic's message.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic leaves half done is owned by the call (and dropped) or guarded by a lock of the
    // engine.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|cause| {
        Err(
            Error::new(Kind::Internal, "a defect of the plugin: the op panicked")
                .with("panic", panic_text(cause.as_ref())),
        )
    })
}

/// The message of a panic, by what `catch_unwind` gave.
pub fn panic_text(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| cause.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}

/// `<op> on table '<name>': <message> (<key>=<value>, ...)`.
pub(crate) fn explain(op: &str, error: &Error) -> String {
    let mut text = op.to_owned();
    if let Some((_, table)) = error.context().iter().find(|(name, _)| *name == "table") {
        text.push_str(&format!(" on table '{table}'"));
    }
    text.push_str(": ");
    text.push_str(error.message());
    let rest: Vec<String> = error
        .context()
        .iter()
        .filter(|(name, _)| *name != "table")
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !rest.is_empty() {
        text.push_str(&format!(" ({})", rest.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::panic, reason = "the panic is what the test is about")]
    fn a_panic_becomes_an_error_with_its_message() {
        let error = guarded(|| -> Result<()> { panic!("row {} is gone", 7) }).err();
        let text = error
            .map(|error| explain("MxRecRead", &error))
            .unwrap_or_default();
        assert!(text.contains("row 7 is gone"), "{text}");
    }

    #[test]
    fn an_explanation_names_op_table_and_values() {
        let error = Error::invalid("a row number is no row in use")
            .with("table", "users")
            .with("offset", 9);
        assert_eq!(
            explain("MxRecRead", &error),
            "MxRecRead on table 'users': a row number is no row in use (offset=9)"
        );
    }
}
