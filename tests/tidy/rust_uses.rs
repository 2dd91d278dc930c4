//! What Rust files use, as the text of `use` lines and paths tells; tests count for nothing.

use super::circles::{Edge, Module, Modules};
use super::rust_tokens::{is_name, rust_tokens, without_tests};
use super::Source;
use std::collections::{BTreeSet, HashMap};

/// The uses within the crate whose sources are in `folder`, such as `kernels/src/`.
pub(super) fn rust_uses(sources: &[Source], folder: &str) -> BTreeSet<Edge> {
    let mut modules = Modules {
        by_path: HashMap::new(),
    };
    let mut texts = Vec::new();
    for source in sources {
        let Some(path) = source.path.strip_prefix(folder) else {
            continue;
        };
        let Some(path) = path.strip_suffix(".rs") else {
            continue;
        };
        let mut path: Vec<String> = path.split('/').map(str::to_owned).collect();
        if ["mod", "lib", "main"].contains(&path.last().map_or("", String::as_str)) {
            path.pop();
        }
        let module = Module {
            file: source.path.clone(),
            ..Module::default()
        };
        modules.by_path.insert(path.clone(), module);
        texts.push((path, without_tests(rust_tokens(&source.text))));
    }
    // First what each module defines and passes on, then what it uses.
    for (path, tokens) in &texts {
        let module = read_rust(path, tokens, &modules);
        let file = modules.by_path[path].file.clone();
        modules
            .by_path
            .insert(path.clone(), Module { file, ..module });
    }
    modules.edges()
}

