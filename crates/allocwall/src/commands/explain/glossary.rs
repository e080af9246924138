//! The terms of docs/glossary.md, which is part of the program.

use allocwall_model::catalogue::nearest::plain;

const TEXT: &str = include_str!("../../../../../docs/glossary.md");

/// A row of one of its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// One name, or several after commas.
    pub names: &'static str,
    meaning: &'static str,
}

pub fn terms() -> impl Iterator<Item = Term> {
    TEXT.lines().filter_map(|line| {
        let (names, meaning) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
        (names != "term" && !names.starts_with('-')).then_some(Term { names, meaning })
    })
}

/// The term with this name, else the terms whose meaning defines it: *proved* is defined with *proof*.
pub fn find(name: &str) -> Vec<Term> {
    let wanted = forms(name);
    let same = |known: &str| wanted.contains(&plain(known));
    let named = |term: &Term| same(term.names) || term.names.split(", ").any(same);
    let defines = |term: &Term| term.meaning.split('*').skip(1).step_by(2).any(same);
    let found: Vec<Term> = terms().filter(named).collect();
    if found.is_empty() { terms().filter(defines).collect() } else { found }
}

/// The name, also without an addition in brackets, and in the singular: REMEDIES, CALL SITES.
fn forms(name: &str) -> Vec<String> {
    let short = plain(name.split(" (").next().unwrap_or(name));
    let singular = match (short.strip_suffix("ies"), short.strip_suffix('s')) {
        (Some(stem), _) => format!("{stem}y"),
        (None, Some(stem)) => stem.to_owned(),
        (None, None) => short.clone(),
    };
    [plain(name), short, singular].into_iter().filter(|form| !form.is_empty()).collect()
}

impl Term {
    /// As text: links, emphasis and code are marked for a browser only.
    pub fn meaning(&self) -> String {
        let mut text = String::new();
        let mut rest = self.meaning;
        while let Some((before, after)) = rest.split_once('[') {
            let link = after.split_once("](").filter(|(shown, _)| !shown.contains(']'));
            let link = link.and_then(|(shown, target)| Some((shown, target.split_once(')')?.1)));
            // `[heap]` is no link.
            let (shown, left) = link.unwrap_or(("[", after));
            text = text + before + shown;
            rest = left;
        }
        (text + rest).replace(['*', '`'], "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> Vec<&'static str> {
        find(name).iter().map(|term| term.names).collect()
    }

    #[test]
    fn a_term_is_found_by_its_name_and_by_what_it_defines() {
        assert_eq!(names("Thread second"), ["thread-second"]);
        assert_eq!(names("free, kept"), ["free, kept"]);
        assert_eq!(names("fell"), ["rose, fell, steady"]);
        assert_eq!(names("better"), ["better, worse"]);
        assert_eq!(names("proved"), ["proof"]);
        assert_eq!(names("REMEDIES"), ["remedy"]);
        assert_eq!(names("CALL SITES"), ["call site"]);
        assert_eq!(names("stopped (signal, tracer, freezer)"), ["stopped"]);
        for nothing in ["", "term", "meaning", "---", "snake oil"] {
            assert!(names(nothing).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn meanings_have_no_marks() {
        assert!(terms().count() > 100);
        for term in terms() {
            let meaning = term.meaning();
            let is_marked = meaning.contains(['*', '`', '|']) || meaning.contains("](");
            assert!(!is_marked && !meaning.is_empty(), "{}: {meaning}", term.names);
        }
        let linked = Term { names: "a", meaning: "`[heap]`, see [count.md](count.md), `x` and *y*" };
        assert_eq!(linked.meaning(), "[heap], see count.md, x and y");
    }
}
