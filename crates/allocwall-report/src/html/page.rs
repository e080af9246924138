//! The document: head, policy, style, script and sections. Everything that reports share.

use crate::escape::is_harmless;
use crate::json;
use crate::layout::{columns, elide_middle};
use crate::text::page::paragraphs;
use crate::text::{Ink, Page, Style, missing};
use allocwall_diagnose::ShellLine;
use allocwall_model::units::Absence;
use allocwall_trial::{Comparison, Outcome};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

pub(super) const STYLE: &str = include_str!("page.css");
pub(super) const SCRIPT: &str = include_str!("page.js");

/// SHA-256 of `page.css` and `page.js` in base64, for the policy. A test compares them, and prints what they have to be.
pub(super) const STYLE_HASH: &str = "q4LsoVxxwh8JzYVjWejFj1W8kv7i98HgS6vJNur3uSU=";
pub(super) const SCRIPT_HASH: &str = "QdESqfC5E/9Wv/gnYCsqKSwQQb5zVlQEPPMAMs734cQ=";

/// One part of a report. It is left out if it has no content.
pub struct Section {
    /// Of the anchor.
    pub id: &'static str,
    pub title: &'static str,
    /// What the figures are, in a few words.
    pub aside: String,
    pub body: Markup,
}

/// Bytes of a document with all its sections, about.
const LARGEST: usize = 1_900_000;

impl Section {
    /// Itself if there is room. Names and reasons can be of any length, and in any number.
    fn within(self, room: &mut usize) -> Section {
        let bytes = safe(&self.body.0).len();
        if bytes <= *room {
            *room -= bytes;
            return self;
        }
        let body = html! {
            p.absent { "This part is too large for a page. The text has it: " code { "allocwall report FILE --all" } }
        };
        Section { body, ..self }
    }
}

/// A report: its head, which says the result, and its sections.
pub struct Document {
    pub title: String,
    pub head: Markup,
    pub sections: Vec<Section>,
}

impl Document {
    pub fn print(self) -> String {
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{STYLE_HASH}'; script-src 'sha256-{SCRIPT_HASH}'; base-uri 'none'; form-action 'none'"
        );
        let mut room = LARGEST.saturating_sub(STYLE.len() + SCRIPT.len() + safe(&self.head.0).len());
        let sections = self.sections.into_iter().filter(|section| !section.body.0.is_empty());
        let sections: Vec<Section> = sections.map(|section| section.within(&mut room)).collect();
        let document = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(policy);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    a.skip href="#main" { "Skip to the report" }
                    main #main {
                        (self.head)
                        nav aria-label="Sections" {
                            @for section in &sections { a href={ "#" (section.id) } { (section.title) } }
                        }
                        @for section in &sections {
                            section id=(section.id) aria-labelledby={ (section.id) "-title" } {
                                h2 id={ (section.id) "-title" } { (section.title) }
                                @if !section.aside.is_empty() { p.aside { (section.aside) } }
                                (section.body)
                            }
                        }
                    }
                    footer {
                        "allocwall " (env!("CARGO_PKG_VERSION")) ". Terms: docs/glossary.md in the source; "
                        code { "allocwall explain NAME" } "."
                    }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        };
        safe(&document.0)
    }
}

/// Names come from other processes. Markup is escaped where it is written; what could hide or reverse text is escaped here.
fn safe(document: &str) -> String {
    let mut safe = String::with_capacity(document.len() + 1);
    for c in document.chars() {
        match c == '\n' || is_harmless(c) {
            true => safe.push(c),
            false => safe.extend(c.escape_unicode()),
        }
    }
    safe.push('\n');
    safe
}

/// Data for the script. No text in it can end the element, or is changed later: what is harmful is a `\u` escape of JSON.
pub fn data(id: &str, value: &Value) -> Markup {
    let text = json::line(value).replace('<', "\\u003c");
    html! { script type="application/json" id=(id) { (PreEscaped(text)) } }
}

/// A table that scrolls in its own box. The first cell of a row is its heading; the others are numbers.
pub fn table(caption: &str, heads: &[&str], rows: impl IntoIterator<Item = (Markup, Vec<Markup>)>) -> Markup {
    headed_table(caption, heads.iter().map(|head| html! { (head) }), rows)
}

/// The same with heads that are not only text.
pub fn headed_table(
    caption: &str,
    heads: impl IntoIterator<Item = Markup>,
    rows: impl IntoIterator<Item = (Markup, Vec<Markup>)>,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label=(caption) {
            table {
                caption.hidden { (caption) }
                thead { tr { @for head in heads { th scope="col" { (head) } } } }
                tbody {
                    @for (name, cells) in rows {
                        tr { th scope="row" { (name) } @for cell in cells { td { (cell) } } }
                    }
                }
            }
        }
    }
}

