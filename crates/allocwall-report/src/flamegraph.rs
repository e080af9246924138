//! A flamegraph with the colours of the bill: boxes for page faults, zeroing, allocator and so on have the colour of
//! their line. Application code is pale.
//!
//! The first of these rules that applies gives the colour of a box:
//! 1. samples end in it: the class of most of them;
//! 2. samples end in the same function elsewhere: the class of most of those;
//! 3. it is a kernel frame: the class of most samples that pass through it;
//! 4. application.

use super::collapsed::{Names, Place, Which, drawn};
use super::escape::markup;
use super::palette::fill;
use super::text::why_not_first;
use allocwall_diagnose::bill::{Bill, Classifier};
use allocwall_diagnose::main_process;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::recording::Recording;
use allocwall_model::units::{Absence, Measured, Reason};
use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self as inferno_graph, Options, TextTruncateDirection};
use std::collections::{BTreeMap, HashMap};

const WIDTH: usize = 1200;
const LEGEND_ROW: usize = 20;
const LEGEND_COLUMNS: usize = 4;

/// One SVG document. The colours come from the class that the bill gives each sample.
pub fn svg(rec: &Recording, bill: &Bill) -> Measured<String> {
    // The classifier needs all samples, because it divides entry and exit of faults in proportion to the other samples.
    let classes = Classifier::new(rec).cpu(&rec.samples);
    let tree = Tree::of(rec, &classes)?;
    let mut palette = PaletteMap::default();
    // inferno gives the root box the name "".
    let (r, g, b) = fill(CostClass::Application);
    palette.insert("", Color { r, g, b });
    let lines = tree.lines(&mut palette);
    let mut options = Options::default();
    options.title = " ".to_string();
    options.palette_map = Some(&mut palette);
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 255, g: 255, b: 255 }));
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.min_width = 0.05;
    options.image_width = None;
    let mut out = vec![];
    inferno_graph::from_lines(&mut options, lines.iter().map(String::as_str), &mut out)
        .map_err(|e| Absence::new(Reason::Unparsable, format!("the flamegraph could not be drawn: {e}")))?;
    let drawing = String::from_utf8_lossy(&out);
    let drawing: String = drawing.chars().filter(|&c| marked_class(c).is_none()).collect();
    Ok(with_head(&drawing, &head(rec, bill, &tree)))
}

pub(super) fn no_samples() -> Absence {
    let why = "the recording has no CPU samples";
    Absence::new(Reason::TooLittle, why).mend("use a longer window (-d), or record while the target is busy")
}

/// inferno chooses the colour by name, but here it depends on the place. So each name gets a leading mark of its
/// class: a control character, which no escaped name can contain. The marks are removed from the drawing.
fn mark(class: CostClass) -> char {
    let at = CostClass::ALL.iter().position(|c| *c == class).unwrap_or(0);
    MARKS[at]
}

fn marked_class(c: char) -> Option<CostClass> {
    MARKS.iter().position(|m| *m == c).map(|at| CostClass::ALL[at])
}

/// C0 control characters, without tab, line feed and other blanks, which inferno trims.
const MARKS: [char; CostClass::ALL.len()] = [
    '\u{1}', '\u{2}', '\u{3}', '\u{4}', '\u{5}', '\u{6}', '\u{7}', '\u{8}', '\u{e}', '\u{f}', '\u{10}',
    '\u{11}', '\u{12}', '\u{13}', '\u{14}', '\u{15}', '\u{16}', '\u{17}', '\u{18}', '\u{19}', '\u{1a}',
];

type Votes = BTreeMap<CostClass, u64>;

fn winner(votes: &Votes) -> Option<CostClass> {
    // The earlier line of the bill wins a tie.
    votes.iter().rev().max_by_key(|(_, n)| **n).map(|(class, _)| *class)
}

/// A box of the graph: the samples that end in it and those that pass through it, by class.
#[derive(Default)]
pub(crate) struct Node {
    ending: Votes,
    passing: Votes,
    pub children: BTreeMap<String, Node>,
}

impl Node {
    /// All its samples.
    pub fn width(&self) -> u64 {
        self.passing.values().sum()
    }

    /// The samples that end in it.
    pub fn ends(&self) -> u64 {
        self.ending.values().sum()
    }
}

#[derive(Default)]
pub(crate) struct Tree {
    pub root: Node,
    pub samples: u64,
    /// Classes of the samples that end in a function, in any stack.
    by_name: HashMap<String, Votes>,
}

