//! What Python files import, also inside of functions and for types only.

use super::circles::{Edge, Module, Modules};
use super::Source;
use std::collections::{BTreeSet, HashMap};

/// The uses within the package whose modules are in `folder`, such as `python/mx_rec/`.
pub(super) fn python_uses(sources: &[Source], folder: &str) -> BTreeSet<Edge> {
    let mut modules = Modules {
        by_path: HashMap::new(),
    };
    let mut texts = Vec::new();
    let package = folder
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    for source in sources {
        let Some(path) = module_path(source, folder) else {
            continue;
        };
        let is_door = is_door(source);
        let module = Module {
            file: source.path.clone(),
            ..Module::default()
        };
        modules.by_path.insert(path.clone(), module);
        texts.push((path, is_door, statements(&source.text), source));
    }
    for (path, is_door, imports, source) in &texts {
        let module = modules.by_path.get_mut(path).expect("it was put there");
        for line in source.text.lines() {
            let name = line
                .strip_prefix("def ")
                .or_else(|| line.strip_prefix("class "));
            let name = name.or_else(|| line.split_once(" = ").map(|(name, _)| name));
            let name = name.and_then(|name| name.split(['(', ':', ' ']).next());
            module.defined.extend(name.map(str::to_owned));
        }
        for import in imports {
            for (target, name) in import.paths(folder_of(source, path)) {
                if target.first().is_none_or(|first| first != package) {
                    continue;
                }
                // At the top of a door, a name is passed on.
                if let (true, false, Some(name)) = (*is_door, import.is_indented, &name) {
                    module.names.insert(name.clone(), target);
                } else {
                    if let Some(name) = name {
                        module.names.insert(name, target.clone());
                    }
                    module.uses.insert(target);
                }
            }
        }
    }
    modules.edges()
}

/// The full path of the module of a file, whose package is in `folder`; none for other files.
pub(super) fn module_path(source: &Source, folder: &str) -> Option<Vec<String>> {
    let path = source.path.strip_prefix(folder)?.strip_suffix(".py")?;
    let package = folder.trim_end_matches('/').rsplit('/').next()?;
    let parts = [package].into_iter().chain(path.split('/'));
    let mut parts: Vec<String> = parts.map(str::to_owned).collect();
    if is_door(source) {
        parts.pop();
    }
    Some(parts)
}

/// Whether a file is that of a package.
fn is_door(source: &Source) -> bool {
    source.path.ends_with("/__init__.py")
}

/// What relative imports of a module start at.
fn folder_of<'a>(source: &Source, module: &'a [String]) -> &'a [String] {
    let length = module.len() - usize::from(!is_door(source));
    &module[..length]
}

/// The lines of all imports of a module, and the full paths of what they import.
pub(super) fn imports(source: &Source, module: &[String]) -> Vec<(usize, Vec<String>)> {
    let statements = statements(&source.text).into_iter();
    let paths = statements.flat_map(|one| {
        let paths = one.paths(folder_of(source, module)).into_iter();
        paths.map(move |(path, _)| (one.line, path))
    });
    paths.collect()
}

/// One `import` or `from` statement.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    /// The number of its first line.
    line: usize,
    is_indented: bool,
    /// Dots before the module, of a relative import.
    dots: usize,
    module: Vec<String>,
    /// What is imported from it, with the name that it gets; none for `import module`.
    names: Option<Vec<(String, String)>>,
}

impl Import {
    /// Full paths, with the names that they get.
    fn paths(&self, folder: &[String]) -> Vec<(Vec<String>, Option<String>)> {
        let mut base = Vec::new();
        if self.dots > 0 {
            let up = folder.len().saturating_sub(self.dots - 1);
            base.extend_from_slice(&folder[..up]);
        }
        base.extend_from_slice(&self.module);
        match &self.names {
            None => vec![(base, None)],
            Some(names) => names
                .iter()
                .map(|(name, alias)| {
                    let path = base.iter().chain([name]).cloned().collect();
                    (path, Some(alias.clone()))
                })
                .collect(),
        }
    }
}

