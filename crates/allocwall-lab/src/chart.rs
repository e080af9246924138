//! Line charts with logarithmic axes, as SVG. One style sheet sets the colours; it follows the reader's light or dark scheme and prints
//! black on white. Each line has a label at its end and its own dash pattern, so that it can be read without colour.

use std::fmt::Write;

pub struct Line {
    pub label: String,
    /// Points with ascending x; x and y above 0.
    pub points: Vec<(f64, f64)>,
    /// Number of the style.
    pub style: usize,
    /// Draw steps: the value is constant until the next point.
    pub steps: bool,
    /// Mark the points: each one is a separate measurement.
    pub marks: bool,
}

pub struct Chart<'a> {
    pub title: &'a str,
    /// Text below the title: what was measured, how, and limits.
    pub notes: &'a [String],
    pub x_title: &'a str,
    pub y_title: &'a str,
    /// Text instead of a number at this x.
    pub x_names: &'a [(f64, &'a str)],
    /// Range of the axis.
    pub x: (f64, f64),
    pub y: (f64, f64),
    pub lines: &'a [Line],
}

const WIDTH: f64 = 860.0;
const LEFT: f64 = 78.0;
/// The right end of the plot. The labels are beside it.
const EDGE: f64 = WIDTH - 170.0;
const PLOT: f64 = 400.0;
const NOTE: f64 = 17.0;
const BELOW: f64 = 56.0;
/// Minimum distance, in pixels, of two drawn points of a line.
const FINEST: f64 = 0.5;
/// Minimum distance between two labels.
const LABEL: f64 = 14.0;
/// Dash patterns of the styles, in order.
const DASHES: [&str; 6] = ["", "7 3", "2 3", "9 3 2 3", "4 2", "1 2"];
/// Colours for light and dark backgrounds, also distinguishable for colour-blind readers (after Okabe and Ito, 2008).
const HUES: [(&str, &str); 8] = [
    ("#222222", "#eeeeee"),
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8a3d"),
    ("#007f5f", "#2fd0a3"),
    ("#b0478a", "#e58fc4"),
    ("#8a6d00", "#f0c94a"),
    ("#5b4fbf", "#a79df5"),
    ("#6b6b6b", "#a8a8a8"),
];

pub fn svg(chart: &Chart) -> String {
    let top = 34.0 + NOTE * chart.notes.len() as f64 + 12.0;
    let plot = Plot { chart, top };
    let mut out = head(chart, top + PLOT + BELOW);
    plot.x_axis(&mut out);
    plot.y_axis(&mut out);
    plot.titles(&mut out);
    let ends = chart.lines.iter().filter_map(|line| plot.line(line, &mut out)).collect();
    plot.labels(ends, &mut out);
    out.push_str("</svg>\n");
    out
}

fn head(chart: &Chart, height: f64) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\">\n<title>{}</title>\n<style>\n{}</style>\n<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        escape(chart.title),
        style_sheet(),
    );
    let _ = writeln!(out, "<text class=\"title\" x=\"{LEFT}\" y=\"26\">{}</text>", escape(chart.title));
    for (n, note) in chart.notes.iter().enumerate() {
        let at = 26.0 + NOTE * (n + 1) as f64;
        let _ = writeln!(out, "<text class=\"note\" x=\"{LEFT}\" y=\"{at}\">{}</text>", escape(note));
    }
    out
}

/// The part of a chart between its axes.
struct Plot<'a> {
    chart: &'a Chart<'a>,
    top: f64,
}

/// The end of a line, with its label.
struct End<'a> {
    x: f64,
    y: f64,
    style: usize,
    label: &'a str,
}

impl<'a> Plot<'a> {
    fn bottom(&self) -> f64 {
        self.top + PLOT
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + along(value, self.chart.x) * (EDGE - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom() - along(value, self.chart.y) * PLOT
    }

    fn x_axis(&self, out: &mut String) {
        let bottom = self.bottom();
        let text = |at: f64, text: &str| {
            let below = bottom + 17.0;
            format!("<text class=\"tick middle\" x=\"{at:.1}\" y=\"{below:.1}\">{text}</text>")
        };
        for (value, labelled) in ticks(self.chart.x) {
            let at = self.x(value);
            let _ = writeln!(
                out,
                "<line class=\"{}\" x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\"/>",
                grid(labelled),
                self.top
            );
            let named = self.chart.x_names.iter().any(|(named, _)| (named / value - 1.0).abs() < 1e-9);
            if labelled && !named {
                let _ = writeln!(out, "{}", text(at, &short(value)));
            }
        }
        for (value, name) in self.chart.x_names {
            let _ = writeln!(out, "{}", text(self.x(*value), &escape(name)));
        }
    }

    fn y_axis(&self, out: &mut String) {
        for (value, labelled) in ticks(self.chart.y) {
            let at = self.y(value);
            let _ = writeln!(
                out,
                "<line class=\"{}\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{EDGE}\" y2=\"{at:.1}\"/>",
                grid(labelled),
            );
            if labelled {
                let _ = writeln!(
                    out,
                    "<text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{}</text>",
                    LEFT - 8.0,
                    at + 4.0,
                    short(value)
                );
            }
        }
    }

    fn titles(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "<text class=\"axis middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n<text class=\"axis middle\" transform=\"translate(18 {:.1}) \
             rotate(-90)\">{}</text>",
            (LEFT + EDGE) / 2.0,
            self.bottom() + 42.0,
            escape(self.chart.x_title),
            self.top + PLOT / 2.0,
            escape(self.chart.y_title),
        );
    }

