//! Imports run one way, and unsafe code stays in its places: read from the sources' tokens, so that neither a comment
//! nor a string can be mistaken for code.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Top-level modules from the bottom up. A module may import what stands on a lower step than its own.
const STEPS: &[&[&str]] = &[
    &["units"],
    &["error"],
    &["catalogue", "stats"],
    &["host"],
    &["measure"],
    &["bill"],
    &["diagnose"],
    &["trial"],
    &["report"],
    &["bench"],
    &["fuzzing"],
];

/// Where system calls may be made by hand: the library's `host`, the binary's built-in subjects.
const UNSAFE_ALLOWED: &[&str] = &["allocwall-core/src/host", "allocwall/src/workloads"];

#[test]
fn imports_run_one_way() {
    let root = crates().join("allocwall-core/src");
    let sources = sources(&root);
    assert!(
        sources.len() >= STEPS.len(),
        "only {} sources found",
        sources.len()
    );
    let wrong: Vec<String> = sources
        .into_iter()
        .flat_map(|(path, tokens)| violations(path.strip_prefix(&root).unwrap(), tokens))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_stays_in_its_places() {
    let wrong: Vec<String> = ["allocwall-core/src", "allocwall/src"]
        .iter()
        .flat_map(|source| sources(&crates().join(source)))
        .filter(|(path, _)| {
            !UNSAFE_ALLOWED
                .iter()
                .any(|place| path.starts_with(crates().join(place)))
        })
        .filter(|(_, tokens)| mentions(tokens.clone(), "unsafe"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert!(
        wrong.is_empty(),
        "unsafe outside {UNSAFE_ALLOWED:?}:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn planted_violations_are_found() {
    for (path, source) in [
        ("bill/mod.rs", "use crate::report::json;"),
        ("bill/lines.rs", "use crate::{units::Interval, diagnose};"),
        ("bill/lines.rs", "fn f() { let x = crate::diagnose::judge(); }"),
        ("bill/lines.rs", "use super::super::report::text;"),
        ("bill/mod.rs", "use super::diagnose::Finding;"),
        ("catalogue/cost.rs", "use crate::stats::median;"),
        ("catalogue/cost.rs", "use crate::host::procfs;"),
        ("units.rs", "use crate::catalogue::walls::Wall;"),
        ("newcomer/mod.rs", "use crate::units::Interval;"),
        ("measure/mod.rs", "use crate::newcomer::Thing;"),
        ("measure/mod.rs", "use crate::*;"),
    ] {
        let found = violations(Path::new(path), parse(source));
        assert_eq!(found.len(), 1, "{path}: {source}: {found:?}");
    }
    assert!(mentions(parse("fn f() { unsafe { g() } }"), "unsafe"));
}

#[test]
fn what_is_allowed_is_not_reported() {
    for (path, source) in [
        (
            "bill/mod.rs",
            "use crate::{catalogue::cost::CostClass, units::{self, Interval}, measure};",
        ),
        (
            "bill/lines.rs",
            "use super::Bill; use crate::bill::Site; mod tests { use super::super::Bill; }",
        ),
        (
            "bill/lines.rs",
            "// use crate::report;\n/* crate::report */ const S: &str = \"crate::report\";",
        ),
        (
            "bill/lines.rs",
            "pub(crate) fn f() {} macro_rules! m { () => { $crate::units::Interval } }",
        ),
        ("error.rs", "use crate::units::Absence;"),
        ("report/text.rs", "use crate::diagnose::Verdict;"),
    ] {
        assert_eq!(
            violations(Path::new(path), parse(source)),
            Vec::<String>::new(),
            "{path}: {source}"
        );
    }
    let harmless = "#![deny(unsafe_op_in_unsafe_fn)]\n/// unsafe\nconst S: &str = \"unsafe\";";
    assert!(!mentions(parse(harmless), "unsafe"));
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

/// Every Rust source below a folder, as tokens.
fn sources(folder: &Path) -> Vec<(PathBuf, TokenStream)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, parse(&text)));
        }
    }
    found
}

fn parse(source: &str) -> TokenStream {
    source.parse().unwrap_or_else(|e| panic!("not Rust: {e}"))
}

/// What is wrong with the imports of one file, its path given below `src`.
fn violations(path: &Path, tokens: TokenStream) -> Vec<String> {
    let modules: Vec<String> = path
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .filter(|part| part != "mod")
        .collect();
    if modules == ["lib"] {
        return Vec::new();
    }
    let own = modules[0].as_str();
    imports(tokens, modules.len())
        .into_iter()
        .filter(|imported| imported != own && !is_allowed(own, imported))
        .map(|imported| format!("{}: `{own}` may not import `{imported}`", path.display()))
        .collect()
}

/// A module that has no step yet may neither import nor be imported: it must be given one.
fn is_allowed(own: &str, imported: &str) -> bool {
    match (step(own), step(imported)) {
        (Some(own), Some(imported)) => imported < own,
        _ => false,
    }
}

fn step(module: &str) -> Option<usize> {
    STEPS.iter().position(|step| step.contains(&module))
}

/// Top-level modules that the tokens name, by `crate::` or by enough `super::` to leave a module `depth` levels deep.
fn imports(tokens: TokenStream, depth: usize) -> BTreeSet<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = BTreeSet::new();
    let mut at = 0;
    while at < tokens.len() {
        if let TokenTree::Group(group) = &tokens[at] {
            found.extend(imports(group.stream(), depth));
        }
        let mut supers = 0;
        let mut end = at;
        while is_word(&tokens, end, "super") && is_path_separator(&tokens, end + 1) {
            supers += 1;
            end += 3;
        }
        if supers > 0 && supers >= depth {
            // Inside an inline module (tests), `super` reaches less far: only names of known modules count.
            found.extend(
                first_names(&tokens, end)
                    .into_iter()
                    .filter(|name| step(name).is_some()),
            );
        } else if is_word(&tokens, at, "crate")
            && is_path_separator(&tokens, at + 1)
            && !is_macro_variable(&tokens, at)
        {
            found.extend(first_names(&tokens, at + 3));
        }
        at = end.max(at + 1);
    }
    found
}

/// The names that a path continues with: one, or several in braces.
fn first_names(tokens: &[TokenTree], at: usize) -> Vec<String> {
    match tokens.get(at) {
        Some(TokenTree::Ident(name)) => vec![name.to_string()],
        Some(TokenTree::Punct(star)) if star.as_char() == '*' => vec!["*".to_string()],
        Some(TokenTree::Group(group)) => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            inner
                .split(|token| matches!(token, TokenTree::Punct(comma) if comma.as_char() == ','))
                .flat_map(|item| first_names(item, 0))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn is_word(tokens: &[TokenTree], at: usize, word: &str) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Ident(name)) if name == word)
}

fn is_path_separator(tokens: &[TokenTree], at: usize) -> bool {
    is_punctuation(tokens, at, ':') && is_punctuation(tokens, at + 1, ':')
}

/// `$crate`: names what the macro's user may reach, not an import of this file.
fn is_macro_variable(tokens: &[TokenTree], at: usize) -> bool {
    at > 0 && is_punctuation(tokens, at - 1, '$')
}

fn is_punctuation(tokens: &[TokenTree], at: usize, character: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(found)) if found.as_char() == character)
}

fn mentions(tokens: TokenStream, word: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(name) => name == word,
        TokenTree::Group(group) => mentions(group.stream(), word),
        _ => false,
    })
}
