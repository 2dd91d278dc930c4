//! Ops that take lists of tensors: how long these are, reading them one after the other, and the
//! tables of their members. One table is a group of one.

use super::bag_inputs::BagInputs;
use super::support::on;
use crate::tf::{Construction, Context, Input};
use crate::{tables, trace};
use mx_rec_kernels::{Error, Result, Table};
use std::sync::Arc;

/// How many members the node has.
pub(super) fn members(construction: &Construction) -> Result<usize> {
    length(construction, "N")
}

/// How many tensors the lists have whose number attribute is `name`.
pub(super) fn length(construction: &Construction, name: &'static str) -> Result<usize> {
    Ok(natural(construction, name)? as usize)
}

/// An int attribute that is not negative.
pub(super) fn natural(construction: &Construction, name: &'static str) -> Result<u32> {
    let value = construction.int(name)?;
    u32::try_from(value)
        .map_err(|_| Error::invalid("an attribute must not be negative").with(name, value))
}

/// An int attribute that is 0 or 1: whether it is 1.
pub(super) fn flag(construction: &Construction, name: &'static str) -> Result<bool> {
    match construction.int(name)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::invalid(format!("{name} must be 0 or 1")).with(name, other)),
    }
}

/// How many tensors the lists have whose number attribute is `name`: none, or one for each of
/// `members`.
pub(super) fn length_of_each(
    construction: &Construction,
    name: &'static str,
    members: usize,
) -> Result<usize> {
    let length = length(construction, name)?;
    if length == 0 || length == members {
        return Ok(length);
    }
    Err(Error::invalid(format!("{name} must be 0 or N"))
        .with("N", members)
        .with(name, length))
}

/// The tensors of a run, list by list.
pub(super) struct Tensors<'a> {
    context: &'a Context,
    tensor: usize,
    arg: usize,
}

impl<'a> Tensors<'a> {
    /// All of them are still to be read.
    pub(super) fn of(context: &'a Context) -> Self {
        Self::from(context, 0, 0)
    }

    /// Those from a tensor on are still to be read, which is the first of an input of the
    /// definition.
    pub(super) fn from(context: &'a Context, tensor: usize, arg: usize) -> Self {
        Tensors {
            context,
            tensor,
            arg,
        }
    }

    /// The next input of the definition, which is no list.
    pub(super) fn one(&mut self) -> Result<Input> {
        let found = self.context.tensor(self.tensor, self.arg)?;
        (self.tensor, self.arg) = (self.tensor + 1, self.arg + 1);
        Ok(found)
    }

    /// The next input of the definition, which is a list of `count` tensors.
    pub(super) fn list(&mut self, count: usize) -> Result<Vec<Input>> {
        let tensors = self.tensor..self.tensor + count;
        let found = tensors
            .map(|at| self.context.tensor(at, self.arg))
            .collect();
        self.tensor += count;
        self.arg += 1;
        found
    }

    /// Leaves out the next input of the definition, which is a list of `count` tensors.
    pub(super) fn skip(&mut self, count: usize) {
        (self.tensor, self.arg) = (self.tensor + count, self.arg + 1);
    }

    /// The next four inputs, which describe bags; the last of them is a list of `norms` tensors.
    pub(super) fn bags(&mut self, count: usize, norms: usize) -> Result<Vec<BagInputs>> {
        let described = self.list(count)?.into_iter().zip(self.list(count)?);
        let described = described.zip(self.list(count)?);
        let bags = described
            .map(|((ends, weights), divisors)| BagInputs::new(ends, Some(weights), Some(divisors)));
        let norms = self.list(norms)?.into_iter().map(Some);
        let norms = norms.chain(std::iter::repeat_with(|| None));
        let bags = bags.zip(norms).map(|(bags, norm)| bags.with_norm(norm));
        Ok(bags.collect())
    }

    /// The tables of the next input, which is a list of `count` handles.
    pub(super) fn tables(&mut self, count: usize) -> Result<Vec<Arc<Table>>> {
        let mut found: Vec<Arc<Table>> = Vec::with_capacity(count);
        let mut before = None;
        for handle in &self.list(count)? {
            let handle = handle.scalar::<i64>()?;
            match found.last().filter(|_| before == Some(handle)) {
                Some(table) => found.push(Arc::clone(table)),
                None => {
                    let table = tables::get(handle)?;
                    trace::note(&table);
                    found.push(table);
                }
            }
            before = Some(handle);
        }
        Ok(found)
    }
}

/// Runs what is for all tables of a group; if there is only one, its error names it.
pub(super) fn on_only<T>(tables: &[Arc<Table>], work: impl FnOnce() -> Result<T>) -> Result<T> {
    match tables {
        [table] => on(table, work),
        _ => work(),
    }
}