    /// Draws a line. None if it has no points.
    fn line(&self, line: &'a Line, out: &mut String) -> Option<End<'a>> {
        let &(last, value) = line.points.last()?;
        let style = line.style % HUES.len();
        let _ = writeln!(
            out,
            "<path class=\"line s{style}\" stroke-dasharray=\"{}\" d=\"{}\"/>",
            DASHES[line.style % DASHES.len()],
            self.path(line)
        );
        if line.marks {
            for &(at, value) in &line.points {
                let _ = writeln!(
                    out,
                    "<circle class=\"m{style}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\"/>",
                    self.x(at),
                    self.y(value)
                );
            }
        }
        Some(End { x: self.x(last), y: self.y(value), style, label: &line.label })
    }

    fn path(&self, line: &Line) -> String {
        let mut path = String::new();
        let mut before: Option<(f64, f64)> = None;
        for (n, &(at, value)) in line.points.iter().enumerate() {
            let (at, value) = (self.x(at), self.y(value));
            let ends = n + 1 == line.points.len();
            if let Some((x, y)) = before {
                // A histogram can have hundreds of steps within one pixel.
                if !ends && (at - x).abs() < FINEST && (value - y).abs() < FINEST {
                    continue;
                }
                if line.steps {
                    let _ = write!(path, " L{at:.1} {y:.1}");
                }
            }
            let begin = if path.is_empty() { "M" } else { " L" };
            let _ = write!(path, "{begin}{at:.1} {value:.1}");
            before = Some((at, value));
        }
        path
    }

    /// The labels of the lines, in the order of their ends and with their minimum distance.
    fn labels(&self, mut ends: Vec<End>, out: &mut String) {
        ends.sort_by(|a, b| a.y.total_cmp(&b.y).then(a.x.total_cmp(&b.x).reverse()));
        let lowest = self.bottom() - LABEL * ends.len().saturating_sub(1) as f64;
        let mut free = f64::NEG_INFINITY;
        for (n, End { x, y, style, label }) in ends.into_iter().enumerate() {
            let at = y.max(free).min(lowest + LABEL * n as f64);
            free = at + LABEL;
            let _ = writeln!(
                out,
                "<path class=\"lead s{style}\" d=\"M{x:.1} {y:.1} L{:.1} {at:.1}\"/>\n<text class=\"label t{style}\" x=\"{:.1}\" \
                 y=\"{:.1}\">{}</text>",
                EDGE + 8.0,
                EDGE + 12.0,
                at + 4.0,
                escape(label)
            );
        }
    }
}

/// How far along a logarithmic axis the value is, from 0 to 1.
fn along(value: f64, (from, to): (f64, f64)) -> f64 {
    (value.clamp(from, to) / from).ln() / (to / from).ln()
}

fn grid(labelled: bool) -> &'static str {
    if labelled { "grid" } else { "fine" }
}

fn style_sheet() -> String {
    let scheme = |dark: bool| {
        let mut css = String::new();
        let ground = if dark { "#14161a" } else { "#ffffff" };
        let (ink, faint, grid, fine) = if dark {
            ("#e8e8e8", "#a8a8a8", "#3a3f47", "#24282e")
        } else {
            ("#1a1a1a", "#5a5a5a", "#c8c8c8", "#ececec")
        };
        let _ = writeln!(
            css,
            ".ground{{fill:{ground}}}.title,.axis{{fill:{ink}}}.note,.tick{{fill:{faint}}}.grid{{stroke:{grid}}}.fine{{stroke:{fine}}}"
        );
        for (n, hue) in HUES.iter().enumerate() {
            let hue = if dark { hue.1 } else { hue.0 };
            let _ = writeln!(css, ".s{n}{{stroke:{hue}}}.t{n},.m{n}{{fill:{hue}}}");
        }
        css
    };
    format!(
        "text{{font-family:system-ui,sans-serif;font-size:12px}}.title{{font-size:16px;font-weight:600}}.middle{{text-anchor:middle}}\
         .end{{text-anchor:end}}.line{{fill:none;stroke-width:1.8}}.lead{{fill:none;stroke-width:.6}}\n{}\
         @media screen and (prefers-color-scheme:dark){{\n{}}}\n",
        scheme(false),
        scheme(true)
    )
}