/// Reads the tokens of a file: definitions, `use` lines, and paths in the code.
fn read_rust(file: &[String], tokens: &[String], modules: &Modules) -> Module {
    let mut module = Module::default();
    // Names in this file that stand for modules: those it is given by `use`, and its children.
    let mut aliases: HashMap<String, (Vec<String>, bool)> = modules
        .by_path
        .keys()
        .filter(|path| path.len() == file.len() + 1 && path.starts_with(file))
        .map(|path| (path[file.len()].clone(), (path.clone(), true)))
        .collect();
    // Modules inside of the file, each with the depth of braces that it ends at.
    let mut inner: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    let token = |at: usize| tokens.get(at).map_or("", String::as_str);
    while at < tokens.len() {
        match token(at) {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if inner.last().is_some_and(|(_, end)| *end == depth) {
                    inner.pop();
                }
            }
            "mod" if token(at + 2) == "{" => {
                inner.push((token(at + 1).to_owned(), depth));
                depth += 1;
                at += 3;
                continue;
            }
            "struct" | "enum" | "fn" | "const" | "static" | "type" | "trait" | "union" => {
                module.defined.insert(token(at + 1).to_owned());
            }
            "macro_rules" => {
                module.defined.insert(token(at + 2).to_owned());
            }
            "use" if token(at + 1) != "<" => {
                let is_public = at > 0 && matches!(token(at - 1), "pub" | ")");
                let mut found = Vec::new();
                at = use_tree(tokens, at + 1, Vec::new(), &mut found);
                for (path, alias) in found {
                    let Some(path) = absolute(&path, file, &inner, modules) else {
                        continue;
                    };
                    let is_passed_on = is_public && path.starts_with(file);
                    if path.last().is_some_and(|last| last == "*") {
                        module.globs.push(path[..path.len() - 1].to_vec());
                    } else if modules.is_module(&path) {
                        module.names.insert(alias.clone(), path.clone());
                        aliases.insert(alias, (path, is_passed_on));
                        continue;
                    } else {
                        module.names.insert(alias, path.clone());
                    }
                    if !is_passed_on {
                        module.uses.insert(path);
                    }
                }
                continue;
            }
            name if token(at + 1) == "::" && (at == 0 || token(at - 1) != "::") => {
                let mut path = vec![name.to_owned()];
                let mut end = at + 1;
                while token(end) == "::" && is_name(token(end + 1)) {
                    path.push(token(end + 1).to_owned());
                    end += 2;
                }
                if let Some((target, used)) = aliases.get_mut(name) {
                    *used = true;
                    module
                        .uses
                        .insert(target.iter().chain(&path[1..]).cloned().collect());
                } else if ["crate", "self", "super"].contains(&name) {
                    module.uses.extend(absolute(&path, file, &inner, modules));
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    // Modules that are imported, and of which no path names anything.
    let unused = aliases.into_values().filter(|(_, used)| !used);
    module.uses.extend(unused.map(|(path, _)| path));
    module
}

/// Reads one tree of a `use` line into paths with the names that they get; returns where it ends.
fn use_tree(
    tokens: &[String],
    mut at: usize,
    mut path: Vec<String>,
    found: &mut Vec<(Vec<String>, String)>,
) -> usize {
    let token = |at: usize| tokens.get(at).map_or(";", String::as_str);
    loop {
        match token(at) {
            "::" => at += 1,
            "{" => {
                at += 1;
                while !matches!(token(at), "}" | ";") {
                    at = use_tree(tokens, at, path.clone(), found);
                    at += usize::from(token(at) == ",");
                }
                return at + 1;
            }
            "as" => {
                found.push((path, token(at + 1).to_owned()));
                return at + 2;
            }
            "," | "}" | ";" => {
                if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                    path.pop();
                }
                if let Some(last) = path.last().cloned() {
                    found.push((path, last));
                }
                return at;
            }
            name => {
                path.push(name.to_owned());
                at += 1;
            }
        }
    }
}

/// A path from the root of the crate; `None` if it leads out of it.
fn absolute(
    path: &[String],
    file: &[String],
    inner: &[(String, usize)],
    modules: &Modules,
) -> Option<Vec<String>> {
    let mut base: Vec<String> = file.to_vec();
    base.extend(inner.iter().map(|(name, _)| name.clone()));
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                base.pop()?;
                rest = &rest[1..];
            }
        }
        _ => {
            let child: Vec<String> = file.iter().chain(&path[..1]).cloned().collect();
            if !modules.is_module(&child) {
                return None;
            }
        }
    }
    base.extend_from_slice(rest);
    Some(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circles::circles_of_folders;

    /// The circles of a crate of these files: folder and members.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources = Source::package("k/src/", files);
        let circles = circles_of_folders(&rust_uses(&sources, "k/src/"));
        let shown = circles.iter().map(ToString::to_string);
        shown
            .map(|text| text.lines().next().unwrap_or_default().to_owned())
            .collect()
    }

    const DOOR: &str = "mod x;\nmod y;\npub(crate) use x::{X, Other as Renamed};\npub use y::*;\n";

    fn files_of<'a>(x: &'a str, y: &'a str) -> [(&'a str, &'a str); 4] {
        [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", DOOR),
            ("a/x.rs", x),
            ("a/y.rs", y),
        ]
    }

    #[test]
    fn a_name_is_followed_through_doors_to_the_file_that_defines_it() {
        for (x, y) in [
            (
                "use super::y::help; pub struct X;",
                "use super::X; pub fn help() {}",
            ),
            (
                "use super::help; pub struct X;",
                "use crate::a::X; pub fn help() {}",
            ),
            (
                "use crate::a::{self, help}; struct Other;",
                "use super::Renamed; fn help() {}",
            ),
            ("fn f() { super::help() }", "fn help(x: &crate::a::X) {}"),
            (
                "use super::y; fn f() { y::help() }",
                "use super::x; fn help() { x::go() }",
            ),
            (
                "use super::y as z; fn f() { z::help() }",
                "mod inner { use super::super::X; }",
            ),
            (
                "use crate::{a::{y::{help as h}}};",
                "use super::super::a::x::X;",
            ),
        ] {
            assert_eq!(found(&files_of(x, y)), ["k/src/a: x.rs y.rs"], "{x} / {y}");
        }
    }

    #[test]
    fn tests_comments_strings_and_other_crates_are_no_uses() {
        let x = "use super::y::help; pub struct X;";
        for y in [
            "#[cfg(test)]\nmod tests { use super::super::X; }",
            "#[cfg(all(test, unix))]\nuse super::X;\nfn help() {}",
            "// use super::X;\n/* super::X */ fn help() {}",
            r##"const C: &str = "use super::X;"; const D: &str = r#""super::X"#;"##,
            r"const Q: char = '\u{22}'; const R: u8 = b'\''; const S: char = '\\'; // super::X",
            "use other::X; use std::x::X; fn f<'a>() -> impl Sized + use<'a> { other::x::X }",
            "pub use self::inner::X; mod inner { pub struct X; }",
        ] {
            assert_eq!(found(&files_of(x, y)), [""; 0], "{y}");
        }
        let y = "#[cfg(not(test))] use super::X;";
        assert_eq!(
            found(&files_of(x, y)).len(),
            1,
            "the same without what hides it"
        );
    }

    #[test]
    fn folders_that_use_each_other_by_different_files_are_a_circle() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
            ("a/mod.rs", "mod one;\nmod two;\npub use one::One;\n"),
            ("a/one.rs", "pub struct One;"),
            ("a/two.rs", "use crate::b::Far;"),
            ("b/mod.rs", "mod far;\npub use far::Far;\n"),
            ("b/far.rs", "use crate::c::near; pub struct Far;"),
            ("c.rs", "use crate::a::One; pub fn near() {}"),
        ];
        assert_eq!(found(&files), ["k/src: a b c.rs"]);
        assert_eq!(found(&files[..6]), [""; 0]);
    }

    #[test]
    fn a_door_that_holds_code_is_a_file_like_others() {
        let door = "mod x;\npub use x::X;\npub struct Own;\nfn f() -> X { x::X }\n";
        let files = [
            ("a/mod.rs", door),
            ("a/x.rs", "use super::Own; pub struct X;"),
        ];
        assert_eq!(found(&files), ["k/src/a: mod.rs x.rs"]);
    }
}
