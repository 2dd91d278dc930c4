//! Shape inference from the shapes that a definition states.
//!
//! A shape reads `(s..., 3, dim)`: sizes by number or by name, and at the front, if there is one, a
//! group of any number of sizes. A name has one value in all inputs and outputs of an op. `N times
//! (u)` is the shape of each tensor of a list that is as long as the attribute N says; its names
//! have a value for each place in the lists of this length;
//! `() or (0)` are alternatives, which are checked and bind no name; `(e..., dim) if B or (u, dim)`
//! is the first one if the lists of the attribute B have tensors, and else the second.

use crate::op_def::{Arg, OpDef};
use mx_rec_kernels::{Error, Result};
use std::collections::{BTreeMap, HashMap};

/// What is known of a tensor's shape: nothing, or its rank and some of its sizes.
pub type Shape = Option<Vec<Option<i64>>>;

/// Stands between the number attribute of a list and the shape of its tensors.
const TIMES: &str = " times ";

/// Stands between a shape and the number attribute of the lists that have tensors where it holds.
const IF: &str = " if ";

/// How many tensors the lists of an op have, by their number attributes.
pub type Lengths = BTreeMap<String, usize>;

/// The shapes of the outputs of an op by those of its inputs.
///
/// # Errors
/// `InvalidArgument` that names the input and its shape, and for another number of inputs.
pub fn infer(def: &OpDef, inputs: &[Shape], lengths: &Lengths) -> Result<Vec<Shape>> {
    // Counted before any list is gone through: nothing here takes time beyond the inputs that there
    // are.
    let counts = def.inputs.iter().map(|arg| arg.count(lengths));
    let expected = counts.fold(0, usize::saturating_add);
    if expected != inputs.len() {
        return Err(Error::invalid("the op has another number of inputs")
            .with("inputs", inputs.len())
            .with("expected", expected));
    }
    let wanted = def.inputs.iter().flat_map(|arg| places(arg, lengths));
    let mut names = Names::default();
    for ((arg, place), shape) in wanted.zip(inputs) {
        if let Some(dims) = shape {
            names.bind(arg, place, dims, lengths)?;
        }
    }
    Ok(outputs(def, lengths, &names))
}

/// The shapes of the outputs of an op by those of its inputs, where how long each list is follows
/// from the number of tensors alone. If it does not, what the definition says of the first output
/// is given, which is always there, and no input is looked at.
///
/// # Errors
/// As of [`infer`].
pub(crate) fn infer_counted(def: &OpDef, inputs: &[Shape]) -> Result<Vec<Shape>> {
    match lengths(def, inputs.len()) {
        Some(lengths) => infer(def, inputs, &lengths),
        None => {
            let first = def.outputs.first().into_iter();
            let shape = |arg: &'static Arg| match arg.each().contains(IF) {
                true => None,
                false => Names::default().shape(arg, None, &Lengths::new()),
            };
            Ok(first.map(shape).collect())
        }
    }
}

fn outputs(def: &OpDef, lengths: &Lengths, names: &Names) -> Vec<Shape> {
    let outputs = def.outputs.iter().flat_map(|arg| places(arg, lengths));
    outputs
        .map(|(arg, place)| names.shape(arg, place, lengths))
        .collect()
}

/// How long the lists are among `inputs` tensors of an op; `None` if the op has lists of several
/// lengths.
fn lengths(def: &OpDef, inputs: usize) -> Option<Lengths> {
    let mut attrs = def.inputs.iter().filter_map(|arg| Some(arg.list()?.0));
    let Some(attr) = attrs.next() else {
        return Some(Lengths::new());
    };
    let mut lists = 1;
    for other in attrs {
        if other != attr {
            return None;
        }
        lists += 1;
    }
    let in_lists = inputs.saturating_sub(def.inputs.len() - lists);
    Some(Lengths::from([(attr.to_owned(), in_lists / lists)]))
}

/// A place in a list, and the length of the list.
type Place = (usize, usize);