/// Two columns: what, and its value.
pub fn facts(rows: Vec<(&str, Markup)>) -> Markup {
    html! { dl { @for (name, value) in rows { div { dt { (name) } dd { (value) } } } } }
}

/// Columns of a command that are shown. Nobody copies a longer one from here.
const COMMAND: usize = 4000;

/// A shell command that one click selects.
pub fn command(line: &ShellLine) -> Markup {
    html! {
        p.command { code { (elide_middle(&line.command, COMMAND)) } @if let Some(remark) = &line.remark { " " span.remark { "# " (remark) } } }
    }
}

/// Columns of a paragraph.
const PARAGRAPH: usize = 4000;

/// What `write` prints, as paragraphs.
pub fn notes(write: impl FnOnce(&mut Page)) -> Markup {
    html! { @for note in paragraphs(write) { p.note { (marked(&elide_middle(&note, PARAGRAPH))) } } }
}

/// A sentence with its names in backticks as code.
pub fn marked(sentence: &str) -> Markup {
    let parts: Vec<&str> = sentence.split('`').collect();
    // Of an odd number of marks, the last one is a character.
    let is_code = |nth: usize| nth % 2 == 1 && nth + 1 < parts.len();
    html! {
        @for (nth, part) in parts.iter().enumerate() {
            @if is_code(nth) { code { (part) } } @else {
                @if nth % 2 == 1 { "`" } (part)
            }
        }
    }
}

/// A section of the text report that has only paragraphs, without its heading; nothing if it prints nothing.
pub fn prose(title: &str, write: impl FnOnce(&mut Page)) -> Markup {
    let all = paragraphs(write);
    let Some((heading, paragraphs)) = all.split_first() else { return html! {} };
    html! {
        h3 { (title) }
        @if let Some((_, aside)) = heading.split_once("  ") { p.aside { (aside) } }
        @for paragraph in paragraphs { p { (marked(&elide_middle(paragraph, PARAGRAPH))) } }
    }
}

/// A section of the text report as it is, without its heading; nothing if it prints nothing.
pub fn printed(title: &str, write: impl FnOnce(&mut Page)) -> Markup {
    let mut page = Page::new(Style::FILE);
    write(&mut page);
    let out = page.out.trim_matches('\n');
    let Some((heading, body)) = out.split_once('\n') else { return html! {} };
    let (name, aside) = heading.split_once("  ").unwrap_or((heading, ""));
    // Heads of columns stay above them.
    let is_table = aside.trim().contains("  ") || aside.starts_with("  ");
    html! {
        h3 { (title) }
        @if !is_table { p.aside { (aside) } }
        pre tabindex="0" role="group" aria-label=(title) {
            @if is_table { (" ".repeat(columns(name) + 2)) (aside) "\n" }
            (body)
        }
    }
}

/// Instead of something that was not measured.
pub fn absent(what: &str, absence: &Absence) -> Markup {
    html! { p.absent { strong { (what) ": not measured: " } (missing::reason_and_mend(absence)) } }
}

/// The same for several things, each reason once.
pub fn absent_by_reason<'a>(missing: impl IntoIterator<Item = (String, &'a Absence)>) -> Markup {
    let mut reasons: Vec<(&Absence, Vec<String>)> = vec![];
    for (title, absence) in missing {
        match reasons.iter_mut().find(|(known, _)| *known == absence) {
            Some((_, titles)) => titles.push(title),
            None => reasons.push((absence, vec![title])),
        }
    }
    html! { @for (absence, titles) in reasons { (absent(&titles.join(", "), absence)) } }
}

/// The class of a verdict.
pub fn class(ink: Ink) -> &'static str {
    match ink {
        Ink::Good => "good",
        Ink::Bad => "bad",
        Ink::Warn => "warn",
        _ => "plain",
    }
}

/// With a sign for readers who don't see colours.
pub fn outcome_of(compared: &Comparison) -> Markup {
    if compared.effect.is_err() {
        return html! { span.outcome.plain { "not measured" } };
    }
    let (class, sign) = match compared.outcome {
        Outcome::Better => ("good", "▲"),
        Outcome::Worse => ("bad", "▼"),
        Outcome::Equivalent => ("plain", "="),
        Outcome::Unresolved => ("warn", "?"),
    };
    html! { span.outcome.(class) { span aria-hidden="true" { (sign) } " " (compared.outcome.key()) } }
}

/// A colour for an attribute.
pub fn hex((red, green, blue): (u8, u8, u8)) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// A fraction as a length of an SVG.
pub fn percent(fraction: f64) -> String {
    format!("{:.2}%", fraction.clamp(0.0, 1.0) * 100.0)
}
