//! What the keys of a terminal mean.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Quit,
    Save,
    Report,
    All,
    Explain,
    Pause,
    Help,
    Back,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// Sequences of xterm (ctlseqs) and single characters, the longer ones first where one is the start of another.
const KEYS: &[(&[u8], Key)] = &[
    (b"\x1b[A", Key::Up),
    (b"\x1bOA", Key::Up),
    (b"\x1b[B", Key::Down),
    (b"\x1bOB", Key::Down),
    (b"\x1b[C", Key::Explain),
    (b"\x1bOC", Key::Explain),
    (b"\x1b[D", Key::Back),
    (b"\x1bOD", Key::Back),
    (b"\x1b[5~", Key::PageUp),
    (b"\x1b[6~", Key::PageDown),
    (b"\x1b[H", Key::Home),
    (b"\x1bOH", Key::Home),
    (b"\x1b[1~", Key::Home),
    (b"\x1b[F", Key::End),
    (b"\x1bOF", Key::End),
    (b"\x1b[4~", Key::End),
    (b"k", Key::Up),
    (b"j", Key::Down),
    (b" ", Key::PageDown),
    (b"b", Key::PageUp),
    (b"g", Key::Home),
    (b"G", Key::End),
    (b"q", Key::Quit),
    (b"Q", Key::Quit),
    // Ctrl-C and Ctrl-D, which make no signal in raw mode.
    (b"\x03", Key::Quit),
    (b"\x04", Key::Quit),
    (b"s", Key::Save),
    (b"r", Key::Report),
    (b"\r", Key::Report),
    (b"\n", Key::Report),
    (b"a", Key::All),
    (b"e", Key::Explain),
    (b"p", Key::Pause),
    (b"?", Key::Help),
    (b"h", Key::Help),
];

/// The keys in what a terminal sent at once. Escape alone goes back; unknown sequences are skipped.
pub fn keys(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some(first) = bytes.first() {
        if let Some((sequence, key)) = KEYS.iter().find(|(sequence, _)| bytes.starts_with(sequence)) {
            keys.push(*key);
            bytes = &bytes[sequence.len()..];
        } else if *first == 0x1b {
            let length = unknown_sequence(bytes);
            if length == 1 {
                keys.push(Key::Back);
            }
            bytes = &bytes[length..];
        } else {
            bytes = &bytes[1..];
        }
    }
    keys
}

/// The length of an escape sequence (ECMA-48, 5.4): parameters, then one final byte.
fn unknown_sequence(bytes: &[u8]) -> usize {
    match bytes.get(1) {
        Some(b'[' | b'O') => {
            let end = bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte));
            end.map_or(bytes.len(), |end| end + 3)
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_known_and_what_is_no_key_is_skipped() {
        for (sequence, key) in KEYS {
            assert_eq!(keys(sequence), [*key], "{sequence:?}");
        }
        assert_eq!(keys(b"\x1b[A\x1b[Bqs"), [Key::Up, Key::Down, Key::Quit, Key::Save]);
        assert_eq!(keys(b"\x1b"), [Key::Back]);
        // A mouse report, a function key, a letter without a meaning, an unfinished sequence.
        for other in [&b"\x1b[<0;3;4M"[..], b"\x1b[15~", b"z", b"\x1b[", "é".as_bytes(), b"\0"] {
            assert_eq!(keys(other), [], "{other:?}");
        }
        assert_eq!(keys(b"\x1b[<0;3;4Mq"), [Key::Quit]);
    }
}
