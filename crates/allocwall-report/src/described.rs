//! The fields of a document as docs/json.md describes them, for the tests that compare both.

use std::collections::BTreeSet;

/// The fields in the first table of the section whose heading begins like this. `a.b`, `.c` in a row: the second is `a.c`.
pub fn described(heading: &str) -> BTreeSet<String> {
    let page = include_str!("../../../docs/json.md");
    let section = page.split("\n## ").find(|section| section.starts_with(heading)).expect("a section");
    let section = section.split("\nParts that occur").next().unwrap_or(section);
    let mut described = BTreeSet::new();
    for row in section.lines().filter_map(|row| row.strip_prefix("| ")?.split(" |").next()) {
        let mut names = row.split('`').skip(1).step_by(2).map(str::to_owned);
        let Some(first) = names.next() else { continue };
        let above = first.rsplit_once('.').map_or("", |(above, _)| above).to_owned();
        described.extend(names.map(|name| match name.strip_prefix('.') {
            Some(name) => format!("{above}.{name}"),
            None => name,
        }));
        described.insert(first);
    }
    described
}
