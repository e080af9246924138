//! A recording as a profile for other tools: pprof, Firefox Profiler, speedscope. Every CPU sample is in it, with the line of the bill to
//! which it belongs, so its sums are the bill's. (Collapsed stacks and the flamegraph use the samples with a whole stack.) Stacks that
//! are not whole begin with `[truncated]`.

pub mod firefox;
pub mod pprof;
pub mod speedscope;

use super::collapsed::{Drawn, Level, Names, Which, drawn, module};
use super::flamegraph::no_samples;
use allocwall_diagnose::bill::Classified;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::recording::Recording;
use allocwall_model::units::Measured;
use std::collections::BTreeMap;

/// The samples with their stacks, names and lines.
struct Traces<'a> {
    rec: &'a Recording,
    names: Names<'a>,
    samples: Vec<Trace<'a>>,
}

struct Trace<'a> {
    drawn: Drawn<'a>,
    class: CostClass,
}

impl<'a> Traces<'a> {
    /// # Errors
    /// There is no sample: the tools can't open an empty profile.
    fn of(rec: &'a Recording) -> Measured<Traces<'a>> {
        let classes = Classified::of(rec).classes;
        let trace = |drawn: Drawn<'a>| Trace { class: classes[drawn.index], drawn };
        let samples: Vec<_> = drawn(rec, &classes, Which::All).into_iter().map(trace).collect();
        if samples.is_empty() {
            return Err(no_samples());
        }
        Ok(Traces { rec, names: Names::of(rec), samples })
    }

    /// By process and thread, each in the order of time.
    fn threads(&self) -> BTreeMap<(i32, i32), Vec<&Trace<'a>>> {
        let mut threads: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for trace in &self.samples {
            threads.entry((trace.drawn.sample.pid, trace.drawn.sample.tid)).or_default().push(trace);
        }
        threads
            .values_mut()
            .for_each(|samples| samples.sort_by_key(|t| (t.drawn.sample.t_ns, t.drawn.index)));
        threads
    }

    /// Leaf first.
    fn levels(&self, trace: &Trace<'a>) -> Vec<Level<'a>> {
        self.names.levels(trace.drawn.place())
    }

    /// The index of the file of a level.
    fn file(&self, level: Level) -> Option<usize> {
        let (Level::Kernel(frame) | Level::User(frame)) = level else { return None };
        let frame = self.rec.frames.get(frame as usize)?;
        module(self.rec, frame)?;
        Some(frame.module? as usize)
    }
}

/// What a profile is called.
fn title(rec: &Recording) -> String {
    let target = allocwall_diagnose::main_process(rec);
    target
        .map_or("no process".to_owned(), |p| super::escape::terminal(&format!("{} (pid {})", p.comm, p.pid)))
}

/// The program that wrote it.
fn exporter(rec: &Recording) -> String {
    super::escape::terminal(&format!("allocwall {}", rec.meta.tool_version))
}
