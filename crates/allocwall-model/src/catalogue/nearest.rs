//! Suggestions for an unknown name: the known names that are most similar.

/// Maximum number of suggestions.
const MOST: usize = 3;

/// The most similar of `names`, best first; empty if none is similar.
pub fn nearest<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let typed = plain(typed);
    if typed.is_empty() {
        return Vec::new();
    }
    // Up to a third of the letters may be wrong, but two wrong letters are always allowed.
    let limit = (typed.chars().count() / 3).max(2);
    let mut found: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|name| {
            let known = plain(name);
            let contains = typed.len() >= 3 && (known.contains(&typed) || typed.contains(&known));
            // The exchange of two neighbours counts as one edit.
            let distance = strsim::osa_distance(&typed, &known);
            match (distance <= limit && distance < typed.chars().count(), contains) {
                (true, _) => Some((distance, name)),
                // A part of a name comes after all typing errors.
                (false, true) => Some((limit + 1, name)),
                (false, false) => None,
            }
        })
        .collect();
    found.sort_by_key(|&(distance, name)| (distance, name.len()));
    found.dedup_by_key(|found| found.1);
    found.truncate(MOST);
    found.into_iter().map(|(_, name)| name).collect()
}

/// `; nearest: a, b`, or an empty string.
pub fn hint<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let near = nearest(typed, names);
    if near.is_empty() {
        return String::new();
    }
    format!("; nearest: {}", near.join(", "))
}

/// Ignores case, the difference between hyphens and underscores, and the colon of `glibc:` and `env:`.
fn plain(name: &str) -> String {
    name.trim_end_matches(':').to_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] = ["jemalloc", "jemalloc-thp", "mimalloc", "thp", "first_touch", "glibc:"];

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        assert_eq!(nearest("jemaloc", NAMES).first(), Some(&"jemalloc"));
        assert_eq!(nearest("tph", NAMES).first(), Some(&"thp"));
        assert_eq!(nearest("first-touch", NAMES), ["first_touch"]);
        assert_eq!(nearest("touch", NAMES), ["first_touch"]);
        assert_eq!(nearest("glib", NAMES), ["glibc:"]);
        assert_eq!(nearest("postgres", NAMES), [] as [&str; 0]);
        assert_eq!(nearest("", NAMES), [] as [&str; 0]);
        assert_eq!(hint("postgres", NAMES), "");
    }
}
