//! Suggestions for an unknown name: the known names that are most similar.

use std::collections::BTreeSet;

/// Maximum number of suggestions.
const MOST: usize = 3;
/// Maximum number of wrong letters.
const MOST_WRONG: usize = 4;

/// The most similar of `names`, best first; empty if none is similar.
pub fn nearest<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let typed = plain(typed);
    if typed.is_empty() {
        return Vec::new();
    }
    let letters = typed.chars().count();
    // Up to a third of the letters may be wrong. In a short word, more would make it another word.
    let limit = (letters / 3).clamp(1, MOST_WRONG);
    let mut found: Vec<(usize, &str)> = names
        .into_iter()
        .filter_map(|name| {
            let known = plain(name);
            let contains = letters >= 3 && (has_words(&known, &typed) || has_words(&typed, &known));
            // The exchange of two neighbours counts as one edit.
            let distance = strsim::osa_distance(&typed, &known);
            match (distance <= limit && distance < letters, contains) {
                (true, _) => Some((distance, name)),
                // A part of a name comes after all typing errors.
                (false, true) => Some((limit + 1, name)),
                (false, false) => None,
            }
        })
        .collect();
    found.sort_by_key(|&(distance, name)| (distance, name.len()));
    let mut known = BTreeSet::new();
    found.retain(|(_, name)| known.insert(plain(name)));
    // After a typing error, a name that only has a word in common is another one.
    if let Some(&(best, _)) = found.first().filter(|&&(best, _)| best <= limit) {
        found.retain(|(distance, _)| *distance <= best + 1);
    }
    found.truncate(MOST);
    found.into_iter().map(|(_, name)| name).collect()
}

/// Whether `part` is in `whole` from the start of a word on.
fn has_words(whole: &str, part: &str) -> bool {
    !part.is_empty() && (whole.starts_with(part) || whole.contains(&format!("-{part}")))
}

/// `; nearest: a, b`, or an empty string.
pub fn hint<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let near = nearest(typed, names);
    if near.is_empty() {
        return String::new();
    }
    format!("; nearest: {}", near.join(", "))
}

/// A name as it is compared: in any case, with spaces, hyphens or underscores between its words, without apostrophes, and without the
/// colon of `glibc:` and `env:`.
pub fn plain(name: &str) -> String {
    let known: String =
        name.chars().filter(|c| !matches!(c, '\'' | '’')).flat_map(char::to_lowercase).collect();
    let words =
        known.split(|c: char| c.is_whitespace() || matches!(c, '_' | '-')).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").trim_end_matches(':').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] = ["jemalloc", "jemalloc-thp", "mimalloc", "thp", "first_touch", "glibc:"];

    #[test]
    fn names_are_compared_by_their_words() {
        for (one, other) in [
            ("First  Touch", "first_touch"),
            ("Python\'s GIL", "pythons gil"),
            ("glibc:", "GLIBC"),
            ("copy-on-write", "copy on write"),
        ] {
            assert_eq!(plain(one), plain(other));
        }
        assert_ne!(plain("first touch: zeroing"), plain("first touch"));
    }

    #[test]
    fn one_name_is_suggested_once_and_better_ones_push_out_worse_ones() {
        assert_eq!(nearest("jemaloc", NAMES), ["jemalloc"]);
        assert_eq!(nearest("tuch", ["touch", "first touch", "first_touch", "Touch"]), ["touch"]);
    }

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        assert_eq!(nearest("jemaloc", NAMES).first(), Some(&"jemalloc"));
        assert_eq!(nearest("tph", NAMES).first(), Some(&"thp"));
        assert_eq!(nearest("first-touch", NAMES), ["first_touch"]);
        assert_eq!(nearest("touch", NAMES), ["first_touch"]);
        assert_eq!(nearest("glib", NAMES), ["glibc:"]);
        assert_eq!(nearest("first tuoch", NAMES), ["first_touch"]);
        for other in ["postgres", "foo", "together", "ph", "m"] {
            assert_eq!(nearest(other, NAMES), [] as [&str; 0], "{other}");
        }
        assert_eq!(nearest("", NAMES), [] as [&str; 0]);
        assert_eq!(hint("postgres", NAMES), "");
    }
}
