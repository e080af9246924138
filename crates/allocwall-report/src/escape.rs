//! Makes names safe to print. They come from other processes: a comm, a path or a symbol may contain terminal escapes
//! or HTML.

/// Replaces characters that could move the cursor, change the colour or reverse the reading direction with visible
/// escapes.
pub fn terminal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) {
            out.push(c);
        } else {
            out.extend(c.escape_unicode());
        }
    }
    out
}

/// Control characters (C0, DEL, C1) and the Unicode format characters that reorder or hide text
/// (bidirectional controls, zero-width characters; Unicode TR 36).
pub fn is_harmless(c: char) -> bool {
    !c.is_control()
        && !matches!(c,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// For text inside an element or a double-quoted attribute of HTML or SVG.
pub fn markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in terminal(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_reach_no_terminal() {
        assert_eq!(terminal("a\u{1b}[31mb\nc"), "a\\u{1b}[31mb\\u{a}c");
        assert_eq!(terminal("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(terminal("größe <T>"), "größe <T>");
    }

    #[test]
    fn markup_is_inert() {
        assert_eq!(markup("<b a=\"1\">&'"), "&lt;b a=&quot;1&quot;&gt;&amp;&#39;");
    }
}
