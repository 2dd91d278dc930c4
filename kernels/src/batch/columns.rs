//! Neighbouring columns of a matrix, read in place.

use crate::mem::{prefetch_behind, LINE};
use crate::{Error, Result};

/// Columns `first .. first + dim` of a matrix `(n, width)`, whose rows lie one after the other.
///
/// A gradient of embeddings that were concatenated has those of each table in such columns.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    floats: &'a [f32],
    width: usize,
    first: usize,
    dim: usize,
}

impl<'a> Columns<'a> {
    /// All columns of a matrix `(n, dim)`.
    ///
    /// # Errors
    /// `InvalidArgument` if `dim` is 0 or `floats` are not whole rows.
    pub fn all(floats: &'a [f32], dim: usize) -> Result<Columns<'a>> {
        Columns::of(floats, dim, 0, dim)
    }

    /// `dim` columns from `first` on of a matrix `(n, width)`.
    ///
    /// # Errors
    /// `InvalidArgument` if the columns are not within `width`, there are none, or `floats` are not
    /// whole rows.
    pub fn of(floats: &'a [f32], width: usize, first: usize, dim: usize) -> Result<Columns<'a>> {
        let is_within = first.checked_add(dim).is_some_and(|end| end <= width);
        if dim == 0 || !is_within || !floats.len().is_multiple_of(width) {
            return Err(
                Error::invalid("columns must be within the rows of a matrix")
                    .with("floats", floats.len())
                    .with("width", width)
                    .with("first", first)
                    .with("dim", dim),
            );
        }
        Ok(Columns {
            floats,
            width,
            first,
            dim,
        })
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.floats.len() / self.width
    }

    /// How many columns there are.
    pub(crate) fn dim(&self) -> usize {
        self.dim
    }

    /// The columns of one row.
    #[inline(always)]
    pub(crate) fn row(&self, at: usize) -> &'a [f32] {
        &self.floats[at * self.width + self.first..][..self.dim]
    }

    /// Asks for the columns of the row that is `count` rows behind `row`, one of these.
    #[inline(always)]
    pub(crate) fn ask_behind(&self, row: &[f32], count: usize) {
        for line in row.chunks(LINE / size_of::<f32>()) {
            line.first()
                .inspect(|first| prefetch_behind(*first, count * self.width));
        }
    }

    /// The columns of each row.
    #[inline(always)]
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        let (first, dim) = (self.first, self.dim);
        let rows = self.floats.chunks_exact(self.width);
        rows.map(move |row| &row[first..first + dim])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_every_row() {
        let floats: Vec<f32> = (0..12_u8).map(f32::from).collect();
        let rows = |columns: Columns<'_>| columns.rows().map(<[f32]>::to_vec).collect::<Vec<_>>();
        let middle = Columns::of(&floats, 4, 1, 2).unwrap();
        assert_eq!(rows(middle), [[1.0, 2.0], [5.0, 6.0], [9.0, 10.0]]);
        assert_eq!(middle.len(), 3);
        assert_eq!(Columns::all(&floats, 6).unwrap().len(), 2);
        assert_eq!(Columns::all(&[], 3).unwrap().len(), 0);
    }

    #[test]
    fn columns_beyond_the_rows_are_refused() {
        let floats = [0.0; 12];
        for (width, first, dim) in [
            (4, 3, 2),
            (4, 0, 0),
            (0, 0, 0),
            (5, 0, 2),
            (4, usize::MAX, 1),
        ] {
            assert!(
                Columns::of(&floats, width, first, dim).is_err(),
                "{width} {first} {dim}"
            );
        }
    }
}