impl Tree {
    /// Absent if the recording has no sample. `classes` are those of its samples.
    pub fn of(rec: &Recording, classes: &[CostClass]) -> Measured<Tree> {
        let mut tree = Tree::default();
        let names = Names::of(rec);
        // A busy target has hundreds of samples of the same stack, so each stack is formatted once.
        let mut seen: BTreeMap<(Place, CostClass), u64> = BTreeMap::new();
        for drawn in drawn(rec, classes, Which::Whole) {
            *seen.entry((drawn.place(), classes[drawn.index])).or_default() += drawn.count;
        }
        for ((place, class), count) in seen {
            tree.add(&names.frames(place), class, count);
        }
        if tree.samples == 0 {
            return Err(no_samples());
        }
        Ok(tree)
    }

    fn add(&mut self, frames: &[String], class: CostClass, count: u64) {
        let mut node = &mut self.root;
        for frame in frames {
            node = node.children.entry(frame.clone()).or_default();
            *node.passing.entry(class).or_default() += count;
        }
        *node.ending.entry(class).or_default() += count;
        if let Some(leaf) = frames.last() {
            *self.by_name.entry(leaf.clone()).or_default().entry(class).or_default() += count;
        }
        self.samples += count;
    }

    pub fn color(&self, name: &str, node: &Node) -> CostClass {
        let elsewhere = || self.by_name.get(name).and_then(winner);
        let above = || name.ends_with("_[k]").then(|| winner(&node.passing)).flatten();
        winner(&node.ending).or_else(elsewhere).or_else(above).unwrap_or(CostClass::Application)
    }

    /// Lines for inferno. Adds every marked name to the palette.
    fn lines(&self, palette: &mut PaletteMap) -> Vec<String> {
        let mut lines = vec![];
        // An explicit stack instead of recursion, because call stacks can be deep.
        let mut open: Vec<(&Node, String)> = vec![(&self.root, String::new())];
        while let Some((node, path)) = open.pop() {
            let ending = node.ends();
            if ending > 0 {
                lines.push(format!("{path} {ending}"));
            }
            for (name, child) in &node.children {
                let class = self.color(name, child);
                let marked = format!("{}{name}", mark(class));
                let (r, g, b) = fill(class);
                palette.insert(&marked, Color { r, g, b });
                let path = if path.is_empty() { marked } else { format!("{path};{marked}") };
                open.push((child, path));
            }
        }
        lines.sort_unstable();
        lines
    }
}

struct Heading {
    markup: String,
    height: usize,
}

/// Title, scale and legend, above inferno's own drawing.
fn head(rec: &Recording, bill: &Bill, tree: &Tree) -> Heading {
    let target = main_process(rec).map_or("no process".to_string(), |p| {
        format!("{} (pid {}){}", p.comm, p.pid, why_not_first(rec, p).unwrap_or_default())
    });
    let title = format!("{target}: {:.1} CPU-s in {:.1} s", bill.cpu_s, bill.window_s);
    let scale = format!(
        "{} of {} samples are drawn; each one stands for {:.1} ms of CPU. Colours show the lines of the bill, with their share of all CPU time.",
        tree.samples,
        rec.samples.len(),
        bill.cpu_s * 1e3 / tree.samples as f64
    );
    let mut shares: Vec<(CostClass, f64)> = match &bill.on_cpu {
        Ok(lines) => lines.iter().map(|l| (l.class, l.share.point)).collect(),
        Err(_) => tree.shares(),
    };
    shares.retain(|(_, share)| *share >= 0.0005);
    let rows = shares.len().div_ceil(LEGEND_COLUMNS);
    let mut out = format!(
        "<text x=\"10\" y=\"26\" style=\"font-size:17px\">{}</text><text x=\"10\" y=\"46\">{}</text><g id=\"legend\">",
        markup(&title),
        markup(&scale)
    );
    for (nth, (class, share)) in shares.iter().enumerate() {
        let x = 10 + nth % LEGEND_COLUMNS * ((WIDTH - 20) / LEGEND_COLUMNS);
        let y = 56 + nth / LEGEND_COLUMNS * LEGEND_ROW;
        let (r, g, b) = fill(*class);
        out.push_str(&format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\" fill=\"rgb({r},{g},{b})\" stroke=\"#666\" stroke-width=\"0.5\"/>\
             <text x=\"{}\" y=\"{}\">{} {:.1} %</text>",
            x + 20,
            y + 11,
            markup(class.title()),
            share * 100.0
        ));
    }
    out.push_str("</g>");
    Heading { markup: out, height: 44 + rows * LEGEND_ROW }
}

impl Tree {
    fn shares(&self) -> Vec<(CostClass, f64)> {
        let mut votes = Votes::new();
        for node in self.root.children.values() {
            node.passing.iter().for_each(|(class, n)| *votes.entry(*class).or_default() += n);
        }
        votes.into_iter().map(|(class, n)| (class, n as f64 / self.samples as f64)).collect()
    }
}

