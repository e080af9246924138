//! For <https://profiler.firefox.com>: its processed format (`src/types/profile.ts` of github.com/firefox-devtools/profiler). The lines
//! of the bill are categories; resident memory and page faults are counters; collections are markers.

use super::{Traces, exporter, title};
use crate::collapsed::Level;
use crate::escape::terminal;
use crate::palette;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::recording::{Recording, Tick, gained};
use allocwall_model::units::Measured;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Version of the processed format. The viewer reads it and each earlier one.
const VERSION: u32 = 62;
/// Version of the Gecko format that it corresponds to.
const GECKO: u32 = 24;
/// A resource is a library.
const LIBRARY: u32 = 1;
/// A marker with a start and an end.
const INTERVAL: u32 = 1;

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shared {
    string_array: Vec<String>,
    stack_table: StackTable,
    frame_table: FrameTable,
    func_table: FuncTable,
    resource_table: ResourceTable,
    native_symbols: Value,
    sources: Value,
    #[serde(skip)]
    numbers: Numbers,
}

/// Entries that are in the tables.
#[derive(Default)]
struct Numbers {
    strings: HashMap<String, usize>,
    stacks: HashMap<(Option<usize>, usize), usize>,
    frames: HashMap<(usize, Option<CostClass>), usize>,
    functions: HashMap<(usize, Option<usize>), usize>,
}

