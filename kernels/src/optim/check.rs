//! Checks of hyperparameters: each error names the optimizer, the argument and its value.

use crate::{Error, Result};

/// `value` must be finite.
pub(super) fn finite(optimizer: &str, name: &'static str, value: f32) -> Result<()> {
    ensure(value.is_finite(), optimizer, name, "must be finite", value)
}

/// `value` must be finite and at least 0.
pub(super) fn not_negative(optimizer: &str, name: &'static str, value: f32) -> Result<()> {
    let good = value.is_finite() && value >= 0.0;
    ensure(
        good,
        optimizer,
        name,
        "must be finite and not negative",
        value,
    )
}

/// `value` must be finite and above 0.
pub(super) fn positive(optimizer: &str, name: &'static str, value: f32) -> Result<()> {
    let good = value.is_finite() && value > 0.0;
    ensure(good, optimizer, name, "must be finite and above 0", value)
}

/// `value` must be finite and at most 0.
pub(super) fn not_positive(optimizer: &str, name: &'static str, value: f32) -> Result<()> {
    let good = value.is_finite() && value <= 0.0;
    ensure(
        good,
        optimizer,
        name,
        "must be finite and not positive",
        value,
    )
}

/// `value` must lie in [0, 1].
pub(super) fn fraction(optimizer: &str, name: &'static str, value: f32) -> Result<()> {
    ensure(
        (0.0..=1.0).contains(&value),
        optimizer,
        name,
        "must lie in [0, 1]",
        value,
    )
}

/// `value` must lie in [0, 1).
pub(super) fn below_one(optimizer: &str, name: &'static str, value: f32) -> Result<()> {
    ensure(
        (0.0..1.0).contains(&value),
        optimizer,
        name,
        "must lie in [0, 1)",
        value,
    )
}

fn ensure(good: bool, optimizer: &str, name: &'static str, rule: &str, value: f32) -> Result<()> {
    if good {
        return Ok(());
    }
    Err(Error::invalid(format!("{optimizer}: {name} {rule}")).with(name, value))
}
