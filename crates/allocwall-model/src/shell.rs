//! Words for a shell, and variables that are lists of settings.

/// Whether a POSIX shell needs no quotes around a word of such characters.
pub fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c)
}

/// Quoted as one word of a POSIX shell.
pub fn quoted(word: &str) -> String {
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Merges two lists of settings. Entries end at `separator`, their names at `mark`. `new` overrides `present`.
pub fn merged(present: &str, new: &str, separator: char, mark: char) -> String {
    let name = |entry: &str| entry.split(mark).next().unwrap_or_default().to_owned();
    let replaced: Vec<String> = new.split(separator).map(name).collect();
    let kept = present.split(separator).filter(|e| !e.is_empty() && !replaced.contains(&name(e)));
    let all: Vec<&str> = kept.chain(new.split(separator)).collect();
    all.join(&separator.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_only_where_a_shell_needs_it() {
        for (word, shown) in [
            ("--port=8080", "--port=8080"),
            ("/usr/bin/python3.11", "/usr/bin/python3.11"),
            ("a b", "'a b'"),
            ("$HOME", "'$HOME'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }

    #[test]
    fn a_new_entry_replaces_only_the_entry_with_its_name() {
        assert_eq!(merged("a=1:b=2::c=3", "b=4", ':', '='), "a=1:c=3:b=4");
        assert_eq!(merged("narenas:4,thp:never", "thp:always", ',', ':'), "narenas:4,thp:always");
        assert_eq!(merged("", "a=1:b=2", ':', '='), "a=1:b=2");
    }
}