/// Each tensor of an input or output: in a list with its place.
fn places(
    arg: &'static Arg,
    lengths: &Lengths,
) -> impl Iterator<Item = (&'static Arg, Option<Place>)> {
    let (is_list, count) = (arg.list().is_some(), arg.count(lengths));
    (0..count).map(move |at| (arg, is_list.then_some((at, count))))
}

impl Arg {
    /// The number attribute of a list of tensors, and the shape of each of them.
    pub(crate) fn list(&self) -> Option<(&'static str, &'static str)> {
        self.shape.split_once(TIMES)
    }

    /// How many tensors it is.
    fn count(&self, lengths: &Lengths) -> usize {
        match self.list() {
            Some((attr, _)) => lengths.get(attr).copied().unwrap_or(0),
            None => 1,
        }
    }

    /// The shape of each of its tensors.
    fn each(&self) -> &'static str {
        self.list().map_or(self.shape, |(_, shape)| shape)
    }

    /// The rank that it must have, if there is one.
    #[cfg(test)]
    fn rank(&self) -> Option<usize> {
        match self.alternatives(&Lengths::new()).as_slice() {
            [one] if one.group.is_none() => Some(one.sizes.len()),
            _ => None,
        }
    }

    /// The shapes that it can have.
    fn alternatives(&self, lengths: &Lengths) -> Vec<Pattern> {
        let is_given = |attr: &str| lengths.get(attr).is_some_and(|&length| length > 0);
        let mut found = Vec::new();
        for one in self.each().split(" or ") {
            match one.split_once(IF) {
                Some((shape, attr)) if is_given(attr) => return vec![Pattern::parse(shape)],
                Some(_) => {}
                None => found.push(Pattern::parse(one)),
            }
        }
        found
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

/// A name, and the place in lists that it belongs to.
type Name = (&'static str, Option<Place>);

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
        place: Option<Place>,
        dims: &[Option<i64>],
        lengths: &Lengths,
    ) -> Result<()> {
        let alternatives = arg.alternatives(lengths);
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
            let (known, by) = *self.sizes.entry((name, place)).or_insert((dim, arg.name()));
            if known != dim {
                return Err(differs(name, by, &[Some(known)], arg.name(), &[Some(dim)]));
            }
        }
        if let Some(name) = pattern.group {
            let entry = self.groups.entry((name, place));
            let (known, by) = entry.or_insert_with(|| (group.to_vec(), arg.name()));
            let agree = known.len() == group.len()
                && known
                    .iter()
                    .zip(group)
                    .all(|(a, b)| a.is_none() || b.is_none() || a == b);
            if !agree {
                return Err(differs(name, by, known, arg.name(), group));
            }
            for (known, dim) in known.iter_mut().zip(group) {
                *known = known.or(*dim);
            }
        }
        Ok(())
    }

    fn shape(&self, arg: &'static Arg, place: Option<Place>, lengths: &Lengths) -> Shape {
        let alternatives = arg.alternatives(lengths);
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
        _ => format!("shape {}", arg.each()),
    };
    Error::invalid(format!(
        "{} must have {wanted}, but has shape {}",
        arg.name(),
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
    use crate::ops::{definition, definitions};
    use std::collections::BTreeSet;

    /// The lengths of lists are given in the order of their attributes' names.
    fn infer_op(name: &str, inputs: &[Shape], lists: &[usize]) -> Result<Vec<Shape>, String> {
        let def = definitions().into_iter().find(|def| def.name == name);
        let def = def.expect("an op");
        let args = def.inputs.iter().chain(def.outputs);
        let attrs: BTreeSet<&str> = args.filter_map(|arg| Some(arg.list()?.0)).collect();
        assert_eq!(attrs.len(), lists.len(), "{name}");
        let attrs = attrs.into_iter().map(str::to_owned);
        let lengths: Lengths = attrs.zip(lists.iter().copied()).collect();
        infer(def, inputs, &lengths).map_err(|error| error.to_string())
    }

    fn dims(dims: &[i64]) -> Shape {
        Some(dims.iter().map(|&dim| (dim >= 0).then_some(dim)).collect())
    }

    #[test]
    fn outputs_follow_from_whichever_inputs_are_known() {
        let (scalar, unknown) = (dims(&[]), None);
        for (op, inputs, list, outputs) in [
            (
                "MxRecRead",
                vec![scalar.clone(), dims(&[0, 4]), dims(&[-1]), dims(&[3, -1])],
                &[0, 0, 1, 1, 1][..],
                vec![dims(&[3, -1, 4])],
            ),
            (
                "MxRecRead",
                vec![unknown.clone(); 4],
                &[0, 0, 1, 1, 1],
                vec![None],
            ),
            (
                "MxRecRead",
                vec![scalar.clone(), dims(&[0, 4]), dims(&[7])],
                &[0, 0, 1, 1, 0],
                vec![dims(&[7, 4])],
            ),
            (
                "MxRecRead",
                vec![
                    scalar.clone(),
                    dims(&[0, 4]),
                    unknown.clone(),
                    dims(&[9]),
                    dims(&[3]),
                    dims(&[0]),
                    dims(&[0]),
                    scalar.clone(),
                ],
                &[1, 1, 1, 1, 1],
                vec![dims(&[3, 4]), dims(&[-1, 4])],
            ),
            // Side by side they have another width.
            (
                "MxRecRead",
                vec![
                    scalar.clone(),
                    scalar.clone(),
                    dims(&[0, 4]),
                    dims(&[0, 2]),
                    dims(&[5]),
                    dims(&[6]),
                    dims(&[3]),
                    dims(&[3]),
                ],
                &[0, 0, 1, 2, 2],
                vec![None],
            ),
            (
                "MxRecReduce",
                vec![dims(&[3, 7, 4]), unknown.clone(), dims(&[5])],
                &[][..],
                vec![dims(&[5, 4])],
            ),
            (
                "MxRecPrepare",
                vec![scalar.clone(), scalar.clone(), dims(&[6])],
                &[1, 2],
                vec![dims(&[-1]), dims(&[-1]), dims(&[6])],
            ),
            (
                "MxRecPrepare",
                vec![scalar.clone(), scalar.clone(), dims(&[6]), dims(&[2, 3])],
                &[2, 2],
                vec![dims(&[-1]), dims(&[-1]), dims(&[6]), dims(&[2, 3])],
            ),
            (
                "MxRecIdOffset",
                vec![scalar.clone(), dims(&[-1, 3]), dims(&[4]), dims(&[2, -1])],
                &[1, 1],
                vec![dims(&[-1]), dims(&[2, 3])],
            ),
            (
                "MxRecExport",
                vec![scalar.clone(), dims(&[-1])],
                &[1][..],
                vec![dims(&[-1]), dims(&[-1, -1])],
            ),
            ("MxRecEvict", vec![unknown.clone()], &[], vec![dims(&[2])]),
            (
                "MxRecTable",
                vec![dims(&[-1]), dims(&[-1, 8])],
                &[][..],
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
                "MxRecRead",
                vec![scalar.clone(), dims(&[0, 4]), dims(&[1, 1])],
                &[0, 0, 1, 1, 0][..],
                "offsets must have rank 1, but has shape (1, 1)",
            ),
            (
                "MxRecRead",
                vec![scalar.clone(), dims(&[2, 4]), None],
                &[0, 0, 1, 1, 0],
                "variables must have shape (0, dim), but has shape (2, 4)",
            ),
            (
                "MxRecFind",
                vec![scalar.clone(), dims(&[0, 4]), None, dims(&[1, 8])],
                &[1, 0, 0, 1],
                "dim must agree, but is (4) in variables and (8) in absent",
            ),
            (
                "MxRecReduce",
                vec![scalar.clone(), None, None],
                &[][..],
                "grad must have rank 1 or more, but has shape ()",
            ),
            (
                "MxRecReduce",
                vec![dims(&[2, 3, 4]), dims(&[2, -1, 3]), None],
                &[][..],
                "s must agree, but is (2, 3) in grad and (2, ?, 3) in inverse",
            ),
            (
                "MxRecObserve",
                vec![scalar.clone(), None, scalar.clone(), dims(&[2])],
                &[][..],
                "timestamp must have shape () or (0) or (1), but has shape (2)",
            ),
            (
                "MxRecPrepare",
                vec![scalar.clone(), dims(&[1]), None],
                &[1, 2],
                "handles must have rank 0, but has shape (1)",
            ),
            ("MxRecEvict", vec![], &[], "another number of inputs"),
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
            dims(&[0, 4]),
            dims(&[0, 2]),
            dims(&[5]),
            dims(&[7]),
            dims(&[2, 4]),
            dims(&[3, 2]),
        ];
        let infer = |inputs: &[Shape]| infer_op("MxRecFind", inputs, &[2, 0, 0, 2]);
        assert_eq!(infer(&members), Ok(vec![dims(&[5, 4]), dims(&[7, 2])]));
        let mut wrong = members.clone();
        wrong.swap(2, 3);
        assert!(infer(&wrong).is_err_and(|text| text.contains("in absent")));
    }

    #[test]
    fn the_length_of_lists_follows_from_the_number_of_tensors() {
        for def in definitions() {
            let lists = def.inputs.iter().filter_map(|arg| Some(arg.list()?.0));
            let attrs: BTreeSet<&str> = lists.collect();
            for list in 0..4 {
                let lists = attrs.iter().map(|&attr| (attr.to_owned(), list));
                let expected: Lengths = lists.collect();
                let count = def.inputs.iter().map(|arg| arg.count(&expected)).sum();
                let found = lengths(def, count);
                assert_eq!(found, (attrs.len() < 2).then_some(expected), "{}", def.name);
            }
        }
    }

    /// The lists of an update have lengths of their own: none, one or as many as the others.
    #[test]
    fn lists_of_several_lengths_are_read_by_their_attributes() {
        let of = |lengths: &[(&str, usize)], inputs: &[Shape]| {
            let named = lengths
                .iter()
                .map(|&(name, count)| (name.to_owned(), count));
            let found =
                definition("MxRecUpdate").and_then(|def| infer(def, inputs, &named.collect()));
            found.map_err(|error| error.to_string())
        };
        let (scalar, unknown) = (dims(&[]), None);
        let rows = [scalar.clone(), dims(&[5]), dims(&[5, 4]), scalar.clone()];
        assert_eq!(of(&[("N", 1), ("H", 1)], &rows), Ok(vec![scalar.clone()]));
        let mut ids = vec![scalar.clone(); 2];
        ids.extend([dims(&[5]), dims(&[7]), dims(&[9]), unknown]);
        ids.extend([dims(&[9, 4]), dims(&[3, 4]), dims(&[2]), scalar.clone()]);
        let lengths = [("N", 2), ("R", 2), ("C", 1), ("H", 1)];
        assert_eq!(of(&lengths, &ids), Ok(vec![scalar.clone()]));
        for (at, wrong, text) in [
            (3, dims(&[7, 1]), "offsets must have rank 1"),
            (7, scalar.clone(), "grad must have rank 1 or more"),
            (8, scalar.clone(), "columns must have rank 1"),
            (9, dims(&[1]), "hyper must have rank 0"),
        ] {
            let mut ids = ids.clone();
            ids[at] = wrong;
            let found = of(&lengths, &ids).err().unwrap_or_default();
            assert!(found.contains(text), "{found}");
        }
        assert!(of(&lengths[..2], &ids).is_err_and(|text| text.contains("number of inputs")));
        let def = definition("MxRecUpdate").unwrap();
        assert_eq!(infer_counted(def, &ids).unwrap(), vec![scalar]);
    }

    #[test]
    fn every_definition_is_of_shapes_that_can_be_read() {
        for def in definitions() {
            for arg in def.inputs.iter().chain(def.outputs) {
                for one in arg.each().split(" or ") {
                    let one = one.split_once(IF).map_or(one, |(shape, _)| shape);
                    assert!(
                        one.starts_with('(') && one.ends_with(')'),
                        "{} {one}",
                        def.name
                    );
                }
                let number = arg.dtype().split_once(" * ").map(|(number, _)| number);
                assert_eq!(arg.list().map(|(attr, _)| attr), number, "{}", def.name);
                if arg.name() == "handle" {
                    assert_eq!(arg.rank(), Some(0), "{}", def.name);
                }
            }
        }
    }
}
