//! Fits text into columns. Widths are terminal columns, not bytes and not characters.

use unicode_width::UnicodeWidthChar;

/// Width of a text: the sum over its characters. Joined sequences are not resolved.
pub fn columns(text: &str) -> usize {
    text.chars().map(char_columns).sum()
}

fn char_columns(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Breaks text into lines of at most `width` columns, at spaces, but not between a number and its `%`. A word that is
/// longer than a line is cut.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(2);
    let mut lines = vec![String::new()];
    let mut used = 0;
    const GLUE: char = '\u{a0}';
    let text = text.replace(GLUE, " ").replace(" %", "\u{a0}%");
    let words = text.split(|c: char| c.is_whitespace() && c != GLUE);
    for word in words.filter(|w| !w.is_empty()) {
        let word = &word.replace(GLUE, " ");
        let space = usize::from(used > 0);
        let wide = columns(word);
        if used + space + wide <= width {
            let line = lines.last_mut().expect("starts with one line");
            if space == 1 {
                line.push(' ');
            }
            line.push_str(word);
            used += space + wide;
            continue;
        }
        if used > 0 {
            lines.push(String::new());
            used = 0;
        }
        for c in word.chars() {
            if used + char_columns(c) > width {
                lines.push(String::new());
                used = 0;
            }
            lines.last_mut().expect("starts with one line").push(c);
            used += char_columns(c);
        }
    }
    lines
}

/// Breaks a shell command into lines of at most `width` columns. All lines but the last end with a backslash. The
/// first line starts at `column`, and the others are indented to it. A word that is longer than a line continues in
/// the first column, because blanks would split it.
pub fn shell_lines(command: &str, width: usize, column: usize) -> Vec<String> {
    let indent = " ".repeat(column);
    let room = width.saturating_sub(2);
    let mut lines = vec![String::new()];
    let mut used = column;
    for (nth, word) in shell_words(command).into_iter().enumerate() {
        let wide = columns(word);
        let line = lines.last_mut().expect("starts with one line");
        if nth > 0 && used + 1 + wide <= room {
            line.push(' ');
            used += 1;
        } else if nth > 0 {
            line.push_str(" \\");
            lines.push(indent.clone());
            used = column;
        }
        for c in word.chars() {
            if used + char_columns(c) > room {
                lines.last_mut().expect("starts with one line").push('\\');
                lines.push(String::new());
                used = 0;
            }
            lines.last_mut().expect("starts with one line").push(c);
            used += char_columns(c);
        }
    }
    lines
}

/// Splits at blanks, but not inside single quotes, where the shell takes a backslash at the end of a line literally.
fn shell_words(command: &str) -> Vec<&str> {
    let mut quoted = false;
    let blank = move |c: char| {
        quoted ^= c == '\'';
        !quoted && c.is_whitespace()
    };
    command.split(blank).filter(|word| !word.is_empty()).collect()
}

/// The most characters in a column, on average: those that combine with others take no room of their own.
const IN_A_COLUMN: usize = 4;

fn fits(text: &str, width: usize) -> bool {
    columns(text) <= width && text.chars().nth(IN_A_COLUMN * width).is_none()
}

/// Shortens in the middle: the start shows the namespace, the end shows the function.
pub fn elide_middle(text: &str, width: usize) -> String {
    if fits(text, width) {
        return text.to_string();
    }
    if width < 5 {
        return elide_end(text, width);
    }
    let head = (width - 1) / 3;
    let tail = width - 1 - head;
    let front = take_columns(text.chars(), head);
    let mut back: Vec<char> = take_columns(text.chars().rev(), tail).chars().collect();
    back.reverse();
    format!("{front}…{}", back.into_iter().collect::<String>())
}

pub fn elide_end(text: &str, width: usize) -> String {
    if fits(text, width) {
        return text.to_string();
    }
    let kept = take_columns(text.chars(), width.saturating_sub(1));
    if width == 0 { kept } else { format!("{}…", kept.trim_end()) }
}

