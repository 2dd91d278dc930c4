//! The order of the rooms of a Python package, which its page lists, and imports against it.

use super::python_uses::{imports, module_path};
use super::Source;
use std::collections::BTreeSet;

/// What the file `__init__.py` of the package itself counts as.
const DOOR: &str = "__init__";

/// The rooms line by line, the lowest first: the list under the heading of a page, in which names
/// stand before the first two blanks, with commas between them.
pub(super) fn order(page: &str, heading: &str) -> Vec<Vec<String>> {
    let section = page.lines().skip_while(|line| *line != heading).skip(1);
    let list = section
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("    "));
    list.map(|line| {
        let names = line.split("  ").next().unwrap_or_default();
        names.split(", ").map(str::to_owned).collect()
    })
    .collect()
}

/// Imports from a room of the same line or of a later one, and what differs between the list and
/// the rooms that there are. Imports inside of functions count as well.
pub(super) fn arrows_up(sources: &[Source], folder: &str, order: &[Vec<String>]) -> Vec<String> {
    let modules: Vec<(&Source, Vec<String>)> = sources
        .iter()
        .filter_map(|source| Some((source, module_path(source, folder)?)))
        .collect();
    let room_of = |module: &[String]| module.get(1).map_or(DOOR, String::as_str).to_owned();
    let rooms: BTreeSet<String> = modules.iter().map(|(_, path)| room_of(path)).collect();
    let line_of = |room: &str| {
        order
            .iter()
            .position(|line| line.iter().any(|one| one == room))
    };
    let listed = order.iter().flatten();
    let mut findings: Vec<String> = listed
        .filter(|room| !rooms.contains(*room))
        .map(|room| format!("{folder}{room}: is listed, and there is no such room"))
        .collect();
    for room in &rooms {
        if line_of(room).is_none() {
            findings.push(format!("{folder}{room}: is a room that is not listed"));
        }
    }
    for (source, path) in &modules {
        let package = &path[0];
        let here = room_of(path);
        for (line, target) in imports(source, path) {
            if target.first() != Some(package) {
                continue;
            }
            let there = room_of(&target);
            // A name that the package itself has.
            let there = if rooms.contains(&there) {
                there
            } else {
                DOOR.to_owned()
            };
            if here != there && line_of(&there) >= line_of(&here) {
                findings.push(format!(
                    "{}:{line}: {here} imports {}, and {there} is in no line before that of {here}",
                    source.path,
                    target.join("."),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A\n    c\n## Order\n\nText.\n\n    a, b  what all know\n    c\n    __init__\n\n## B\n\n    d\n";

    /// The findings in a package of these files.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources = Source::package("python/m/", files);
        arrows_up(&sources, "python/m/", &order(PAGE, "## Order"))
    }

    #[test]
    fn the_list_is_that_of_its_section() {
        assert_eq!(
            order(PAGE, "## Order"),
            [vec!["a", "b"], vec!["c"], vec!["__init__"]]
        );
        assert_eq!(order(PAGE, "## B"), [["d"]]);
        assert!(order(PAGE, "## C").is_empty());
    }

    #[test]
    fn an_import_from_a_line_before_or_from_the_own_room_is_right() {
        let files = [
            ("__init__.py", "from m import c\nfrom m.a import x\n"),
            ("a.py", "import os\n"),
            ("b/__init__.py", ""),
            ("b/y.py", "from m.b import z\n"),
            ("b/z.py", ""),
            (
                "c/x.py",
                "from m import a\nfrom ..b.y import Y\nfrom n.d import c\n",
            ),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn an_import_from_a_later_line_or_from_the_same_one_is_told_with_its_line() {
        for import in [
            "from m.c.x import X",
            "from m import c",
            "import m.c.x",
            "from ..c import x",
        ] {
            let text = format!("import os\n\n\ndef f():\n    {import}\n");
            let files = [
                ("__init__.py", ""),
                ("a.py", "from m.b.y import f\n"),
                ("b/y.py", text.as_str()),
                ("c/x.py", "from m import name\n"),
            ];
            let told = found(&files);
            assert_eq!(told.len(), 3, "{told:?}");
            assert!(
                told[0].starts_with("python/m/a.py:1: a imports m.b.y.f, "),
                "{told:?}"
            );
            assert!(
                told[1].starts_with("python/m/b/y.py:5: b imports m.c"),
                "{told:?}"
            );
            assert!(
                told[2].starts_with("python/m/c/x.py:1: c imports m.name, "),
                "{told:?}"
            );
        }
    }

    #[test]
    fn the_list_and_the_rooms_are_the_same() {
        let told = found(&[
            ("__init__.py", ""),
            ("a.py", ""),
            ("c/x.py", ""),
            ("d/x.py", ""),
        ]);
        assert_eq!(
            told,
            [
                "python/m/b: is listed, and there is no such room",
                "python/m/d: is a room that is not listed",
            ]
        );
    }
}