/// All imports of a Python file, also those inside of functions.
fn statements(text: &str) -> Vec<Import> {
    let code = without_python_strings(text);
    let mut found = Vec::new();
    let mut lines = code.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let trimmed = line.trim_start();
        if !trimmed.starts_with("import ") && !trimmed.starts_with("from ") {
            continue;
        }
        let mut statement = trimmed.to_owned();
        while statement.ends_with('\\') || (statement.contains('(') && !statement.contains(')')) {
            let Some((next, _)) = lines.next() else { break };
            statement = format!("{} {}", statement.trim_end_matches('\\'), next.trim());
        }
        let is_indented = trimmed.len() < line.len();
        let parts = |module: &str| -> Vec<String> {
            let parts = module.split('.').filter(|part| !part.is_empty());
            parts.map(|part| part.trim().to_owned()).collect()
        };
        if let Some(rest) = statement.strip_prefix("from ") {
            let Some((module, names)) = rest.split_once(" import ") else {
                continue;
            };
            let names = names.trim_matches(|c: char| "() ".contains(c));
            let named = names.split(',').filter_map(|one| {
                let mut words = one.split_whitespace();
                let name = words.next()?;
                Some((name.to_owned(), words.nth(1).unwrap_or(name).to_owned()))
            });
            found.push(Import {
                line: number,
                is_indented,
                dots: module.chars().take_while(|&c| c == '.').count(),
                module: parts(module),
                names: Some(named.collect()),
            });
        } else if let Some(rest) = statement.strip_prefix("import ") {
            for one in rest.split(',') {
                found.push(Import {
                    line: number,
                    is_indented,
                    dots: 0,
                    module: parts(one.split_whitespace().next().unwrap_or_default()),
                    names: None,
                });
            }
        }
    }
    found
}

/// Python code without comments and without the insides of strings; lines stay lines.
fn without_python_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let quote = ["\"\"\"", "'''", "\"", "'"]
            .into_iter()
            .find(|quote| rest.starts_with(quote));
        if first == '#' {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if let Some(quote) = quote {
            let mut at = quote.len();
            while at < rest.len() && !rest[at..].starts_with(quote) {
                let character = rest[at..].chars().next().map_or(1, char::len_utf8);
                let escaped = rest[at..].starts_with('\\');
                at += character;
                if escaped {
                    at += rest[at..].chars().next().map_or(0, char::len_utf8);
                }
            }
            let end = rest.len().min(at + quote.len());
            code.push_str("\"\"");
            code.extend(rest[..end].chars().filter(|&c| c == '\n'));
            rest = &rest[end..];
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circles::circles_of_files;

    /// The circles of a package of these files: folder and members.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources = Source::package("python/m/", files);
        let circles = circles_of_files(&python_uses(&sources, "python/m/"), "python/m/");
        let shown = circles.iter().map(ToString::to_string);
        shown
            .map(|text| text.lines().next().unwrap_or_default().to_owned())
            .collect()
    }

    const Y: &str = "from m.a.x import X\ndef help():\n    pass\n";

    #[test]
    fn an_import_counts_wherever_it_stands_and_however_it_is_written() {
        for x in [
            "from m.a.y import help",
            "from m.a import y",
            "from m.a import (  # why\n    other,\n    y as z,\n)",
            "import os, m.a.y as y",
            "from . import y",
            "from .y import help",
            "from ..a.y import help",
            "from m.a import help",
            "def f():\n    from m.a.y import help\n",
            "if TYPE_CHECKING:\n    import m.a.y\n",
            "from m.a \\\n    import y",
        ] {
            let files = [
                ("__init__.py", ""),
                (
                    "a/__init__.py",
                    "from m.a.x import X\nfrom m.a.y import help\n",
                ),
                ("a/x.py", x),
                ("a/y.py", Y),
            ];
            assert_eq!(found(&files), ["python/m: a/x.py a/y.py"], "{x}");
        }
    }

    #[test]
    fn strings_comments_and_other_packages_are_no_imports() {
        for x in [
            "\"\"\"Use it so:\n\nfrom m.a.y import help\n\"\"\"\n",
            "CODE = '''\nimport m.a.y\n'''\n",
            "# from m.a.y import help",
            "from other.m.a.y import help\nimport y\nfrom __future__ import y\n",
        ] {
            let files = [("a/__init__.py", ""), ("a/x.py", x), ("a/y.py", Y)];
            assert_eq!(found(&files), [""; 0], "{x}");
        }
    }

    #[test]
    fn files_of_different_packages_are_a_circle_and_neither_doors_nor_packages_alone_are() {
        let files = [
            ("__init__.py", "from m.a.x import X\nfrom m.b.y import Y\n"),
            ("a/__init__.py", "from m.a.x import X\n"),
            ("a/x.py", "from m.b import Y\nclass X:\n    pass\n"),
            ("b/__init__.py", "from m.b.y import Y\n"),
            (
                "b/y.py",
                "class Y:\n    def f(self):\n        from m.a import X\n",
            ),
        ];
        assert_eq!(found(&files), ["python/m: a/x.py b/y.py"]);
        assert_eq!(found(&files[..4]), [""; 0]);
        let mut apart = files;
        apart[4].1 = "class Y:\n    pass\n";
        let apart = [&apart[..], &[("b/z.py", "from m.a import X\n")]].concat();
        assert_eq!(found(&apart), [""; 0]);
    }
}