fn take_columns(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    chars
        .take(IN_A_COLUMN * width)
        .take_while(|&c| {
            used += char_columns(c);
            used <= width
        })
        .collect()
}

pub fn left(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

pub fn right(text: &str, width: usize) -> String {
    format!("{}{text}", " ".repeat(width.saturating_sub(columns(text))))
}

/// Rounds parts of a whole to integers that sum to `units` exactly: each is rounded down, and the missing units go to
/// the largest remainders (Hamilton's method).
pub fn apportion(parts: &[f64], units: u64) -> Vec<u64> {
    let parts: Vec<f64> = parts.iter().map(|p| if p.is_finite() { p.max(0.0) } else { 0.0 }).collect();
    let sum: f64 = parts.iter().sum();
    if sum <= 0.0 || !sum.is_finite() {
        return vec![0; parts.len()];
    }
    let exact: Vec<f64> = parts.iter().map(|p| p / sum * units as f64).collect();
    let mut whole: Vec<u64> = exact.iter().map(|e| e.floor() as u64).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()).then(a.cmp(&b)));
    let missing = units.saturating_sub(whole.iter().sum());
    // A line without a sample stays zero: its `fract` is 0, and at most parts - 1 units are missing.
    for &i in order.iter().take(missing as usize) {
        whole[i] += 1;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wraps_at_spaces_and_cuts_long_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap("", 10), [""]);
        assert_eq!(wrap("all of 12 % on", 9), ["all of", "12 % on"]);
    }

    #[test]
    fn a_command_can_be_copied_from_its_lines() {
        let lines = shell_lines("VAR=a:b program --flag value", 20, 4);
        assert_eq!(lines, ["VAR=a:b \\", "    program --flag \\", "    value"]);
        let rejoined = lines.concat().replace("\\    ", "");
        assert_eq!(rejoined, "VAR=a:b program --flag value");
        assert_eq!(shell_lines("sh -c 'a b; c d'", 14, 0), ["sh -c \\", "'a b; c d'"]);
        assert_eq!(shell_lines("abcdefghijkl", 8, 2), ["abcd\\", "efghij\\", "kl"]);
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(elide_middle("std::vector<int>::push_back", 15), "std:…:push_back");
        assert_eq!(elide_middle("short", 15), "short");
        assert_eq!(elide_end("a sentence that goes on", 10), "a sentenc…");
    }

    #[test]
    fn thirds_sum_to_the_whole() {
        assert_eq!(apportion(&[1.0, 1.0, 1.0], 1000), [334, 333, 333]);
        assert_eq!(apportion(&[0.0, 0.0], 1000), [0, 0]);
        assert_eq!(apportion(&[f64::NAN, 1.0], 1000), [0, 1000]);
    }

    proptest! {
        #[test]
        fn apportioned_parts_sum_and_zero_stays_zero(parts in prop::collection::vec(prop_oneof![Just(0.0), 0.0..1.0f64], 1..20)) {
            let got = apportion(&parts, 1000);
            if parts.iter().any(|&p| p > 0.0) {
                prop_assert_eq!(got.iter().sum::<u64>(), 1000);
            }
            for (part, units) in parts.iter().zip(&got) {
                if *part == 0.0 {
                    prop_assert_eq!(*units, 0);
                }
            }
        }

        #[test]
        fn nothing_is_wider_than_asked(text in "\\PC{0,80}", width in 5usize..40) {
            for line in wrap(&text, width) {
                prop_assert!(columns(&line) <= width, "{:?}", line);
            }
            for (nth, line) in shell_lines(&text, width, 2).iter().enumerate() {
                prop_assert!(columns(line) + if nth == 0 { 2 } else { 0 } <= width, "{:?}", line);
            }
            prop_assert!(columns(&elide_middle(&text, width)) <= width);
            prop_assert!(columns(&elide_end(&text, width)) <= width);
        }
    }
}
