//! The flamegraph: data for the script, and the heaviest stacks as a table for readers without it.

use super::Case;
use crate::flamegraph::{Node, Tree};
use crate::html::page::{Section, absent, data, hex, table};
use crate::layout::elide_middle;
use crate::palette::fill;
use allocwall_diagnose::bill::CpuLine;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::units::thousands;
use maud::{Markup, html};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Narrower boxes, as a part of the whole, are not drawn: their parent has their samples.
const NARROWEST: u64 = 2000;
/// Room of the data in bytes. The widest boxes come first.
const ROOM: usize = 500_000;
/// Columns of a name.
const NAME: usize = 200;
/// Stacks of the table, and frames of each.
const HEAVIEST: usize = 12;
const FRAMES: usize = 8;

pub(super) fn section(case: &Case) -> Section {
    let body = match Tree::of(case.rec, &case.classified.classes) {
        Err(absence) => absent("The flamegraph", &absence),
        Ok(tree) => html! {
            (graph(case, &tree))
            details {
                summary { "Table: the heaviest stacks" }
                (heaviest(&tree))
            }
        },
    };
    let aside = "CPU samples by stack, callers above; a colour for each line of the bill";
    Section { id: "flamegraph", title: "Flamegraph", aside: aside.into(), body }
}

fn graph(case: &Case, tree: &Tree) -> Markup {
    let (boxes, all) = (boxes(tree), case.rec.samples.len() as u64);
    html! {
        p.note {
            (thousands(tree.samples)) " of " (thousands(all)) " samples are drawn"
            @if tree.samples < all { ": those with a whole stack" }
            ". A click or Enter zooms, Escape resets, arrow keys move."
            @if boxes.left_out { " Boxes that are too narrow to see are part of their callers." }
        }
        div.flame {
            p.tools {
                label { "Search " input type="search" autocomplete="off" spellcheck="false"; }
                button type="button" { "Reset zoom" }
                output {}
            }
            div.graph { div.boxes {} }
            p.about aria-live="polite" {}
            noscript { p.absent { "The graph needs the script of this file. The table below has the heaviest stacks." } }
        }
        ul.legend {
            @for line in case.bill.on_cpu.iter().flatten().filter(|line| line.samples > 0) {
                li { (swatch(line)) (line.class.title()) }
            }
        }
        (data("flame-data", &boxes.value))
    }
}

fn swatch(line: &CpuLine) -> Markup {
    html! {
        svg.swatch width="18" height="12" aria-hidden="true" {
            rect.edge x="0.5" y="0.5" width="17" height="11" fill=(hex(fill(line.class))) {}
        }
    }
}

struct Boxes {
    value: Value,
    left_out: bool,
}

/// Names, classes, and four numbers for each box: its parent's place in the list, its name, its class, its samples. A parent
/// comes before its children, and of two children the wider one comes first.
fn boxes(tree: &Tree) -> Boxes {
    let mut names = vec!["all".to_owned()];
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut numbers = vec![0, 0, 0, tree.samples];
    let (mut room, mut left_out) = (ROOM, false);
    // Boxes that may be drawn: name, node, place of the parent. The widest one is next, then the first one.
    let mut found: Vec<(&str, &Node, usize)> = vec![];
    let mut open: BinaryHeap<(u64, Reverse<usize>)> = BinaryHeap::new();
    let mut drawn = Some((&tree.root, 0));
    loop {
        if let Some((node, place)) = drawn.take() {
            for (name, child) in &node.children {
                open.push((child.width(), Reverse(found.len())));
                found.push((name, child, place));
            }
        }
        let Some((width, Reverse(nth))) = open.pop() else { break };
        let (name, node, parent) = found[nth];
        let new = (!known.contains_key(name)).then(|| elide_middle(name, NAME));
        let takes = BOX + new.as_ref().map_or(0, |name| json!(name).to_string().len());
        if width * NARROWEST < tree.samples || takes > room {
            left_out = true;
            continue;
        }
        room -= takes;
        if let Some(new) = new {
            known.insert(name, names.len());
            names.push(new);
        }
        let class = tree.color(name, node);
        let class = CostClass::ALL.iter().position(|one| *one == class).unwrap_or(0);
        drawn = Some((node, numbers.len() / 4));
        numbers.extend([parent as u64, known[name] as u64, class as u64, width]);
    }
    let classes: Vec<Value> =
        CostClass::ALL.into_iter().map(|class| json!([class.title(), hex(fill(class))])).collect();
    Boxes { value: json!({ "names": names, "classes": classes, "boxes": numbers }), left_out }
}

/// Bytes of the four numbers of a box, and of the quotes of its name.
const BOX: usize = 32;

/// The stacks with the most samples, leaf first.
fn heaviest(tree: &Tree) -> Markup {
    let mut ends: Vec<(u64, Vec<&str>)> = vec![];
    // Each open node with its depth: the path holds the names above it.
    let mut open: Vec<(usize, &str, &Node)> =
        tree.root.children.iter().map(|(name, node)| (0, &**name, node)).collect();
    let mut path: Vec<&str> = vec![];
    while let Some((depth, name, node)) = open.pop() {
        path.truncate(depth);
        path.push(name);
        let ending = node.ends();
        if ending > ends.get(HEAVIEST - 1).map_or(0, |(least, _)| *least) {
            ends.push((ending, path.iter().rev().take(FRAMES).copied().collect()));
            ends.sort_by_key(|(samples, _)| Reverse(*samples));
            ends.truncate(HEAVIEST);
        }
        open.extend(node.children.iter().map(|(name, node)| (depth + 1, &**name, node)));
    }
    let rows = ends.iter().map(|(samples, path)| {
        let share = *samples as f64 / tree.samples as f64 * 100.0;
        let path: Vec<String> = path.iter().map(|name| elide_middle(name, NAME / 2)).collect();
        (
            html! { code { (path.join(" ← ")) } },
            vec![html! { (format!("{share:.1} %")) }, html! { (thousands(*samples)) }],
        )
    });
    table("The heaviest stacks", &["stack, leaf first", "share", "samples"], rows)
}
