//! What the registry promises under either policy of ownership. tests/loom has its interleavings.

use crate::registry::{Registry, Settings};
use mx_rec_kernels::{Error, Kind, Result};
use std::sync::Arc;

/// A dimension.
impl Settings for u32 {
    fn difference(&self, other: &Self) -> Option<(String, String, String)> {
        (self != other).then(|| ("dim".to_owned(), self.to_string(), other.to_string()))
    }
}

type Names = Registry<&'static str, u32, Arc<()>>;

fn registry() -> (Names, Arc<()>) {
    let held = Arc::new(());
    let hold = Arc::clone(&held);
    (Registry::new(5, move || Arc::clone(&hold)), held)
}

fn message<T>(result: Result<T>) -> (Option<Kind>, String) {
    let error = result.err();
    let text = error.as_ref().map(ToString::to_string);
    (error.map(|error| error.kind()), text.unwrap_or_default())
}

#[test]
fn a_session_s_own_table_ends_with_its_reference_and_its_number_is_never_given_again() -> Result<()>
{
    let (registry, held) = registry();
    let first = registry.own("users");
    let number = first.number();
    let in_flight = registry.get(number)?;
    let twin = registry.own("users");
    assert_ne!(number, twin.number());
    assert_eq!(Arc::strong_count(&held), 4);
    drop(first);
    assert_eq!(message(registry.get(number)).0, Some(Kind::NotFound));
    assert_eq!(
        (*in_flight, *registry.get(twin.number())?),
        ("users", "users")
    );
    assert_eq!(Arc::strong_count(&held), 3);
    drop(twin);
    assert_ne!(registry.own("users").number(), number);
    assert_eq!(Arc::strong_count(&held), 2);
    Ok(())
}

#[test]
fn a_shared_name_is_one_table_that_outlives_its_references() -> Result<()> {
    let (registry, held) = registry();
    let first = registry.open("users", 8, |_| Ok("made once"))?;
    let second = registry.open("users", 8, |_| Ok("made twice"))?;
    assert_eq!(first.number(), second.number());
    assert_eq!(*registry.get(second.number())?, "made once");
    assert_eq!(registry.references("users"), Some(2));
    let number = first.number();
    drop((first, second));
    assert_eq!(registry.references("users"), Some(0));
    let third = registry.open("users", 8, |_| Ok("made again"))?;
    assert_eq!(
        (third.number(), *registry.get(number)?),
        (number, "made once")
    );
    assert_ne!(registry.own("users").number(), number);
    assert_eq!(Arc::strong_count(&held), 3);
    Ok(())
}

#[test]
fn another_configuration_is_refused_with_what_differs_and_changes_nothing() -> Result<()> {
    let (registry, _held) = registry();
    let first = registry.open("users", 8, |_| Ok("users"))?;
    let (kind, text) = message(registry.open("users", 16, |_| Ok("other")));
    assert_eq!(kind, Some(Kind::InvalidArgument));
    for part in ["table=users", "setting=dim", "made_by=8", "asked_for=16"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(registry.references("users"), Some(1));
    assert_eq!(*registry.get(first.number())?, "users");
    Ok(())
}

#[test]
fn an_ended_name_is_free_and_late_references_to_the_old_table_do_no_harm() -> Result<()> {
    let (registry, held) = registry();
    let killed = registry.open("users", 8, |_| Ok("old"))?;
    registry.end("users")?;
    assert_eq!(
        message(registry.get(killed.number())).0,
        Some(Kind::NotFound)
    );
    assert_eq!(Arc::strong_count(&held), 2);
    assert_eq!(message(registry.end("users")).0, Some(Kind::NotFound));
    let new = registry.open("users", 16, |_| Ok("new"))?;
    drop(killed);
    assert_eq!(registry.references("users"), Some(1));
    assert_eq!(*registry.get(new.number())?, "new");
    Ok(())
}

#[test]
fn a_table_that_cannot_be_made_leaves_no_name() -> Result<()> {
    let (registry, held) = registry();
    let refused = registry.open("users", 0, |_| Err(Error::invalid("dim must be 1 or more")));
    assert!(message(refused).1.contains("1 or more"));
    assert_eq!(registry.references("users"), None);
    assert_eq!(Arc::strong_count(&held), 2);
    registry.open("users", 1, |_| Ok("users")).map(drop)
}
