//! Shape inference from the shapes that a definition states.
//!
//! A shape reads `(s..., 3, dim)`: sizes by number or by name, and at the front, if there is one, a
//! group of any number of sizes. A name has one value in all inputs and outputs of an op. `N times
//! (u)` is the shape of each tensor of a list, whose names have a value for each place in the list;
//! `() or (0)` are alternatives, which are checked and bind no name.

use crate::op_def::{Arg, OpDef};
use mx_rec_kernels::{Error, Result};
use std::collections::HashMap;

/// What is known of a tensor's shape: nothing, or its rank and some of its sizes.
pub type Shape = Option<Vec<Option<i64>>>;

/// Reads a list of shapes before its shape.
const TIMES: &str = "N times ";

/// The shapes of the outputs of an op by those of its inputs. Lists have `list` tensors each.
///
/// # Errors
/// `InvalidArgument` that names the input and its shape, and for another number of inputs.
pub fn infer(def: &OpDef, inputs: &[Shape], list: usize) -> Result<Vec<Shape>> {
    // Counted before any list is gone through: nothing here takes time beyond the inputs that there
    // are.
    let lists = lists(def);
    let expected = (def.inputs.len() - lists).saturating_add(lists.saturating_mul(list));
    if expected != inputs.len() {
        return Err(Error::invalid("the op has another number of inputs")
            .with("inputs", inputs.len())
            .with("expected", expected));
    }
    let list = if lists == 0 { 0 } else { list };
    let wanted = def.inputs.iter().flat_map(|arg| places(arg, list));
    let mut names = Names::default();
    for ((arg, place), shape) in wanted.zip(inputs) {
        if let Some(dims) = shape {
            names.bind(arg, place, dims)?;
        }
    }
    let outputs = def.outputs.iter().flat_map(|arg| places(arg, list));
    Ok(outputs
        .map(|(arg, place)| names.shape(arg, place))
        .collect())
}

/// How many tensors each list has among `inputs` tensors of an op; 0 without a list.
pub(crate) fn list_length(def: &OpDef, inputs: usize) -> usize {
    let lists = lists(def);
    let in_lists = inputs.saturating_sub(def.inputs.len() - lists);
    in_lists.checked_div(lists).unwrap_or(0)
}

/// How many of an op's inputs are lists.
fn lists(def: &OpDef) -> usize {
    def.inputs.iter().filter(|arg| arg.is_list()).count()
}

/// Each tensor of an input or output: in a list with its place.
fn places(arg: &'static Arg, list: usize) -> impl Iterator<Item = (&'static Arg, Option<usize>)> {
    let is_list = arg.is_list();
    (0..if is_list { list } else { 1 }).map(move |at| (arg, is_list.then_some(at)))
}

impl Arg {
    /// Whether it is a list of tensors.
    pub(crate) fn is_list(&self) -> bool {
        self.shape.starts_with(TIMES)
    }

    /// The rank that it must have, if there is one.
    #[cfg(test)]
    fn rank(&self) -> Option<usize> {
        match self.alternatives().as_slice() {
            [one] if one.group.is_none() => Some(one.sizes.len()),
            _ => None,
        }
    }

    fn alternatives(&self) -> Vec<Pattern> {
        let text = self.shape.strip_prefix(TIMES).unwrap_or(self.shape);
        text.split(" or ").map(Pattern::parse).collect()
    }
}

/// One shape of a definition.
#[derive(Debug, PartialEq)]
struct Pattern {
    group: Option<&'static str>,
    sizes: Vec<Size>,
}

#[derive(Debug, PartialEq)]
enum Size {
    Number(i64),
    Name(&'static str),
}

impl Pattern {
    fn parse(text: &'static str) -> Pattern {
        let text = text.trim().trim_start_matches('(').trim_end_matches(')');
        let mut pattern = Pattern {
            group: None,
            sizes: Vec::new(),
        };
        for size in text
            .split(',')
            .map(str::trim)
            .filter(|size| !size.is_empty())
        {
            match (size.strip_suffix("..."), size.parse()) {
                (Some(group), _) => pattern.group = Some(group),
                (None, Ok(number)) => pattern.sizes.push(Size::Number(number)),
                (None, Err(_)) => pattern.sizes.push(Size::Name(size)),
            }
        }
        pattern
    }

