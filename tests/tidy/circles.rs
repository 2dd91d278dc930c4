//! Which file uses which, and the circles among them.
//!
//! In Rust the files and folders of each folder are the nodes: one uses another if a file in it
//! names something that a file in the other defines. In Python files alone are the nodes: folders
//! have an order (`python_rooms.rs`). Doors (`mod.rs`, `lib.rs`, `__init__.py`) pass names
//! on: who uses such a name uses the file that defines it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// How many doors a name may pass.
const MOST_DOORS: usize = 10;

/// One file uses a name of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) name: String,
}

/// Files and folders of one folder that use each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Circle {
    pub(super) folder: String,
    pub(super) members: BTreeSet<String>,
    /// The uses that close it.
    pub(super) edges: Vec<Edge>,
}

impl std::fmt::Display for Circle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let members: Vec<&str> = self.members.iter().map(String::as_str).collect();
        write!(f, "{}: {}", self.folder, members.join(" "))?;
        let mut by_files: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for edge in &self.edges {
            let names = by_files.entry((&edge.from, &edge.to)).or_default();
            names.push(&edge.name);
        }
        for ((from, to), names) in by_files {
            write!(f, "\n      {from} uses {to}: {}", names.join(", "))?;
        }
        Ok(())
    }
}

/// Folder -> uses between its members: from, to, and what it is.
type Uses<'e> = BTreeMap<String, Vec<(String, String, &'e Edge)>>;

/// All circles of files and folders in one folder, in the order of the folders.
pub(super) fn circles_of_folders(edges: &BTreeSet<Edge>) -> Vec<Circle> {
    let mut folders = Uses::new();
    for edge in edges {
        let (from, to): (Vec<&str>, Vec<&str>) =
            (edge.from.split('/').collect(), edge.to.split('/').collect());
        let Some(at) = from.iter().zip(&to).position(|(a, b)| a != b) else {
            continue;
        };
        let uses = folders.entry(from[..at].join("/")).or_default();
        uses.push((from[at].to_owned(), to[at].to_owned(), edge));
    }
    circles(folders)
}

/// All circles of files below one folder, wherever in it they are.
pub(super) fn circles_of_files(edges: &BTreeSet<Edge>, folder: &str) -> Vec<Circle> {
    let name = |path: &str| path.strip_prefix(folder).unwrap_or(path).to_owned();
    let uses = edges
        .iter()
        .map(|edge| (name(&edge.from), name(&edge.to), edge))
        .collect();
    circles(Uses::from([(
        folder.trim_end_matches('/').to_owned(),
        uses,
    )]))
}

fn circles(folders: Uses<'_>) -> Vec<Circle> {
    let mut found = Vec::new();
    for (folder, uses) in folders {
        let names: BTreeSet<&str> = uses
            .iter()
            .flat_map(|(from, to, _)| [from.as_str(), to.as_str()])
            .collect();
        let reached: BTreeMap<&str, HashSet<&str>> = names
            .iter()
            .map(|&name| (name, reach(name, &uses)))
            .collect();
        let mut done: HashSet<&str> = HashSet::new();
        for &name in &names {
            let members: BTreeSet<String> = names
                .iter()
                .filter(|&&other| reached[name].contains(other) && reached[other].contains(name))
                .map(|&other| other.to_owned())
                .collect();
            if members.is_empty() || done.contains(name) {
                continue;
            }
            done.extend(names.iter().filter(|&&other| members.contains(other)));
            let edges = uses
                .iter()
                .filter(|(from, to, _)| members.contains(from) && members.contains(to))
                .map(|(_, _, edge)| (*edge).clone())
                .collect();
            found.push(Circle {
                folder: folder.clone(),
                members,
                edges,
            });
        }
    }
    found
}

/// What a node leads to, by one use at least.
fn reach<'a>(start: &'a str, uses: &'a [(String, String, &Edge)]) -> HashSet<&'a str> {
    let mut found = HashSet::new();
    let mut todo = vec![start];
    while let Some(at) = todo.pop() {
        for (_, to, _) in uses.iter().filter(|(from, _, _)| from == at) {
            if found.insert(to.as_str()) {
                todo.push(to);
            }
        }
    }
    found
}

/// The files of one crate or package.
pub(super) struct Modules {
    pub(super) by_path: HashMap<Vec<String>, Module>,
}

/// What the text of one file says.
#[derive(Default)]
pub(super) struct Module {
    pub(super) file: String,
    /// Name -> the full path that a `use` or `import` gives it.
    pub(super) names: HashMap<String, Vec<String>>,
    /// Modules whose names are all passed on.
    pub(super) globs: Vec<Vec<String>>,
    pub(super) defined: HashSet<String>,
    /// Full paths that the file uses.
    pub(super) uses: BTreeSet<Vec<String>>,
}

impl Modules {
    pub(super) fn edges(&self) -> BTreeSet<Edge> {
        let mut edges = BTreeSet::new();
        for module in self.by_path.values() {
            for path in &module.uses {
                let Some((to, name)) = self.resolve(path, MOST_DOORS) else {
                    continue;
                };
                if to != module.file {
                    edges.insert(Edge {
                        from: module.file.clone(),
                        to,
                        name,
                    });
                }
            }
        }
        edges
    }

    /// The file that defines what a path names, and its name there.
    fn resolve(&self, path: &[String], doors: usize) -> Option<(String, String)> {
        let length = self.module_length(path)?;
        let (module, rest) = (&self.by_path[&path[..length]], &path[length..]);
        let Some(name) = rest.first() else {
            let name = path.last().cloned().unwrap_or_default();
            return Some((module.file.clone(), name));
        };
        let here = Some((module.file.clone(), name.clone()));
        if module.defined.contains(name) || doors == 0 {
            return here;
        }
        if let Some(target) = module.names.get(name) {
            let further: Vec<String> = target.iter().chain(&rest[1..]).cloned().collect();
            return self.resolve(&further, doors - 1).or(here);
        }
        for glob in &module.globs {
            let further: Vec<String> = glob.iter().chain(rest).cloned().collect();
            if let Some(found) = self.resolve(&further, doors - 1) {
                let defines =
                    |module: &Module| module.file == found.0 && module.defined.contains(name);
                if self.by_path.values().any(defines) {
                    return Some(found);
                }
            }
        }
        here
    }

    /// How much of a path names a module that is a file.
    fn module_length(&self, path: &[String]) -> Option<usize> {
        (0..=path.len())
            .rev()
            .find(|&length| self.by_path.contains_key(&path[..length]))
    }

    pub(super) fn is_module(&self, path: &[String]) -> bool {
        self.by_path.contains_key(path)
    }
}
