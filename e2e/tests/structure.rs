//! The structure of the crates: the modules below the root of a crate depend on each other in one direction, so that each can
//! be read without those that use it. A module is a file with the folder of its name. Tests do not count, and neither does the
//! module `error`: like the root, the error of a crate names those of its modules, which return it.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use cistern_e2e::process::workspace;
use syn::{
    Attribute, File, Item, ItemMod, ItemUse, UseTree,
    visit::{self, Visit},
};

/// The crates of the product.
const CRATES: [&str; 10] = [
    "crds",
    "crds/client",
    "crds/types",
    "driver",
    "driver/controller",
    "driver/host",
    "driver/node",
    "driver/transfer",
    "kubectl-cistern",
    "operator",
];

/// The modules below the root of a crate, and which others each uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The paths that a file uses.
#[derive(Default)]
struct Paths {
    used: Vec<Vec<String>>,
    /// By the names that the file gives them with `use`.
    named: BTreeMap<String, Vec<String>>,
}

impl Paths {
    fn of(file: &File) -> Self {
        let mut paths = Self::default();
        paths.visit_file(file);
        paths
    }

    fn name(&mut self, name: &str, path: Vec<String>) {
        self.used.push(path.clone());
        self.named.insert(name.to_owned(), path);
    }

    fn add_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_tree(&with(&path.ident), &path.tree),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_tree(before, tree);
                }
            }
            UseTree::Name(name) => match before.last() {
                Some(module) if name.ident == "self" => self.name(module, before.to_vec()),
                _ => self.name(&name.ident.to_string(), with(&name.ident)),
            },
            UseTree::Rename(name) => self.name(&name.rename.to_string(), with(&name.ident)),
            UseTree::Glob(_) => self.used.push(before.to_vec()),
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(it) => &it.attrs,
            Item::Impl(it) => &it.attrs,
            Item::Mod(it) => &it.attrs,
            Item::Use(it) => &it.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_of_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        assert!(
            module.content.is_none(),
            "module {} has no file of its own",
            module.ident
        );
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.used.push(names.collect());
        visit::visit_path(self, path);
    }
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

/// A file of a crate, by the path of its module.
struct Module {
    path: Vec<String>,
    file: File,
}

/// Reads the files of a folder that are not of tests alone.
fn read(folder: &Path, path: &[String], modules: &mut Vec<Module>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        if file.is_dir() {
            read(&file, &[path, &[name]].concat(), modules);
        } else if file.extension() == Some("rs".as_ref()) {
            let path = match name.as_str() {
                "lib" | "main" | "mod" => path.to_vec(),
                _ => [path, &[name]].concat(),
            };
            let file = syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap();
            modules.push(Module { path, file });
        }
    }
}

/// The absolute path of what a module names, if that is in the crate.
fn absolute(module: &[String], named: &[String]) -> Option<Vec<String>> {
    let (first, rest) = named.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([module, rest].concat()),
        "super" => {
            let (_, above) = module.split_last()?;
            match rest.first().map(String::as_str) {
                Some("super") => absolute(above, rest),
                _ => Some([above, rest].concat()),
            }
        }
        // The root names its modules without `self`. In any other module, such a name is its own or of another crate.
        _ => module.is_empty().then(|| named.to_vec()),
    }
}

fn graph(modules: &[Module]) -> Graph {
    let tops: BTreeSet<String> = modules
        .iter()
        .filter_map(|it| it.path.first().cloned())
        .filter(|top| top != "error")
        .collect();
    // What the root uses of a module has a name at the root, by which the others can use it.
    let mut at_root = BTreeMap::new();
    for root in modules.iter().filter(|it| it.path.is_empty()) {
        for (name, path) in Paths::of(&root.file).named {
            let top = absolute(&[], &path).and_then(|path| path.into_iter().next());
            at_root.extend(top.map(|top| (name, top)));
        }
    }
    let mut graph: Graph = tops
        .iter()
        .map(|top| (top.clone(), BTreeSet::new()))
        .collect();
    for module in modules {
        let Some(from) = module.path.first().filter(|top| tops.contains(*top)) else {
            continue;
        };
        let used = Paths::of(&module.file).used.into_iter();
        let used = used.filter_map(|path| absolute(&module.path, &path));
        let used = used.filter_map(|path| path.into_iter().next());
        let used = used.filter_map(|top| match at_root.get(&top) {
            _ if tops.contains(&top) => Some(top),
            module => module.cloned(),
        });
        let others = used.filter(|top| top != from && tops.contains(top));
        graph.entry(from.clone()).or_default().extend(others);
    }
    graph
}

/// A module that uses itself by others, and these, in order; none if there is none.
fn circle(graph: &Graph) -> Option<Vec<String>> {
    fn follow(
        graph: &Graph,
        from: &str,
        done: &mut BTreeSet<String>,
        way: &mut Vec<String>,
    ) -> bool {
        if let Some(begin) = way.iter().position(|it| it == from) {
            way.drain(..begin);
            return true;
        }
        if !done.insert(from.to_owned()) {
            return false;
        }
        way.push(from.to_owned());
        let ends = graph[from]
            .iter()
            .any(|next| follow(graph, next, done, way));
        if !ends {
            way.pop();
        }
        ends
    }
    let (mut done, mut way) = (BTreeSet::new(), Vec::new());
    let found = graph
        .keys()
        .any(|top| follow(graph, top, &mut done, &mut way));
    found.then_some(way)
}

#[test]
fn the_modules_of_a_crate_depend_on_each_other_in_one_direction() {
    let circles: Vec<String> = CRATES
        .iter()
        .filter_map(|name| {
            let folder: PathBuf = workspace().join(name).join("src");
            let mut modules = Vec::new();
            read(&folder, &[], &mut modules);
            let found = graph(&modules);
            assert!(found.len() > 2, "{name} has modules");
            let way = circle(&found)?;
            Some(format!("{name}: {} and again", way.join(" uses ")))
        })
        .collect();
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

#[test]
fn a_name_at_the_root_is_of_the_module_that_it_comes_from() {
    let module = |path: &str, text: &str| {
        let path = path.split_terminator('/').map(str::to_owned).collect();
        let file = syn::parse_file(text).unwrap();
        Module { path, file }
    };
    let root = "pub use a::A; pub use self::{b::B as Other, c::d::{self}}; use e::E;";
    let users = "use crate::{A, d}; use super::super::Other; fn f(e: crate::E) {}";
    let found = graph(&[
        module("", root),
        module("a", "use serde::A;"),
        module("b", "use crate::own;"),
        module("c/d", ""),
        module("e", ""),
        module("users/own", users),
    ]);
    let used: Vec<&str> = found["users"].iter().map(String::as_str).collect();
    assert_eq!(used, ["a", "b", "c", "e"]);
    assert!(found["a"].is_empty() && found["b"].is_empty(), "{found:?}");
}

#[test]
fn a_circle_is_found_and_a_chain_is_none() {
    let graph = |edges: &[(&str, &[&str])]| -> Graph {
        let edges = edges.iter().map(|(from, to)| {
            let to = to.iter().map(|it| (*it).to_owned()).collect();
            ((*from).to_owned(), to)
        });
        edges.collect()
    };
    let chain = graph(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]);
    assert_eq!(circle(&chain), None);
    let round = graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["d", "b"]), ("d", &[])]);
    assert_eq!(circle(&round), Some(vec!["b".to_owned(), "c".to_owned()]));
}
