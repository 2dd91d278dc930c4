//! Every interleaving of the steps of the registry, of shared tables and of the kept buffers, by
//! loom.
//!
//! The modules are those of the crate, compiled here with loom's locks and atomics: `cargo test -p
//! mx_rec_tf_ops --test loom`.

#[path = "../../src/kept.rs"]
mod kept;
#[path = "../../src/registry.rs"]
mod registry;
#[path = "../../src/shared.rs"]
mod shared;
mod sync;

use kept::{Bytes, Kept, Limits};
use loom::thread;
use mx_rec_kernels::{Kind, Partition};
use registry::Registry;
use shared::{Name, Settings, SharedTables};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Memory that counts itself.
struct Memory(Arc<AtomicUsize>);

impl Memory {
    fn new(alive: &Arc<AtomicUsize>) -> Memory {
        alive.fetch_add(1, Ordering::Relaxed);
        Memory(Arc::clone(alive))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Bytes for Memory {
    fn bytes(&self) -> usize {
        1
    }
}

/// Holds the buffers open.
struct Hold(Arc<Kept<Memory>>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A table whose settings are a number.
struct Number(u32);

impl Settings for Number {
    fn difference(&self, other: &Self) -> Option<(String, String, String)> {
        (self.0 != other.0).then(|| ("n".to_owned(), self.0.to_string(), other.0.to_string()))
    }
}

type Tables = Registry<Memory, Hold>;
type Shared = SharedTables<Memory, Number, ()>;

/// What one model works on: a registry, the buffers that it holds open, shared tables, and counts
/// of live tables and buffers.
struct World {
    registry: Tables,
    shared: Shared,
    kept: Arc<Kept<Memory>>,
    tables: Arc<AtomicUsize>,
    buffers: Arc<AtomicUsize>,
}

impl World {
    fn new() -> Arc<World> {
        let kept = Arc::new(Kept::new(Limits {
            bytes: 2,
            buffers: 2,
        }));
        let held = Arc::clone(&kept);
        let registry = Registry::new(1, move || {
            held.hold();
            Hold(Arc::clone(&held))
        });
        Arc::new(World {
            registry,
            shared: SharedTables::new(|| ()),
            kept,
            tables: Arc::default(),
            buffers: Arc::default(),
        })
    }

    fn table(&self) -> Memory {
        Memory::new(&self.tables)
    }

    /// A buffer: a kept one, or a new one.
    fn buffer(&self) -> Memory {
        let kept = self.kept.take(1);
        kept.unwrap_or_else(|| Memory::new(&self.buffers))
    }

    fn expect(&self, tables: usize, buffers: usize) {
        assert_eq!(self.tables.load(Ordering::Relaxed), tables, "tables");
        assert_eq!(self.buffers.load(Ordering::Relaxed), buffers, "buffers");
    }
}

/// Runs the two beside each other in every order, then the check.
fn model(one: fn(&World), other: fn(&World), check: fn(&World)) {
    loom::model(move || {
        let world = World::new();
        let theirs = Arc::clone(&world);
        let thread = thread::spawn(move || other(&theirs));
        one(&world);
        thread.join().expect("the other ends");
        check(&world);
    });
}

#[test]
fn a_buffer_that_comes_back_while_the_last_table_ends_is_not_kept() {
    model(
        |world| {
            let table = world.registry.own(world.table());
            world.kept.give_back(world.buffer());
            drop(table);
        },
        |world| world.kept.give_back(world.buffer()),
        |world| world.expect(0, 0),
    );
}

#[test]
fn buffers_of_two_sessions_serve_either_and_go_with_the_last() {
    model(
        |world| {
            let _table = world.registry.own(world.table());
            world.kept.give_back(world.buffer());
        },
        |world| {
            let _table = world.registry.own(world.table());
            let buffer = world.buffer();
            world.kept.give_back(buffer);
            assert!(world.kept.size().0 <= 2);
        },
        |world| world.expect(0, 0),
    );
}

#[test]
fn an_op_in_flight_keeps_its_table_while_the_session_closes() {
    loom::model(|| {
        let world = World::new();
        let table = world.registry.own(world.table());
        let number = table.number();
        let theirs = Arc::clone(&world);
        let op = thread::spawn(move || {
            if let Ok(table) = theirs.registry.get(number) {
                theirs.kept.give_back(theirs.buffer());
                assert_eq!(table.0.load(Ordering::Relaxed), 1);
            }
        });
        drop(table);
        op.join().expect("the op ends");
        assert!(world.registry.get(number).is_err());
        world.expect(0, 0);
    });
}

#[test]
fn numbers_are_given_once_and_name_their_own_table() {
    model(
        |world| {
            let mine = world.registry.own(world.table());
            assert!(world.registry.get(mine.number()).is_ok());
            assert_ne!(mine.number(), {
                let next = world.registry.own(world.table());
                next.number()
            });
        },
        |world| {
            let mine = world.registry.own(world.table());
            assert!(world.registry.get(mine.number()).is_ok());
        },
        |world| {
            world.expect(0, 0);
            assert!(world.registry.all().is_empty());
        },
    );
}

fn name() -> Name {
    Name {
        table: "a".to_owned(),
        part: Partition::new(0, 1).expect("a part"),
    }
}

#[test]
fn two_initializations_at_once_leave_one_table_and_it_is_open() {
    fn renew(world: &World) {
        world.shared.renew(name(), Number(1), world.table());
        assert!(world.shared.find(&name(), &Number(1)).is_ok());
    }
    model(renew, renew, |world| {
        world.expect(1, 0);
        assert_eq!(world.shared.open().len(), 1);
        assert!(world.shared.find(&name(), &Number(1)).is_ok());
    });
}

#[test]
fn a_restore_beside_an_op_gives_it_the_old_table_or_the_new_one_or_a_retry() {
    model(
        |world| {
            world.shared.renew(name(), Number(1), world.table());
            world.shared.stage(name(), Number(1), world.table());
            assert!(world.shared.publish(&name()).is_ok());
        },
        |world| match world.shared.find(&name(), &Number(1)) {
            Ok(table) => assert!(table.0.load(Ordering::Relaxed) >= 1),
            Err(error) => assert_eq!(error.kind(), Kind::Aborted),
        },
        |world| {
            world.expect(1, 0);
            assert!(world.shared.find(&name(), &Number(1)).is_ok());
        },
    );
}

#[test]
fn an_initialization_beside_a_restore_leaves_one_table() {
    model(
        |world| {
            world.shared.stage(name(), Number(1), world.table());
            // The other may have dropped what was staged.
            let _ = world.shared.publish(&name());
            world.shared.discard(&name());
        },
        |world| world.shared.renew(name(), Number(1), world.table()),
        |world| {
            world.expect(
                usize::from(world.shared.find(&name(), &Number(1)).is_ok()),
                0,
            )
        },
    );
}
