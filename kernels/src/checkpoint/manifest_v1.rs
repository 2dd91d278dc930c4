//! The manifest of version 1, a few lines of text. It is read for as long as there are such files;
//! none is written any more.

use crate::SlotSpec;

/// What such a manifest says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ManifestV1 {
    /// Rows in every file.
    pub(super) rows: u64,
    /// Floats of an embedding and of each slot.
    pub(super) dim: u64,
    /// Slots in the order of a row, with the values at which new rows start.
    pub(super) slots: Vec<SlotSpec>,
}

const TITLE: &str = "mx_rec table 1";
const END: &str = "end";

impl ManifestV1 {
    /// The manifest with this text, or what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<ManifestV1, &'static str> {
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err("the manifest is of another version or no manifest");
        }
        let rows = number(lines.next(), "rows ").ok_or("the manifest's second line is not rows")?;
        let dim = number(lines.next(), "dim ").ok_or("the manifest's third line is not dim")?;
        let mut slots: Vec<SlotSpec> = Vec::new();
        for line in &mut lines {
            if line == END {
                return match lines.next() {
                    None => Ok(ManifestV1 { rows, dim, slots }),
                    Some(_) => Err("the manifest goes on after its end"),
                };
            }
            let slot = slot(line).ok_or("the manifest has a line that is no slot")?;
            if slots.iter().any(|earlier| earlier.name == slot.name) {
                return Err("the manifest names a slot twice");
            }
            slots.push(slot);
        }
        Err("the manifest has no end")
    }
}

fn number(line: Option<&str>, name: &str) -> Option<u64> {
    let digits = line?.strip_prefix(name)?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())?
}

fn slot(line: &str) -> Option<SlotSpec> {
    let (name, bits) = line.strip_prefix("slot ")?.split_once(' ')?;
    let well_formed = bits.len() == 8 && super::format::is_slot_name(name);
    let initial = f32::from_bits(u32::from_str_radix(bits, 16).ok()?);
    (well_formed && initial.is_finite()).then(|| SlotSpec {
        per_row: false,
        name: name.to_owned().into(),
        initial,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str =
        "mx_rec table 1\nrows 3\ndim 2\nslot Ftrl_accum 3dcccccd\nslot Ftrl_linear 00000000\nend\n";

    #[test]
    fn a_manifest_says_rows_dim_and_slots() {
        let slot = |name: &'static str, initial| SlotSpec {
            name: name.into(),
            initial,
            per_row: false,
        };
        let expected = ManifestV1 {
            rows: 3,
            dim: 2,
            slots: vec![slot("Ftrl_accum", 0.1), slot("Ftrl_linear", 0.0)],
        };
        assert_eq!(ManifestV1::parse(TEXT), Ok(expected));
    }

    #[test]
    fn a_manifest_that_was_cut_or_changed_is_refused() {
        let text = TEXT;
        // Without the last line feed it still says the same.
        for len in 0..text.len() - 1 {
            assert!(ManifestV1::parse(&text[..len]).is_err(), "{len}");
        }
        for (from, to) in [
            ("table 1", "table 2"),
            ("rows 3", "rows -3"),
            ("rows 3", "rows 99999999999999999999"),
            ("dim 2", "dim"),
            ("Ftrl_linear", "Ftrl_accum"),
            ("Ftrl_linear", "../x"),
            ("3dcccccd", "3dcccc"),
            ("end\n", "end\nmore\n"),
        ] {
            assert!(ManifestV1::parse(&text.replace(from, to)).is_err(), "{to}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*", tail in "(slot [a-z./]{0,5} [0-9a-f]{0,9}\n){0,3}(end)?") {
            let _ = ManifestV1::parse(&text);
            let _ = ManifestV1::parse(&format!("mx_rec table 1\nrows 1\ndim 1\n{tail}"));
        }
    }
}