/// Moves inferno's drawing down by the height of the head. It searches only in inferno's preamble; names come after
/// it and are escaped.
fn with_head(drawing: &str, head: &Heading) -> String {
    const AFTER: &str = "</script>";
    let moved = || -> Option<String> {
        let height: usize = between(drawing, " height=\"", "\"")?.parse().ok()?;
        let start = drawing.find(AFTER)? + AFTER.len();
        let end = drawing.rfind("</svg>")?;
        let taller = height + head.height;
        let preamble = drawing[..start]
            .replacen(&format!(" height=\"{height}\""), &format!(" height=\"{taller}\""), 1)
            .replacen(
                &format!("viewBox=\"0 0 {WIDTH} {height}\""),
                &format!("viewBox=\"0 0 {WIDTH} {taller}\""),
                1,
            );
        Some(format!(
            "{preamble}<rect width=\"100%\" height=\"100%\" fill=\"white\"/><g transform=\"translate(0,{})\">{}</g>{}</svg>",
            head.height,
            &drawing[start..end],
            head.markup
        ))
    };
    moved().unwrap_or_else(|| drawing.to_string())
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let rest = &text[text.find(before)? + before.len()..];
    Some(&rest[..rest.find(after)?])
}

#[cfg(test)]
mod tests {
    use super::super::sketches;
    use super::*;

    fn draw() -> String {
        let case = sketches::first_touch();
        svg(&case.rec, &case.bill).expect("has samples")
    }

    fn parse(svg: &str) -> roxmltree::Document<'_> {
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        roxmltree::Document::parse_with_options(svg, options).expect("well-formed")
    }

    /// Fill of the box whose title begins with `name`.
    fn color_of(document: &roxmltree::Document, name: &str) -> Option<String> {
        let title = document
            .descendants()
            .find(|n| n.has_tag_name("title") && n.text().is_some_and(|t| t.starts_with(name)))?;
        let rect = title.parent()?.children().find(|n| n.has_tag_name("rect"))?;
        rect.attribute("fill").map(String::from)
    }

    #[test]
    fn boxes_have_the_colour_of_their_line() {
        let svg = draw();
        let document = parse(&svg);
        let rgb = |class| {
            let (r, g, b) = fill(class);
            Some(format!("rgb({r},{g},{b})"))
        };
        assert_eq!(color_of(&document, "clear_page_erms"), rgb(CostClass::Zeroing));
        assert_eq!(color_of(&document, "handle_mm_fault"), rgb(CostClass::FaultPath));
        assert_eq!(color_of(&document, "memset"), rgb(CostClass::Application));
        assert_eq!(color_of(&document, "[libc.so.6]"), rgb(CostClass::AllocatorCode));
        assert_eq!(color_of(&document, "main"), rgb(CostClass::Application));
    }

    #[test]
    fn the_legend_bears_the_shares_of_the_bill() {
        let svg = draw();
        let document = parse(&svg);
        let legend = document.descendants().find(|n| n.attribute("id") == Some("legend")).expect("legend");
        let texts: Vec<&str> =
            legend.descendants().filter(|n| n.has_tag_name("text")).filter_map(|n| n.text()).collect();
        assert!(texts.contains(&"first touch: fault path 33.1 %"), "{texts:?}");
        assert!(!texts.iter().any(|t| t.contains("garbage")), "{texts:?}");
    }

    #[test]
    fn hostile_names_stay_text() {
        let svg = draw();
        let document = parse(&svg);
        assert!(!svg.contains('\u{1b}') && !svg.contains("<script>alert"));
        assert!(svg.chars().all(|c| marked_class(c).is_none()));
        assert_eq!(document.descendants().filter(|n| n.has_tag_name("script")).count(), 1);
        assert!(color_of(&document, "<script>alert(1)</script>\\u{1b}[2J, drop").is_some());
    }

    #[test]
    fn room_is_made_for_the_head() {
        let svg = draw();
        let document = parse(&svg);
        let root = document.root_element();
        let height = root.attribute("height").unwrap();
        assert_eq!(root.attribute("viewBox"), Some(format!("0 0 {WIDTH} {height}").as_str()));
        assert!(svg.contains("<g transform=\"translate(0,"));
    }

    #[test]
    fn nothing_to_draw_is_said_not_drawn() {
        let mut case = sketches::first_touch();
        case.rec.samples.clear();
        let absence = svg(&case.rec, &case.bill).unwrap_err();
        assert_eq!(absence.reason, Reason::TooLittle);
    }

    /// With ALLOCWALL_DRAW=path the test writes the drawing to that file.
    #[test]
    fn can_be_looked_at() {
        if let Some(path) = std::env::var_os("ALLOCWALL_DRAW") {
            std::fs::write(path, draw()).expect("writable");
        }
    }
}
