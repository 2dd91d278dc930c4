//! Verbs of one table and one batch, in terms of those of groups: for tests and benches.

use mx_rec_kernels::{
    Absent, Columns, Ids, IdsOf, KeysOf, Lease, LookupGradients, Pool, Result, RowGradients,
    RowOptimizer, SlotSpec, Table,
};
use std::sync::Arc;

/// The rows an update is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// Offsets of a lookup.
    Offsets(&'a [i64]),
    /// Keys; unknown ones get rows first.
    Ids(Ids<'a>),
}

/// The content of a table at one moment, in row order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Export {
    /// Keys, shape `(n)`.
    pub(crate) keys: Vec<i64>,
    /// Embeddings, shape `(n, dim)`.
    pub(crate) embedding: Vec<f32>,
    /// Each slot with its values.
    pub(crate) slots: Vec<(SlotSpec, Vec<f32>)>,
}

pub(crate) trait Singles {
    /// One step of an optimizer; returns how many rows changed.
    fn apply(
        &self,
        pool: &Pool,
        target: Target<'_>,
        grads: &[f32],
        optimizer: &dyn RowOptimizer,
    ) -> Result<u64>;

    /// The rows of keys.
    fn find(&self, pool: &Pool, ids: Ids<'_>, absent: Absent<'_>, out: &mut [f32]) -> Result<()>;

    /// Creates or overwrites embeddings; slots start again.
    fn assign(&self, pool: &Pool, ids: Ids<'_>, rows: &[f32]) -> Result<()>;

    /// A copy of everything.
    fn export(&self) -> Result<Export>;

    /// A lookup that creates rows.
    fn lease(
        self: &Arc<Self>,
        pool: &Pool,
        ids: Ids<'_>,
        limit: Option<usize>,
        inverse: &mut [i32],
    ) -> Result<Lease>;

    /// What can be done of a lookup ahead of its step.
    fn prepare(
        self: &Arc<Self>,
        pool: &Pool,
        ids: Ids<'_>,
        limit: Option<usize>,
        inverse: &mut [i32],
    ) -> Lease;

    /// Whether a lookup that was prepared holds in its step.
    fn claim(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        offsets: &[i64],
        limit: Option<usize>,
        inverse: &[i32],
    ) -> Result<bool>;
}

impl Singles for Table {
    fn apply(
        &self,
        pool: &Pool,
        target: Target<'_>,
        grads: &[f32],
        optimizer: &dyn RowOptimizer,
    ) -> Result<u64> {
        let ids = match target {
            Target::Offsets(offsets) => {
                let rows = RowGradients { offsets, grads };
                return Table::apply_many(pool, &[(self, rows)], optimizer);
            }
            Target::Ids(ids) => ids,
        };
        let mut inverse = vec![0; ids.len()];
        let offsets = self.id_offset(pool, ids, true, None, &mut inverse)?;
        let lookup = LookupGradients {
            offsets: &offsets,
            inverse: &inverse,
            grads: Columns::all(grads, self.dim())?,
            bags: None,
        };
        self.apply_lookups(pool, &[lookup], optimizer)
    }

    fn find(&self, pool: &Pool, ids: Ids<'_>, absent: Absent<'_>, out: &mut [f32]) -> Result<()> {
        let keys = KeysOf {
            table: self,
            ids,
            absent,
            bags: None,
        };
        Table::find_many(pool, &[keys], vec![out])
    }

    fn assign(&self, pool: &Pool, ids: Ids<'_>, rows: &[f32]) -> Result<()> {
        self.fill(pool, ids, rows, &[], false)
    }

    fn export(&self) -> Result<Export> {
        let dim = self.dim();
        let snapshot = self.snapshot();
        let specs = snapshot.slots().iter();
        let mut found = Export {
            slots: specs.map(|spec| (spec.clone(), Vec::new())).collect(),
            ..Export::default()
        };
        snapshot.for_each_row(&mut |key, row| {
            found.keys.push(key);
            found.embedding.extend_from_slice(&row[..dim]);
            let mut rest = &row[dim..];
            for (spec, values) in &mut found.slots {
                let (slot, others) = rest.split_at(spec.floats(dim));
                values.extend_from_slice(slot);
                rest = others;
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn lease(
        self: &Arc<Self>,
        pool: &Pool,
        ids: Ids<'_>,
        limit: Option<usize>,
        inverse: &mut [i32],
    ) -> Result<Lease> {
        let one = IdsOf {
            table: self,
            ids,
            inverse,
        };
        Ok(Table::lease_many(pool, vec![one], limit)?.swap_remove(0))
    }

    fn prepare(
        self: &Arc<Self>,
        pool: &Pool,
        ids: Ids<'_>,
        limit: Option<usize>,
        inverse: &mut [i32],
    ) -> Lease {
        let one = std::slice::from_ref(self);
        Table::prepare_all(one, pool, ids, limit, inverse).swap_remove(0)
    }

    fn claim(
        &self,
        pool: &Pool,
        ids: Ids<'_>,
        offsets: &[i64],
        limit: Option<usize>,
        inverse: &[i32],
    ) -> Result<bool> {
        self.expect_claim(0, ids, offsets, limit)?;
        self.claim_expected(pool, ids, offsets, limit, inverse)
    }
}