/// 1, 2 … 9 of each power of ten. The powers have labels; 2 and 5 also have labels if the axis has few powers.
fn ticks((from, to): (f64, f64)) -> Vec<(f64, bool)> {
    let decades = (to / from).log10();
    let mut ticks = vec![];
    for power in from.log10().floor() as i32..=to.log10().ceil() as i32 {
        for digit in 1..10 {
            let value = f64::from(digit) * 10f64.powi(power);
            if value >= from * 0.999 && value <= to * 1.001 {
                ticks.push((value, digit == 1 || (decades < 2.5 && [2, 5].contains(&digit))));
            }
        }
    }
    ticks
}

/// 200, 10k, 1M; 0.001.
pub(crate) fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e6 * 0.999 => (v / 1e6, "M"),
        v if v >= 1e3 * 0.999 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let digits = match value {
        v if v >= 0.999 => 0,
        v => (-v.log10()).ceil() as usize,
    };
    format!("{value:.digits$}{unit}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: &[Line]) -> String {
        svg(&Chart {
            title: "a <title> & more",
            notes: &["one note".into()],
            x_title: "ns",
            y_title: "share",
            x_names: &[],
            x: (10.0, 1e6),
            y: (1e-4, 1.0),
            lines,
        })
    }

    fn line(label: &str, points: &[(f64, f64)]) -> Line {
        Line { label: label.into(), points: points.to_vec(), style: 1, steps: false, marks: false }
    }

    #[test]
    fn it_is_well_formed_and_hides_no_markup() {
        let text = chart(&[line("<b>", &[(10.0, 1.0), (1e6, 1e-4)]), line("empty", &[])]);
        let document = roxmltree::Document::parse(&text).unwrap();
        let labels: Vec<_> = document
            .descendants()
            .filter(|n| n.attribute("class").is_some_and(|c| c.starts_with("label")))
            .map(|n| n.text().unwrap())
            .collect();
        // A line without points has no label.
        assert_eq!(labels, ["<b>"]);
        // From corner to corner of the plot.
        assert!(text.contains("d=\"M78.0 63.0 L690.0 463.0\""), "{text}");
    }

    #[test]
    fn points_within_a_pixel_are_drawn_once_and_the_end_always() {
        let many: Vec<(f64, f64)> = (0..100_000).map(|n| (10.0 + f64::from(n) * 1e-4, 0.1)).collect();
        let path = |points: &[(f64, f64)]| {
            let text = chart(&[line("a", points)]);
            let document = roxmltree::Document::parse(&text).unwrap();
            let drawn =
                document.descendants().find(|n| n.attribute("class").is_some_and(|c| c.starts_with("line")));
            drawn.unwrap().attribute("d").unwrap().to_owned()
        };
        let thin = path(&many);
        // 37 pixels from 10 to 20.
        assert!(thin.split(" L").count() < 90, "{thin}");
        assert!(thin.ends_with(path(&many[99_998..]).split(" L").last().unwrap()));
        // Points that are further apart are all drawn.
        assert_eq!(path(&[(10.0, 0.1), (100.0, 0.1), (1000.0, 0.01)]).split(" L").count(), 3);
    }

    #[test]
    fn labels_keep_their_distance() {
        let same = [(100.0, 0.01)];
        let text = chart(&[line("a", &same), line("b", &same), line("c", &same)]);
        let document = roxmltree::Document::parse(&text).unwrap();
        let mut at: Vec<f64> = document
            .descendants()
            .filter(|n| n.attribute("class").is_some_and(|c| c.starts_with("label")))
            .map(|n| n.attribute("y").unwrap().parse().unwrap())
            .collect();
        at.sort_by(f64::total_cmp);
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= LABEL - 0.11), "{at:?}");
    }

    #[test]
    fn numbers_as_short_as_they_are_exact() {
        let shown = [200.0, 1000.0, 10_000.0, 1e6, 1e7, 0.1, 0.001, 1e-5].map(short);
        assert_eq!(shown, ["200", "1k", "10k", "1M", "10M", "0.1", "0.001", "0.00001"]);
    }
}
