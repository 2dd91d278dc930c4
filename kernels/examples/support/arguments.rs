//! What is given to a bench: `--quick`, and names with values.

/// The arguments of this process.
pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    pub(crate) fn of_process() -> Arguments {
        Arguments(std::env::args().skip(1).collect())
    }

    /// The value behind a name.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|argument| argument == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    /// The number behind a name, else one of the two defaults: the second with `--quick`.
    pub(crate) fn number(&self, name: &str, full: usize, small: usize) -> usize {
        let given = self.text(name).and_then(|value| value.parse().ok());
        given.unwrap_or(if self.has("--quick") { small } else { full })
    }

    /// Whether a name is given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|argument| argument == name)
    }
}