    /// The sizes that belong to the group, and the others, each with what the definition says of
    /// it. `None`: another rank.
    #[expect(clippy::type_complexity, reason = "two halves of one shape")]
    fn split<'a>(
        &'a self,
        dims: &'a [Option<i64>],
    ) -> Option<(
        &'a [Option<i64>],
        impl Iterator<Item = (&'a Size, Option<i64>)>,
    )> {
        let (group, rest) = dims.split_at_checked(dims.len().checked_sub(self.sizes.len())?)?;
        let fits = group.is_empty() || self.group.is_some();
        fits.then(|| (group, self.sizes.iter().zip(rest.iter().copied())))
    }

    /// Whether a shape can be this one, names aside.
    fn fits(&self, dims: &[Option<i64>]) -> bool {
        self.split(dims).is_some_and(|(_, mut sizes)| {
            sizes.all(|(size, dim)| match (size, dim) {
                (Size::Number(number), Some(dim)) => *number == dim,
                _ => true,
            })
        })
    }
}

/// A name, and the place in a list that it belongs to.
type Name = (&'static str, Option<usize>);

/// What names stand for, and the input that said so.
#[derive(Default)]
struct Names {
    sizes: HashMap<Name, (i64, &'static str)>,
    groups: HashMap<Name, (Vec<Option<i64>>, &'static str)>,
}

impl Names {
    fn bind(
        &mut self,
        arg: &'static Arg,
        place: Option<usize>,
        dims: &[Option<i64>],
    ) -> Result<()> {
        let alternatives = arg.alternatives();
        if !alternatives.iter().any(|pattern| pattern.fits(dims)) {
            return Err(refused(arg, &alternatives, dims));
        }
        let [pattern] = alternatives.as_slice() else {
            return Ok(());
        };
        let Some((group, sizes)) = pattern.split(dims) else {
            return Ok(());
        };
        for (size, dim) in sizes {
            let (Size::Name(name), Some(dim)) = (size, dim) else {
                continue;
            };
            let (known, by) = *self.sizes.entry((name, place)).or_insert((dim, arg.name));
            if known != dim {
                return Err(differs(name, by, &[Some(known)], arg.name, &[Some(dim)]));
            }
        }
        if let Some(name) = pattern.group {
            let entry = self.groups.entry((name, place));
            let (known, by) = entry.or_insert_with(|| (group.to_vec(), arg.name));
            let agree = known.len() == group.len()
                && known
                    .iter()
                    .zip(group)
                    .all(|(a, b)| a.is_none() || b.is_none() || a == b);
            if !agree {
                return Err(differs(name, by, known, arg.name, group));
            }
            for (known, dim) in known.iter_mut().zip(group) {
                *known = known.or(*dim);
            }
        }
        Ok(())
    }

    fn shape(&self, arg: &'static Arg, place: Option<usize>) -> Shape {
        let alternatives = arg.alternatives();
        let [pattern] = alternatives.as_slice() else {
            return None;
        };
        let mut dims = match pattern.group {
            None => Vec::new(),
            Some(name) => self.groups.get(&(name, place))?.0.clone(),
        };
        dims.extend(pattern.sizes.iter().map(|size| match size {
            Size::Number(number) => Some(*number),
            Size::Name(name) => self.sizes.get(&(*name, place)).map(|(size, _)| *size),
        }));
        Some(dims)
    }
}

fn refused(arg: &Arg, alternatives: &[Pattern], dims: &[Option<i64>]) -> Error {
    let rank_fits = alternatives.iter().any(|one| one.split(dims).is_some());
    let wanted = match alternatives {
        [one] if !rank_fits => match one.group {
            None => format!("rank {}", one.sizes.len()),
            Some(_) => format!("rank {} or more", one.sizes.len()),
        },
        _ => format!("shape {}", arg.shape.trim_start_matches(TIMES)),
    };
    Error::invalid(format!(
        "{} must have {wanted}, but has shape {}",
        arg.name,
        text(dims)
    ))
}

fn differs(
    name: &str,
    by: &str,
    known: &[Option<i64>],
    other: &str,
    dims: &[Option<i64>],
) -> Error {
    Error::invalid(format!(
        "{name} must agree, but is {} in {by} and {} in {other}",
        text(known),
        text(dims)
    ))
}

/// A shape for people, `(2, ?)`.
fn text(dims: &[Option<i64>]) -> String {
    let sizes: Vec<String> = dims
        .iter()
        .map(|dim| dim.map_or("?".to_owned(), |dim| dim.to_string()))
        .collect();
    format!("({})", sizes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::definitions;

    fn infer_op(name: &str, inputs: &[Shape], list: usize) -> Result<Vec<Shape>, String> {
        let def = definitions().into_iter().find(|def| def.name == name);
        infer(def.expect("an op"), inputs, list).map_err(|error| error.to_string())
    }

    fn dims(dims: &[i64]) -> Shape {
        Some(dims.iter().map(|&dim| (dim >= 0).then_some(dim)).collect())
    }

    #[test]
    fn outputs_follow_from_whichever_inputs_are_known() {
        let (scalar, unknown) = (dims(&[]), None);
        for (op, inputs, list, outputs) in [
            (
                "MxRecEmbed",
                vec![scalar.clone(), dims(&[0, 4]), dims(&[-1]), dims(&[3, -1])],
                0,
                vec![dims(&[3, -1, 4])],
            ),
            (
                "MxRecEmbed",
                vec![
                    unknown.clone(),
                    unknown.clone(),
                    unknown.clone(),
                    unknown.clone(),
                ],
                0,
                vec![None],
            ),
            (
                "MxRecReduce",
                vec![dims(&[3, 7, 4]), unknown.clone(), dims(&[5])],
                0,
                vec![dims(&[5, 4])],
            ),
            (
                "MxRecPrepare",
                vec![scalar.clone(), scalar.clone(), dims(&[6])],
                2,
                vec![dims(&[-1]), dims(&[-1]), dims(&[6])],
            ),
            (
                "MxRecPrepareMany",
                vec![scalar.clone(), scalar.clone(), dims(&[6]), dims(&[2, 3])],
                2,
                vec![dims(&[-1]), dims(&[-1]), dims(&[6]), dims(&[2, 3])],
            ),
            (
                "MxRecExport",
                vec![scalar.clone()],
                0,
                vec![dims(&[-1]), dims(&[-1, -1])],
            ),
            ("MxRecEvict", vec![unknown.clone()], 0, vec![dims(&[2])]),
            (
                "MxRecTable",
                vec![dims(&[-1]), dims(&[-1, 8])],
                0,
                vec![dims(&[0, 8]), scalar.clone()],
            ),
        ] {
            assert_eq!(infer_op(op, &inputs, list), Ok(outputs), "{op} {inputs:?}");
        }
    }

    #[test]
    fn what_contradicts_is_named_with_its_shape() {
        let scalar = dims(&[]);
        for (op, inputs, list, message) in [
            (
                "MxRecLookup",
                vec![scalar.clone(), dims(&[0, 4]), dims(&[1, 1])],
                0,
                "offsets must have rank 1, but has shape (1, 1)",
            ),
            (
                "MxRecLookup",
                vec![scalar.clone(), dims(&[2, 4]), None],
                0,
                "variable must have shape (0, dim), but has shape (2, 4)",
            ),
            (
                "MxRecFind",
                vec![scalar.clone(), dims(&[0, 4]), None, dims(&[1, 8])],
                0,
                "dim must agree, but is (4) in variable and (8) in absent",
            ),
            (
                "MxRecReduce",
                vec![scalar.clone(), None, None],
                0,
                "grad must have rank 1 or more, but has shape ()",
            ),
            (
                "MxRecReduce",
                vec![dims(&[2, 3, 4]), dims(&[2, -1, 3]), None],
                0,
                "s must agree, but is (2, 3) in grad and (2, ?, 3) in inverse",
            ),
            (
                "MxRecObserve",
                vec![scalar.clone(), None, scalar.clone(), dims(&[2])],
                0,
                "timestamp must have shape () or (0) or (1), but has shape (2)",
            ),
            (
                "MxRecPrepare",
                vec![scalar.clone(), dims(&[1]), None],
                2,
                "handles must have rank 0, but has shape (1)",
            ),
            ("MxRecSize", vec![], 0, "another number of inputs"),
        ] {
            let text = infer_op(op, &inputs, list).err().unwrap_or_default();
            assert!(text.contains(message), "{op}: {text}");
        }
    }

    #[test]
    fn names_of_a_list_have_a_value_for_each_place() {
        let members = [
            dims(&[]),
            dims(&[]),
            dims(&[5]),
            dims(&[7]),
            dims(&[5, 4]),
            dims(&[7, 2]),
            dims(&[]),
            dims(&[]),
        ];
        let infer = |inputs: &[Shape]| infer_op("MxRecApplySgdMany", inputs, 2);
        assert_eq!(infer(&members), Ok(vec![dims(&[])]));
        let mut wrong = members.clone();
        wrong.swap(2, 3);
        assert!(infer(&wrong).is_err_and(|text| text.contains("in grad")));
    }

    #[test]
    fn the_length_of_lists_follows_from_the_number_of_tensors() {
        for def in definitions() {
            for list in 1..4 {
                let count = def.inputs.iter().flat_map(|arg| places(arg, list)).count();
                let expected = if lists(def) == 0 { 0 } else { list };
                assert_eq!(list_length(def, count), expected, "{}", def.name);
            }
            assert_eq!(list_length(def, 0), 0, "{}", def.name);
        }
    }

    #[test]
    fn every_definition_is_of_shapes_that_can_be_read() {
        for def in definitions() {
            for arg in def.inputs.iter().chain(def.outputs) {
                let written = arg.shape.trim_start_matches(TIMES);
                for one in written.split(" or ") {
                    assert!(
                        one.starts_with('(') && one.ends_with(')'),
                        "{} {one}",
                        def.name
                    );
                }
                assert_eq!(arg.is_list(), arg.dtype.starts_with("N * "), "{}", def.name);
                if arg.name == "handle" {
                    assert_eq!(arg.rank(), Some(0), "{}", def.name);
                }
            }
        }
    }
}
