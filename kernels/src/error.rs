//! The one error type of the engine: a coarse kind, a message, and context pairs.

use std::fmt;

/// What went wrong, as coarse as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An argument has a wrong value, shape or range; nothing was changed.
    InvalidArgument,
    /// A file, a slot or a table that was named does not exist.
    NotFound,
    /// The table's row budget, or the memory of the machine, does not hold what was asked for.
    ResourceExhausted,
    /// What the call relies on was replaced meanwhile; to begin again helps.
    Aborted,
    /// Bytes that were read are not what was written.
    DataLoss,
    /// The operating system refused an operation on a file or on memory.
    Io,
    /// A defect of this library.
    Internal,
}

/// An error with the values that explain it.
///
/// `Display` prints `message (key=value, key=value)`.
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    context: Vec<(&'static str, String)>,
}

/// The result of everything in the engine that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error without context; add it with [`Error::with`].
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            context: Vec::new(),
        }
    }

    /// Shorthand for [`Kind::InvalidArgument`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::InvalidArgument, message)
    }

    /// Adds one `name=value` pair that explains the message.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.context.push((name, value.to_string()));
        self
    }

    /// What a caller can act on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The message without its context.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The pairs added by [`Error::with`], oldest first.
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.context
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for (at, (name, value)) in self.context.iter().enumerate() {
            write!(f, "{}{name}={value}", if at == 0 { " (" } else { ", " })?;
        }
        f.write_str(if self.context.is_empty() { "" } else { ")" })
    }
}

impl std::error::Error for Error {}