#[derive(Default, Serialize)]
struct StackTable {
    frame: Vec<usize>,
    prefix: Vec<Option<usize>>,
    length: usize,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FrameTable {
    address: Vec<i32>,
    inline_depth: Vec<u32>,
    category: Vec<Option<usize>>,
    subcategory: Vec<Option<u32>>,
    func: Vec<usize>,
    native_symbol: Vec<Option<u32>>,
    #[serde(rename = "innerWindowID")]
    inner_window: Vec<u32>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
    length: usize,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FuncTable {
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    resource: Vec<i64>,
    source: Vec<Option<u32>>,
    line_number: Vec<Option<u32>>,
    column_number: Vec<Option<u32>>,
    length: usize,
}

#[derive(Default, Serialize)]
struct ResourceTable {
    lib: Vec<usize>,
    name: Vec<usize>,
    host: Vec<Option<u32>>,
    r#type: Vec<u32>,
    length: usize,
}

impl Shared {
    fn string(&mut self, text: &str) -> usize {
        if let Some(known) = self.numbers.strings.get(text) {
            return *known;
        }
        self.string_array.push(text.to_owned());
        self.numbers.strings.insert(text.to_owned(), self.string_array.len() - 1);
        self.string_array.len() - 1
    }

    fn stack(&mut self, prefix: Option<usize>, frame: usize) -> usize {
        let table = &mut self.stack_table;
        *self.numbers.stacks.entry((prefix, frame)).or_insert_with(|| {
            table.frame.push(frame);
            table.prefix.push(prefix);
            table.length += 1;
            table.length - 1
        })
    }

    /// A frame without a class has the category of its caller.
    fn frame(&mut self, func: usize, class: Option<CostClass>) -> usize {
        let table = &mut self.frame_table;
        *self.numbers.frames.entry((func, class)).or_insert_with(|| {
            table.address.push(-1);
            table.inline_depth.push(0);
            table.category.push(class.map(category));
            table.subcategory.push(class.map(|_| 0));
            table.func.push(func);
            table.native_symbol.push(None);
            table.inner_window.push(0);
            table.line.push(None);
            table.column.push(None);
            table.length += 1;
            table.length - 1
        })
    }

    /// `file` is the index of a library, and of its resource.
    fn function(&mut self, name: &str, file: Option<usize>) -> usize {
        let name = self.string(name);
        let table = &mut self.func_table;
        *self.numbers.functions.entry((name, file)).or_insert_with(|| {
            table.name.push(name);
            table.is_js.push(false);
            table.relevant_for_js.push(false);
            table.resource.push(file.map_or(-1, |file| file as i64));
            table.source.push(None);
            table.line_number.push(None);
            table.column_number.push(None);
            table.length += 1;
            table.length - 1
        })
    }
}

/// Index of a line of the bill among the categories.
fn category(class: CostClass) -> usize {
    CostClass::ALL.iter().position(|c| *c == class).unwrap_or(0)
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Samples {
    stack: Vec<usize>,
    /// Milliseconds since the sample before.
    time_deltas: Vec<f64>,
    weight: Vec<u64>,
    weight_type: &'static str,
    /// Microseconds.
    #[serde(rename = "threadCPUDelta")]
    cpu: Vec<u64>,
    length: usize,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Markers {
    data: Vec<Option<()>>,
    name: Vec<usize>,
    start_time: Vec<f64>,
    end_time: Vec<f64>,
    phase: Vec<u32>,
    category: Vec<usize>,
    length: usize,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counted {
    time_deltas: Vec<f64>,
    number: Vec<u32>,
    /// The change since the sample before.
    count: Vec<f64>,
    length: usize,
}

/// # Errors
/// The recording has no samples.
pub fn document(rec: &Recording) -> Measured<String> {
    let traces = Traces::of(rec)?;
    let mut shared = Shared {
        native_symbols: json!({"libIndex": [], "address": [], "name": [], "functionSize": [], "length": 0}),
        sources: json!({"id": [], "filename": [], "startLine": [], "startColumn": [], "sourceMapURL": [], "length": 0}),
        ..Shared::default()
    };
    let libraries: Vec<Value> = rec.modules.iter().map(|module| library(&mut shared, module)).collect();
    let mut threads: Vec<Value> = vec![];
    // The thread below whose process the counters are shown.
    let main = allocwall_diagnose::main_process(rec).map(|process| process.pid);
    let mut counters_at = None;
    let of_threads = traces.threads();
    // The thread that shows what the whole process did: the main thread, if it has samples.
    let first = |pid| of_threads.keys().find(|(of, _)| *of == pid).map(|(_, tid)| *tid);
    let shows = |pid| if of_threads.contains_key(&(pid, pid)) { Some(pid) } else { first(pid) };
    for (&(pid, tid), of_thread) in &of_threads {
        if Some(pid) == main && (counters_at.is_none() || pid == tid) {
            counters_at = Some(threads.len());
        }
        let samples = samples(&traces, &mut shared, of_thread);
        let markers =
            if shows(pid) == Some(tid) { collections(rec, &mut shared, pid) } else { Markers::default() };
        threads.push(json!({
            "name": traces.names.thread(pid, tid),
            "isMainThread": pid == tid,
            "processType": "default",
            "processName": traces.names.process(pid),
            "processStartupTime": 0.0,
            "processShutdownTime": null,
            "registerTime": 0.0,
            "unregisterTime": null,
            "pausedRanges": [],
            "showMarkersInTimeline": markers.length > 0,
            "pid": pid.to_string(),
            "tid": tid.to_string(),
            "samples": samples,
            "markers": markers,
        }));
    }
    let counters = counters_at.map_or(vec![], |at| counters(rec, main.unwrap_or(0), at));
    let categories = CostClass::ALL.map(
        |class| json!({"name": class.title(), "color": palette::firefox(class), "subcategories": ["Other"]}),
    );
    let period_ms = rec.meta.sample_period_ns as f64 / 1e6;
    Ok(crate::json::line(&json!({
        "meta": {
            "version": GECKO,
            "preprocessedProfileVersion": VERSION,
            "product": title(rec),
            "importedFrom": exporter(rec),
            "startTime": rec.meta.started_unix_ms as f64,
            "profilingStartTime": 0.0,
            "profilingEndTime": rec.meta.window_ns as f64 / 1e6,
            "interval": period_ms,
            "processType": 0,
            "debug": false,
            "symbolicated": true,
            "usesOnlyOneStackType": true,
            "sourceCodeIsNotOnSearchfox": true,
            "oscpu": terminal(&format!("Linux {}", rec.host.kernel_release)),
            "CPUName": terminal(&rec.host.cpu_model),
            "logicalCPUs": rec.host.online_cpus,
            "categories": categories,
            "markerSchema": [],
            "pausedRanges": [],
            "extensions": {"id": [], "name": [], "baseURL": [], "length": 0},
            "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs"},
        },
        "libs": libraries,
        "pages": [],
        "profilerOverhead": [],
        "counters": counters,
        "shared": shared,
        "threads": threads,
    })))
}

/// A library, which gets a resource of the same index.
fn library(shared: &mut Shared, module: &allocwall_model::recording::Module) -> Value {
    let path = terminal(&module.path);
    let name = path.rsplit('/').next().unwrap_or(&path).to_owned();
    let text = shared.string(&name);
    let table = &mut shared.resource_table;
    table.lib.push(table.length);
    table.name.push(text);
    table.host.push(None);
    table.r#type.push(LIBRARY);
    table.length += 1;
    let code = module.build_id.as_deref().map(terminal);
    json!({"arch": null, "name": name, "path": path, "debugName": name, "debugPath": path, "breakpadId": "", "codeId": code})
}

fn samples(traces: &Traces, shared: &mut Shared, of_thread: &[&super::Trace]) -> Samples {
    let mut samples = Samples { weight_type: "samples", ..Samples::default() };
    let mut before = 0.0;
    for trace in of_thread {
        let mut stack = None;
        let levels = traces.levels(trace);
        for (from_leaf, level) in levels.into_iter().enumerate().rev() {
            let func = shared.function(&traces.names.name(level), traces.file(level));
            let colored = from_leaf == 0 || matches!(level, Level::Kernel(_));
            let frame = shared.frame(func, colored.then_some(trace.class));
            stack = Some(shared.stack(stack, frame));
        }
        let at = trace.drawn.sample.t_ns as f64 / 1e6;
        samples.stack.extend(stack);
        samples.time_deltas.push(at - before);
        samples.weight.push(trace.drawn.count);
        samples.cpu.push(trace.drawn.count.saturating_mul(traces.rec.meta.sample_period_ns) / 1000);
        samples.length += 1;
        before = at;
    }
    samples
}

/// When the collector of a process ran, as far as it was sampled.
fn collections(rec: &Recording, shared: &mut Shared, pid: i32) -> Markers {
    let mut markers = Markers::default();
    for span in rec.collecting.iter().filter(|span| span.pid == pid) {
        markers.data.push(None);
        markers.name.push(shared.string("collection"));
        markers.start_time.push(span.from_ns as f64 / 1e6);
        markers.end_time.push(span.to_ns as f64 / 1e6);
        markers.phase.push(INTERVAL);
        markers.category.push(category(CostClass::GarbageCollector));
        markers.length += 1;
    }
    markers
}

fn counters(rec: &Recording, pid: i32, main_thread: usize) -> Vec<Value> {
    let change = |from: u64, to: u64| to as f64 - from as f64;
    let grown = |from: u64, to: u64| gained(from, to).map_or(0.0, |gain| gain as f64);
    let resident = counted(&rec.ticks, |t| t.resident, change, true);
    let faults = counted(&rec.ticks, |t| t.minor_faults.wrapping_add(t.major_faults), grown, false);
    let counter = |name: &str,
                   category: &str,
                   description: &str,
                   unit: &str,
                   color: &str,
                   weight: u32,
                   samples: Counted| {
        json!({
            "name": name,
            "category": category,
            "description": description,
            "pid": pid.to_string(),
            "mainThreadIndex": main_thread,
            "display": {
                "graphType": "line-accumulated",
                "label": name,
                "unit": unit,
                "color": color,
                "markerSchemaLocation": "timeline-memory",
                "sortWeight": weight,
            },
            "samples": samples,
        })
    };
    vec![
        counter(
            "resident memory",
            "Memory",
            "resident memory of all processes",
            "bytes",
            "orange",
            20,
            resident,
        ),
        counter(
            "page faults",
            "page faults",
            "page faults of all processes since the start",
            "",
            "red",
            21,
            faults,
        ),
    ]
}

/// `whole`: the first sample is the value itself, else 0.
fn counted(ticks: &[Tick], read: fn(&Tick) -> u64, change: impl Fn(u64, u64) -> f64, whole: bool) -> Counted {
    let mut counted = Counted::default();
    let mut before: Option<&Tick> = None;
    for tick in ticks {
        let since = before.map_or(0, |before| before.t_ns);
        counted.time_deltas.push(tick.t_ns.saturating_sub(since) as f64 / 1e6);
        counted.number.push(0);
        counted.count.push(match before {
            Some(before) => change(read(before), read(tick)),
            None if whole => read(tick) as f64,
            None => 0.0,
        });
        counted.length += 1;
        before = Some(tick);
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketches;
    use allocwall_model::recording::Collecting;

    fn read(rec: &Recording) -> Value {
        serde_json::from_str(&document(rec).unwrap()).unwrap()
    }

    fn numbers(list: &Value) -> Vec<f64> {
        list.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
    }

    #[test]
    fn samples_of_a_category_are_those_of_the_line() {
        let mut rec = sketches::first_touch().rec;
        // It has few samples for what the kernel charged to its threads.
        rec.threads.clear();
        let (file, bill) = (read(&rec), allocwall_diagnose::bill::of(&rec));
        let shared = &file["shared"];
        let mut weights = vec![0.0; CostClass::ALL.len()];
        for thread in file["threads"].as_array().unwrap() {
            let samples = &thread["samples"];
            for (stack, weight) in numbers(&samples["stack"]).into_iter().zip(numbers(&samples["weight"])) {
                let frame = shared["stackTable"]["frame"][stack as usize].as_u64().unwrap();
                let category = &shared["frameTable"]["category"][frame as usize];
                weights[category.as_u64().unwrap() as usize] += weight;
            }
        }
        let lines = bill.on_cpu.unwrap();
        let expected: Vec<f64> = lines.iter().map(|line| line.samples as f64).collect();
        assert_eq!(weights, expected);
        assert_eq!(file["meta"]["categories"][1]["name"], "allocator code");
    }

    #[test]
    fn counters_are_changes_and_collections_are_markers() {
        let mut rec = sketches::first_touch().rec;
        let tick = |t_ns, resident, minor_faults| Tick { t_ns, resident, minor_faults, ..Tick::default() };
        rec.ticks = vec![tick(0, 500, 7), tick(1_000_000, 400, 9), tick(3_000_000, 600, 8)];
        rec.collecting = vec![Collecting { pid: 4242, from_ns: 1_000_000, to_ns: 2_500_000 }];
        let file = read(&rec);
        let of = |at: usize, key: &str| numbers(&file["counters"][at]["samples"][key]);
        assert_eq!(of(0, "count"), [500.0, -100.0, 200.0]);
        assert_eq!(of(0, "timeDeltas"), [0.0, 1.0, 2.0]);
        // A counter that runs backwards says nothing.
        assert_eq!(of(1, "count"), [0.0, 2.0, 0.0]);
        let thread = &file["threads"][file["counters"][0]["mainThreadIndex"].as_u64().unwrap() as usize];
        assert_eq!((numbers(&thread["markers"]["endTime"]), &thread["pid"]), (vec![2.5], &json!("4242")));
        // If the main thread has no sample, another one of the process has them.
        rec.samples.iter_mut().for_each(|sample| sample.tid = 4243);
        let file = read(&rec);
        assert_eq!(numbers(&file["threads"][0]["markers"]["endTime"]), [2.5]);
    }
}
