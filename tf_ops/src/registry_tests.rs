//! What the registry of sessions' tables promises. tests/loom has its interleavings.

use crate::registry::Registry;
use mx_rec_kernels::{Kind, Result};
use std::sync::Arc;

fn registry() -> (Registry<&'static str, Arc<()>>, Arc<()>) {
    let held = Arc::new(());
    let hold = Arc::clone(&held);
    (Registry::new(5, move || Arc::clone(&hold)), held)
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
    let gone = registry.get(number).err().map(|error| error.kind());
    assert_eq!(gone, Some(Kind::NotFound));
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
