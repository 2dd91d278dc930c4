//! What shared tables promise. tests/loom has the interleavings.

use crate::shared::{Name, Settings, SharedTables};
use mx_rec_kernels::{Error, Kind, Partition, Result};
use std::sync::Arc;

/// A dimension.
impl Settings for u32 {
    fn difference(&self, other: &Self) -> Option<(String, String, String)> {
        (self != other).then(|| ("dim".to_owned(), self.to_string(), other.to_string()))
    }
}

type Tables = SharedTables<&'static str, u32, Arc<()>>;

fn tables() -> (Tables, Arc<()>) {
    let held = Arc::new(());
    let hold = Arc::clone(&held);
    (SharedTables::new(move || Arc::clone(&hold)), held)
}

fn name(part: u32, parts: u32) -> Result<Name> {
    Ok(Name {
        table: "users".to_owned(),
        part: Partition::new(part, parts)?,
    })
}

fn kind<T>(result: Result<T>) -> Option<Kind> {
    result.err().map(|error: Error| error.kind())
}

#[test]
fn a_part_is_there_from_its_first_renewal_on_for_whoever_names_it() -> Result<()> {
    let (tables, held) = tables();
    let name = name(0, 2)?;
    assert_eq!(kind(tables.find(&name, &8)), Some(Kind::Aborted));
    assert!(tables.find(&name, &8).is_err());
    tables.renew(name.clone(), 8, "first");
    assert_eq!(*tables.find(&name, &8)?, "first");
    assert!(tables.find(&name, &8).is_ok() && Arc::strong_count(&held) == 3);
    let in_flight = tables.find(&name, &8)?;
    tables.renew(name.clone(), 16, "second");
    assert_eq!((*in_flight, *tables.find(&name, &16)?), ("first", "second"));
    assert_eq!(Arc::strong_count(&held), 3);
    Ok(())
}

#[test]
fn another_configuration_is_refused_with_what_differs_and_is_not_ready() -> Result<()> {
    let (tables, _held) = tables();
    let name = name(1, 2)?;
    tables.renew(name.clone(), 8, "users");
    let error = tables.find(&name, &16).err();
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    for part in [
        "table=users",
        "part=1",
        "setting=dim",
        "made_by=8",
        "asked_for=16",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(tables.find(&name, &16).is_err() && tables.find(&name, &8).is_ok());
    Ok(())
}

#[test]
fn a_restore_is_seen_when_it_is_published_and_nothing_of_one_that_failed() -> Result<()> {
    let (tables, held) = tables();
    let name = name(0, 1)?;
    tables.renew(name.clone(), 8, "old");
    tables.stage(name.clone(), 8, "given up");
    tables.discard(&name);
    assert_eq!(kind(tables.publish(&name)), Some(Kind::Aborted));
    assert_eq!(Arc::strong_count(&held), 3);
    tables.stage(name.clone(), 8, "new");
    assert_eq!(*tables.find(&name, &8)?, "old");
    assert_eq!(*tables.publish(&name)?, "new");
    assert_eq!(*tables.find(&name, &8)?, "new");
    assert_eq!(kind(tables.publish(&name)), Some(Kind::Aborted));
    assert_eq!(*tables.find(&name, &8)?, "new");
    assert_eq!(Arc::strong_count(&held), 3);
    Ok(())
}

#[test]
fn a_process_that_was_started_again_has_nothing_to_publish() -> Result<()> {
    let (tables, _held) = tables();
    let name = name(0, 1)?;
    assert_eq!(kind(tables.publish(&name)), Some(Kind::Aborted));
    tables.discard(&name);
    tables.stage(name.clone(), 8, "new");
    assert_eq!(kind(tables.find(&name, &8)), Some(Kind::Aborted));
    tables.renew(name.clone(), 8, "initialized");
    assert_eq!(kind(tables.publish(&name)), Some(Kind::Aborted));
    assert_eq!(*tables.find(&name, &8)?, "initialized");
    Ok(())
}

#[test]
fn a_job_with_another_number_of_parts_ends_those_of_the_job_before() -> Result<()> {
    let (tables, held) = tables();
    tables.renew(name(0, 2)?, 8, "a");
    tables.renew(name(1, 2)?, 8, "b");
    assert_eq!(Arc::strong_count(&held), 4);
    tables.renew(name(0, 3)?, 8, "c");
    assert_eq!(Arc::strong_count(&held), 3);
    for part in 0..2 {
        assert!(tables.find(&name(part, 2)?, &8).is_err());
    }
    assert_eq!(*tables.find(&name(0, 3)?, &8)?, "c");
    Ok(())
}
