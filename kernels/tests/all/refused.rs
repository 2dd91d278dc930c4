//! An update that one table of its group refuses changes none of them: no slot is added, no row is
//! made, no update counted.

use crate::halves::{config, with_half_slots, DIM};
use crate::singles::{Singles as _, Target};
use crate::support::{created, gradients, push_of};
use mx_rec_kernels::{
    Columns, Ids, Pool, Push, Result, Rounding, RowDtype, RowGradients, RowOptimizer, SlotSpec,
    Table, TableConfig,
};

/// An optimizer that counts its steps in one slot.
struct Counting {
    name: &'static str,
    per_row: bool,
}

impl RowOptimizer for Counting {
    fn slots(&self) -> Vec<SlotSpec> {
        vec![SlotSpec {
            name: self.name.into(),
            initial: 0.0,
            per_row: self.per_row,
        }]
    }

    fn update(&self, row: &mut [f32], slots: &[usize], grad: &[f32]) {
        row[0] += grad[0];
        row[slots[0]] += 1.0;
    }
}

const A_COLUMN: Counting = Counting {
    name: "Counting_steps",
    per_row: false,
};
const A_ROW: Counting = Counting {
    per_row: true,
    ..A_COLUMN
};

const KEYS: [i64; 2] = [3, 4];

fn tables(pool: &Pool) -> Result<[Table; 2]> {
    let named = |name: &str, config: TableConfig| {
        Table::new(TableConfig {
            name: name.into(),
            ..config
        })
    };
    let tables = [
        named("fits", config(RowDtype::Bfloat16, Rounding::Stochastic))?,
        named(
            "refuses",
            with_half_slots(RowDtype::Bfloat16, Rounding::Stochastic),
        )?,
    ];
    for table in &tables {
        created(table, pool, &KEYS);
    }
    Ok(tables)
}

/// All that an update may change: slots, and the bits of rows and slots by key.
fn all_of(table: &Table) -> (Vec<SlotSpec>, Vec<(i64, Vec<u32>)>) {
    let mut rows = Vec::new();
    let each = table.snapshot().for_each_row(&mut |key, row| {
        rows.push((key, row.iter().map(|value| value.to_bits()).collect()));
        Ok(())
    });
    each.unwrap();
    rows.sort();
    (table.slots(), rows)
}

/// Every verb that takes one step of an optimizer in several tables.
fn steps(pool: &Pool, tables: &[&Table], optimizer: &dyn RowOptimizer) -> Vec<Result<u64>> {
    let grads = vec![0.5; KEYS.len() * DIM];
    let offsets = |table: &&Table| {
        let mut inverse = [0; 2];
        table.id_offset(pool, Ids::I64(&KEYS), false, None, &mut inverse)
    };
    let offsets: Vec<Vec<i64>> = tables.iter().map(|one| offsets(one).unwrap()).collect();
    let rows = tables.iter().zip(&offsets).map(|(&table, offsets)| {
        let grads = &grads[..];
        (table, RowGradients { offsets, grads })
    });
    let rows: Vec<_> = rows.collect();
    let lookups = tables.iter().zip(&offsets).map(|(&table, offsets)| {
        let lookup = gradients(offsets, &[0, 1], Columns::all(&grads, DIM).unwrap());
        (table, lookup)
    });
    let lookups: Vec<_> = lookups.collect();
    let pushes: Vec<Push<'_>> = tables
        .iter()
        .map(|&table| push(table, &grads, optimizer))
        .collect();
    vec![
        Table::apply_many(pool, &rows, optimizer),
        Table::apply_lookups_many(pool, &lookups, optimizer),
        Table::push_many(pool, &pushes).map(|pushed| pushed.updated),
    ]
}

fn push<'a>(table: &'a Table, grads: &'a [f32], optimizer: &'a dyn RowOptimizer) -> Push<'a> {
    push_of(table, &KEYS, grads, optimizer)
}

fn expect_refused(found: Result<u64>, text: &str) {
    let found = found.err().map(|error| error.to_string());
    let found = found.expect("a step that is refused");
    assert!(found.contains(text), "{found}");
    assert!(found.contains("table=refuses"), "{found}");
}

#[test]
fn a_group_of_which_one_table_has_the_slot_in_another_form_adds_slots_to_none() -> Result<()> {
    let pool = Pool::new(2)?;
    let [fits, refuses] = tables(&pool)?;
    let grads = vec![0.25; KEYS.len() * DIM];
    let ids = Target::Ids(Ids::I64(&KEYS));
    refuses.apply(&pool, ids, &grads, &A_ROW)?;
    let before = [&fits, &refuses].map(all_of);
    assert!(before[0].0.is_empty() && before[1].0.len() == 1);
    for group in [[&fits, &refuses], [&refuses, &fits]] {
        for found in steps(&pool, &group, &A_COLUMN) {
            expect_refused(found, "in another form");
            assert!([&fits, &refuses].map(all_of) == before);
        }
    }
    // And so does the optimizer of a form of its own that is right for both.
    let other = Counting {
        name: "Counting_others",
        per_row: false,
    };
    for found in steps(&pool, &[&fits, &refuses], &other) {
        assert_eq!(found?, 4);
    }
    assert_eq!((fits.slots().len(), refuses.slots().len()), (1, 2));
    Ok(())
}

#[test]
fn pushes_whose_optimizers_want_one_slot_in_two_forms_change_nothing() -> Result<()> {
    let pool = Pool::new(2)?;
    let [fits, refuses] = tables(&pool)?;
    let before = [&fits, &refuses].map(all_of);
    let grads = vec![0.5; KEYS.len() * DIM];
    let pushes = [
        push(&fits, &grads, &A_ROW),
        push(&refuses, &grads, &A_ROW),
        push(&refuses, &grads, &A_COLUMN),
    ];
    let found = Table::push_many(&pool, &pushes).map(|pushed| pushed.updated);
    expect_refused(found, "in another form");
    assert!([&fits, &refuses].map(all_of) == before);
    Ok(())
}
