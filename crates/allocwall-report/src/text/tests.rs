use super::super::layout::columns;
use super::super::memory_text;
use super::super::sketches::{self, Case};
use super::remedies::saved;
use super::runtimes::RUNTIMES_SHOWN;
use super::sites::without_arguments;
use super::*;
use allocwall_diagnose::Prescription;
use allocwall_diagnose::bill::{Basis, Faulted, NO_SYMBOL, OwnerShare, Site};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::remedies::find;
use allocwall_model::recording::{
    AllocatorKind, CpuSample, Ended, Figure, Libc, Module, ModuleRole, Probe, ProbeName, ProbeState, Process,
    Runtime, RuntimeAccount,
};
use allocwall_model::resident::{GroupMemory, Split, TargetMemory};
use allocwall_model::units::{Absence, Interval, Reason};
use proptest::prelude::*;

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn in_style(case: &Case, extent: Extent, style: Style) -> String {
    let file = Some("/state/42.allocwall");
    diagnosis(&case.rec, &case.bill, &case.verdict, file, extent, style)
}

fn printed(case: &Case, width: usize) -> String {
    in_style(case, Extent::All, Style { color: false, width })
}

fn briefly(case: &Case, width: usize) -> String {
    in_style(case, Extent::Brief, Style { color: false, width })
}

#[test]
fn reports_read_as_they_were_approved() {
    for case in sketches::all() {
        insta::assert_snapshot!(case.name, printed(&case, 100));
    }
    insta::assert_snapshot!("first_touch_narrow", printed(&sketches::first_touch(), 52));
}

#[test]
fn brief_reports_read_as_they_were_approved_and_fit_a_screen() {
    for case in sketches::all() {
        let page = briefly(&case, 100);
        insta::assert_snapshot!(format!("brief_{}", case.name), page);
        assert!(page.lines().count() <= 40, "{}: {} lines\n{page}", case.name, page.lines().count());
    }
    insta::assert_snapshot!("brief_first_touch_narrow", briefly(&sketches::first_touch(), 52));
}

/// A program that ended before the times of its threads were read has samples, and no thread time.
#[test]
fn waits_without_thread_time_have_no_share() {
    let waits = |whole: f64| {
        let mut case = sketches::first_touch();
        case.bill.rates.thread_s = whole;
        let page = briefly(&case, 100);
        page.lines().find(|line| line.starts_with("WAITS")).unwrap().to_owned()
    };
    assert!(waits(0.0).len() <= 100 && !waits(0.0).contains('%'), "{}", waits(0.0));
    assert!(waits(60.0).contains("60.0 thread-seconds"), "{}", waits(60.0));
}

/// As a usual diagnosis has them: memory by owner, several walls that were not measured, many small lines of the bill.
#[test]
fn a_full_brief_report_fits_a_screen() {
    let mut case = sketches::first_touch();
    case.rec.resident = Ok(TargetMemory { bills: vec![memory_text::tests::bill()], others: 0, unread: None });
    for (nth, line) in case.bill.on_cpu.as_mut().unwrap().iter_mut().enumerate() {
        if line.share.point == 0.0 {
            line.share = Interval::exact(0.002 + nth as f64 * 1e-4);
        }
    }
    let page = briefly(&case, 100);
    assert!(page.lines().count() <= 41, "{} lines\n{page}", page.lines().count());
    for reason in ["a", "b", "c", "d", "e", "f"] {
        let absence = Absence::new(Reason::NotSupported, format!("reason {reason}"));
        case.rec.probes.push(Probe::new(ProbeName::Smaps, ProbeState::Absent(absence)));
    }
    let page = briefly(&case, 100);
    assert!(page.contains("15 smaller lines"), "{page}");
    assert!(page.contains("3 more: see LIMITS with --all"), "{page}");
    let (sum, total) = printed_sum(&page);
    assert!((sum - 100.0).abs() < 1e-9 && total == 100.0, "{sum} {total}\n{page}");
    // The near twin: a single small line is printed as itself.
    let page = briefly(&sketches::nothing_found(), 100);
    assert!(!page.contains("smaller line") && page.contains("runtime's object allocator"), "{page}");
}

#[test]
fn the_brief_report_explains_walls_and_folds_what_is_ruled_out() {
    let page = briefly(&sketches::first_touch(), 100);
    let line = |start: &str| page.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
    assert!(line("WALL").contains("first touch: 61 %"), "{page}");
    assert!(line("CONTRIBUTOR").contains("map churn: 6.1 %"), "{page}");
    let out = on_one_line(page.split("RULED OUT").nth(1).unwrap().split("REMEDY").next().unwrap());
    assert!(out.contains("interference, waiting and locks") && out.contains("file page faults"), "{out}");
    // Neither what is a wall or contributes, nor what was not measured, nor figures of what is ruled out.
    assert!(!out.contains("first touch") && !out.contains("map churn") && !out.contains("TLB"), "{out}");
    assert!(!out.contains('%'), "{out}");
    assert!(page.contains("\nNOT MEASURED TLB: no PMU"), "{page}");
}

#[test]
fn a_wall_does_not_repeat_the_sentence_of_the_verdict() {
    const REASON: &str = "61 % (59–62 %) of CPU goes to faulting in and zeroing fresh pages";
    let mut case = sketches::first_touch();
    let wall = |case: &Case| {
        let page = on_one_line(&briefly(case, 100));
        page.split("WALL first touch: ").nth(1).unwrap_or_else(|| panic!("{page}")).to_owned()
    };
    assert!(wall(&case).starts_with(REASON));
    case.verdict.sentence = format!("First touch is the wall: {REASON}, most of it from `f`.");
    assert!(wall(&case).starts_with("338 k minor faults a second"));
    // Without numbers there is nothing else to say.
    let wall_finding = case.verdict.findings.iter_mut().find(|f| f.status == Status::Wall).unwrap();
    wall_finding.evidence.clear();
    assert!(wall(&case).starts_with(REASON));
}

#[test]
fn the_brief_report_tries_and_applies_the_first_remedy_alone() {
    let mut case = sketches::first_touch();
    let page = briefly(&case, 100);
    const TRIAL: &str = "$ allocwall trial --with glibc-keep-memory -- python3 -m service --port 8080";
    assert_eq!(page.matches("allocwall trial").count(), 1, "{page}");
    assert!(page.contains(TRIAL), "{page}");
    let others = page.split("\nOR ").nth(1).expect(&page);
    assert!(others.contains("preload jemalloc") && !others.contains("more with --all"), "{page}");
    let mut many = case.clone();
    many.verdict.remedies.push(many.verdict.remedies[3].clone());
    assert!(briefly(&many, 100).contains("\n             2 more with --all\n"));
    assert!(others.contains("Huge pages for malloc · saves 28 to 44 % of CPU\n"), "{page}");
    // A change of the machine, or of the code, has no trial.
    case.verdict.remedies.rotate_left(2);
    let page = briefly(&case, 100);
    let remedy = page.split("\nREMEDY ").nth(1).and_then(|rest| rest.split("\nNOT MEASURED").next());
    let remedy = remedy.expect(&page);
    assert!(!remedy.contains("allocwall trial --with") && remedy.contains("keep one Buffer"), "{page}");
    // A command that ended by itself is no server.
    let mut ended = sketches::first_touch();
    assert!(printed(&ended, 100).contains("--load URL"));
    ended.rec.meta.ended = Ended::TargetExited { status: None };
    let page = printed(&ended, 100);
    assert!(page.contains(TRIAL) && !page.contains("--load URL"), "{page}");
}

#[test]
fn the_brief_report_has_no_half_commands_and_no_notes_on_lines_that_it_folds() {
    let mut case = sketches::first_touch();
    for remedy in &mut case.verdict.remedies {
        (remedy.remedy, remedy.gain, remedy.at_most) = ("glibc-hugetlb".into(), None, None);
    }
    const TEST: &str = "gain unknown: test it with";
    assert!(printed(&case, 100).contains(TEST));
    let page = briefly(&case, 100);
    assert!(!page.contains(TEST) && page.contains("preload jemalloc · gain unknown\n"), "{page}");
    let noted = |share: f64| {
        let mut case = sketches::nothing_found();
        for line in case.bill.on_cpu.as_mut().unwrap() {
            if line.class == CostClass::RuntimeAllocator {
                (line.share.point, line.notes) = (share, vec!["a note".into()]);
            }
        }
        briefly(&case, 100).contains("runtime's object allocator: a note")
    };
    assert!(noted(0.05) && !noted(0.0));
}

#[test]
fn bars_have_the_colours_of_their_lines_on_terminals_only() {
    let case = sketches::first_touch();
    for extent in [Extent::Brief, Extent::All] {
        let colored = in_style(&case, extent, Style { color: true, width: 100 });
        let row = |title: &str| colored.lines().find(|line| line.trim_start().starts_with(title)).unwrap();
        assert!(row("first touch: fault path").contains("\x1b[38;5;173m█"), "{colored}");
        assert!(row("first touch: zeroing").contains("\x1b[38;5;215m█"), "{colored}");
        assert!(!row("application").contains("\x1b[38"), "{colored}");
        assert!(!in_style(&case, extent, Style { color: false, width: 100 }).contains('\x1b'));
    }
}

#[test]
fn colour_adds_nothing_but_colour() {
    let of = |case: Case| [Extent::Brief, Extent::All].map(|extent| (case.clone(), extent));
    for (case, extent) in sketches::all().into_iter().flat_map(of) {
        let color = in_style(&case, extent, Style { color: true, width: 100 });
        assert!(color.contains("\x1b["));
        let mut stripped = String::new();
        let mut rest = color.as_str();
        while let Some(at) = rest.find("\x1b[") {
            stripped.push_str(&rest[..at]);
            rest = &rest[at + rest[at..].find('m').expect("SGR ends in m") + 1..];
        }
        stripped.push_str(rest);
        let lines = |s: &str| s.lines().map(|l| l.trim_end().to_string()).collect::<Vec<_>>();
        let plain = in_style(&case, extent, Style { color: false, width: 100 });
        assert_eq!(lines(&stripped), lines(&plain));
    }
}

/// Sum of the figures in the column, read back from the printed report.
fn printed_sum(page: &str) -> (f64, f64) {
    let bill = page.split("BILL").nth(1).unwrap().split("WAITS").next().unwrap();
    let share = |line: &str| -> Option<f64> {
        let before = line.split(" %").next()?;
        before.split_whitespace().last()?.parse().ok()
    };
    let rows: Vec<&str> = bill.lines().skip(1).take_while(|l| !l.trim_start().starts_with("total")).collect();
    let total = bill.lines().find(|l| l.trim_start().starts_with("total")).unwrap();
    // The share comes after the agreement with the kernel, which is a percentage too.
    let total = total.split(')').next_back().unwrap();
    (rows.iter().filter_map(|l| share(l)).sum(), share(total).unwrap())
}

#[test]
fn counted_faults_print_with_their_number_and_only_if_they_are_many() {
    let counted = |rate: f64, samples: u64| {
        let mut case = sketches::not_root();
        let one = |wall, owner, faults| Faulted {
            wall,
            basis: Basis::Number { faults },
            samples,
            known: faults as f64 / (faults as f64 + 1_000.0),
            owners: vec![OwnerShare { owner, share: Interval::exact(1.0) }],
        };
        let touches = one(Wall::FirstTouch, Owner::Arena, 6_000);
        case.bill.faulted = vec![touches, one(Wall::FileFault, Owner::File, 3_000)];
        case.bill.rates.minor_faults = Ok(rate);
        (case.bill.window_s, case.bill.cpu_s) = (10.0, 10.0);
        printed(&case, 100)
    };
    let page = counted(200_000.0, 500);
    let line = page.lines().find(|line| line.contains("200,000 a second")).expect(&page);
    assert!(line.ends_with("60 % malloc's arenas of threads, 30 % files, 10 % unknown"), "{line}");
    assert!(page.contains("share of the number of faults"));
    for page in [counted(20_000.0, 500), counted(200_000.0, 50)] {
        assert!(!page.contains("PAGE FAULTS"), "{page}");
    }
}

#[test]
fn first_touches_may_be_counted_beside_faults_that_are_sampled() {
    let page = |counted: bool| {
        let mut case = sketches::first_touch();
        let fork = Faulted { wall: Wall::Fork, ..case.bill.faulted[0].clone() };
        case.bill.faulted.push(fork);
        if counted {
            case.bill.faulted[0].basis = Basis::Number { faults: 9_000 };
            case.bill.rates.minor_faults = Ok(2_000_000.0);
        }
        printed(&case, 100)
    };
    let of_time = "share of the CPU time in these faults";
    let both = page(true);
    let (number, time) = both.split_once(of_time).expect(&both);
    assert!(number.contains("share of the number of faults") && number.contains("first touch   "), "{both}");
    assert!(time.contains("fork and copy-on-write") && !time.contains("PAGE FAULTS"), "{both}");
    // The near twin: all are sampled.
    let sampled = page(false);
    assert!(!sampled.contains("share of the number of faults"), "{sampled}");
    assert_eq!(sampled.matches("PAGE FAULTS").count(), 1, "{sampled}");
}

#[test]
fn unknown_owners_are_a_limit_if_they_are_many() {
    let limit = |known: f64, state: Option<ProbeState>| {
        let mut case = sketches::first_touch();
        case.bill.faulted[0].known = known;
        case.rec.probes.extend(state.map(|state| Probe::new(ProbeName::FaultOwners, state)));
        let page = printed(&case, 160);
        page.contains("owners of page faults (in part): the owner of 22 % of them is unknown")
    };
    assert!(limit(0.78, None) && limit(0.78, Some(ProbeState::Measured)));
    assert!(!limit(0.95, None));
    // It is said already.
    let why = Absence::new(Reason::TooCostly, "the owner of 22 of 100 sampled page faults is unknown");
    assert!(!limit(0.78, Some(ProbeState::Partial(why))));
}

#[test]
fn thirds_still_print_to_a_hundred() {
    let mut case = sketches::nothing_found();
    for line in case.bill.on_cpu.as_mut().unwrap() {
        line.share = Interval::new(0.0, 1.0 / 13.0, 0.2);
    }
    let (sum, total) = printed_sum(&printed(&case, 100));
    assert!((sum - 100.0).abs() < 1e-9 && total == 100.0, "{sum} {total}");
}

#[test]
fn hidden_kernel_lines_are_not_printed_as_zero() {
    let page = printed(&sketches::not_root(), 100);
    let zero = page.split("0.0 %: ").nth(1).unwrap().lines().next().unwrap();
    assert!(!zero.contains("fault path") && !zero.contains("zeroing"), "{zero}");
    assert!(page.contains("share unknown"));
    assert!(!printed(&sketches::nothing_found(), 100).contains("share unknown"));
}

#[test]
fn a_bill_that_is_absent_says_why() {
    let mut case = sketches::not_root();
    case.bill.on_cpu = Err(Absence::new(Reason::TooLittle, "12 samples").mend("diagnose for longer: -d 60"));
    let page = printed(&case, 100);
    assert!(page.contains(": 12 samples.") && page.contains("diagnose for"), "{page}");
}

#[test]
fn a_limit_that_hides_no_wall_names_what_its_probe_measures() {
    let mut case = sketches::nothing_found();
    case.verdict.findings.retain(|finding| finding.missing.is_none());
    let page = printed(&case, 100);
    assert!(page.contains("  1. cycles, dTLB and cache misses: no PMU: this hypervisor"), "{page}");
}

#[test]
fn functions_are_printed_without_arguments() {
    for (name, short) in [
        ("v8::Json::Parse(v8::Isolate*, bool (*)(int))", "v8::Json::Parse"),
        ("a::(anonymous namespace)::f(int) const", "a::(anonymous namespace)::f"),
        ("operator()(int)", "operator()"),
        ("f(int)::{lambda()#1}::operator()", "f(int)::{lambda()#1}::operator()"),
        ("f(int)::{closure}", "f(int)::{closure}"),
        ("core::ops::FnOnce::call_once", "core::ops::FnOnce::call_once"),
        ("(no symbol)", "(no symbol)"),
        ("odd)", "odd)"),
        ("", ""),
    ] {
        assert_eq!(without_arguments(name), short);
    }
}

#[test]
fn the_header_shows_the_process_that_used_most_cpu() {
    let page = |busiest: i32| {
        let mut case = sketches::first_touch();
        let python = &mut case.rec.processes[0];
        python.ppid = 4200;
        let shell = Process {
            pid: 4200,
            ppid: 1,
            comm: "sh".into(),
            cmdline: ["sh", "-c", "python3 -m service"].map(String::from).to_vec(),
            runtime: Ok(Runtime::Native),
            ..python.clone()
        };
        case.rec.processes.insert(0, shell);
        for thread in &mut case.rec.threads {
            thread.pid = busiest;
        }
        printed(&case, 100)
    };
    let child = page(4242);
    assert!(child.starts_with("allocwall  python3 -m service --port 8080\n"), "{child}");
    let facts = "  pid 4242, busiest of 2 processes, started by pid 4200 (sh) · CPython 3.11.2";
    assert!(child.contains(facts), "{child}");
    let shell = page(4200);
    assert!(shell.starts_with("allocwall  sh -c python3 -m service\n"), "{shell}");
    assert!(shell.contains("  pid 4200 · glibc 2.36"), "{shell}");
    assert!(shell.contains("2 processes") && !shell.contains("busiest"), "{shell}");
}

#[test]
fn generated_code_without_names_says_how_to_get_names() {
    let shown_inside = |pid_inside, runtime, role, share, ended| {
        let mut case = sketches::nothing_found();
        case.rec.processes[0].pid_inside = pid_inside;
        case.rec.processes[0].runtime = Ok(runtime);
        case.rec.processes[0].ended = ended;
        let path = "[generated code]".to_string();
        case.rec.modules = vec![Module {
            path: path.clone(),
            build_id: None,
            role,
            malloc_ranges: vec![],
            has_symbols: false,
        }];
        let line = &mut case.bill.on_cpu.as_mut().unwrap()[0];
        line.share = Interval::exact(share);
        line.sites = vec![Site {
            function: NO_SYMBOL.into(),
            module: path,
            python: None,
            share: 1.0,
            least: 0.99,
            path: vec![],
        }];
        on_one_line(&printed(&case, 100))
    };
    let shown = |runtime, role, share, ended| shown_inside(None, runtime, role, share, ended);
    let page = |runtime, role, share| shown(runtime, role, share, false);
    let jvm = || Runtime::Jvm { version: None };
    assert!(page(jvm(), ModuleRole::Jit, 0.5).contains("jcmd 4242 Compiler.perfmap"));
    assert!(shown(jvm(), ModuleRole::Jit, 0.5, true).contains("jcmd PID Compiler.perfmap"));
    assert!(page(Runtime::Node { version: None }, ModuleRole::Jit, 0.5).contains("--perf-basic-prof"));
    assert!(!page(jvm(), ModuleRole::Jit, 0.05).contains("perfmap"));
    assert!(!page(jvm(), ModuleRole::Libc, 0.5).contains("perfmap"));
    assert!(!page(Runtime::Native, ModuleRole::Jit, 0.5).contains("perf-"));
    // The path is that of its own file system and PID namespace.
    let alive = page(jvm(), ModuleRole::Jit, 0.5);
    assert!(alive.contains("/proc/4242/root/tmp/perf-4242.map does not exist"), "{alive}");
    let ended = shown(jvm(), ModuleRole::Jit, 0.5, true);
    assert!(ended.contains("process 4242 wrote no /tmp/perf-4242.map"), "{ended}");
    let contained = shown_inside(Some(7), jvm(), ModuleRole::Jit, 0.5, false);
    assert!(contained.contains("/proc/4242/root/tmp/perf-7.map does not exist"), "{contained}");
    assert!(contained.contains("jcmd 4242 Compiler.perfmap"), "{contained}");
}

#[test]
fn a_head_has_no_figure_that_was_not_read() {
    let mut case = sketches::nothing_found();
    assert!(!printed(&case, 200).contains("not read"));
    (case.bill.window_s, case.bill.rates.threads_peak, case.bill.rates.resident_end) = (0.005, 0, 0);
    let short = printed(&case, 200);
    assert!(short.contains("5 ms window ·"), "{short}");
    assert!(short.contains("threads not read · resident memory not read"), "{short}");
}

#[test]
fn thin_unwinding_is_a_limit() {
    // `cut` of a hundred stacks end after so many frames.
    let page = |cut: u64, frames: usize| {
        let mut case = sketches::nothing_found();
        let sample = case.rec.samples[0];
        let (whole, thin) = (Some(1), Some(3));
        case.rec.stacks[3].frames = vec![3; frames];
        case.rec.samples =
            (0..100).map(|n| CpuSample { user: if n < cut { thin } else { whole }, ..sample }).collect();
        printed(&case, 300)
    };
    let thin = page(30, 2);
    assert!(thin.contains("callers of 30 % of the samples are unknown, most often in python3.11"), "{thin}");
    assert!(thin.contains("-fno-omit-frame-pointer"), "{thin}");
    let words = thin.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("a function's frame is larger than the part of the stack"), "{thin}");
    assert!(!page(5, 2).contains("callers of"));
    // A stack that is longer than its copy is no fault of the program's tables.
    assert!(!page(30, 60).contains("callers of"));
}

#[test]
fn interpreted_time_without_python_functions_is_a_limit() {
    let page = |python: Option<&str>, probe: Option<ProbeState>| {
        let mut case = sketches::nothing_found();
        case.rec.probes.extend(probe.map(|state| Probe::new(ProbeName::PythonStacks, state)));
        case.bill.on_cpu.as_mut().unwrap()[0].sites = vec![Site {
            function: "dict_new".into(),
            module: "/usr/bin/python3.11".into(),
            python: python.map(String::from),
            share: 1.0,
            least: 0.99,
            path: vec![],
        }];
        printed(&case, 300)
    };
    const FEW: &str = "too few Python stacks";
    assert!(page(None, None).contains(FEW));
    assert!(!page(Some("handle (a.py:1)"), None).contains(FEW));
    // The reason why they could not be read stands for itself.
    let absence = Absence::new(Reason::NotPermitted, "not readable");
    let unread = page(None, Some(ProbeState::Absent(absence)));
    assert!(!unread.contains(FEW) && unread.contains("Python function names: not readable"), "{unread}");
}

fn account(pid: i32) -> RuntimeAccount {
    let sampled = Interval::new(1.15e9, 1.17e9, 1.19e9);
    RuntimeAccount {
        pid,
        method: "the collector's flag".into(),
        over_ns: 2_000_000_000,
        stopped_ns: Ok(Figure { value: sampled, sampled: true }),
        collections: Ok(2468),
        collector_cpu_ns: Ok(Figure { value: Interval::new(1e9, 1.5e9, 2e9), sampled: false }),
        allocated_bytes: Ok(Figure { value: Interval::exact((300 << 20) as f64), sampled: false }),
    }
}

#[test]
fn the_figures_of_a_runtime_have_their_origin() {
    let mut case = sketches::first_touch();
    let pid = case.rec.processes[0].pid;
    assert!(!printed(&case, 100).contains("RUNTIME"));
    case.rec.accounts = vec![account(pid)];
    let page = printed(&case, 100);
    let section = page.split("\n\n").find(|section| section.starts_with("RUNTIME")).unwrap();
    let expected = "\
RUNTIME  what CPython, the JVM or Go count themselves
  pid 4242 · CPython 3.11.2 · read for 2.0 s · the collector's flag
    threads stopped by the collector  58.5 % of the time (sampled; 95 % interval 57.5 to 59.5 %)
    collections                       1234.0 a second, 2,468 in total (from counters)
    CPU time of the collector         between 1.00 and 2.00 CPU-s (from counters)
    allocation                        150.0 MiB/s (from counters)";
    assert_eq!(section, expected);
    case.rec.accounts = vec![account(pid); 6];
    let more = printed(&case, 100);
    assert_eq!(more.matches("150.0 MiB/s").count(), RUNTIMES_SHOWN);
    assert!(more.contains("2 more accounts"), "{more}");
}

#[test]
fn what_a_runtime_does_not_show_is_a_limit() {
    let mut case = sketches::first_touch();
    let pid = case.rec.processes[0].pid;
    let absence = Absence::new(Reason::Disabled, "no counters in this JVM").mend("start it with counters");
    let without = RuntimeAccount { allocated_bytes: Err(absence.clone()), ..account(pid) };
    case.rec.accounts = vec![without.clone()];
    let page = printed(&case, 100);
    assert!(page.contains("    not measured (see LIMITS): allocation\n"), "{page}");
    assert!(page.contains("allocation: no counters in this JVM → start it with counters"), "{page}");
    case.rec.accounts = vec![RuntimeAccount {
        stopped_ns: Err(absence.clone()),
        collections: Err(absence.clone()),
        collector_cpu_ns: Err(absence),
        ..without
    }];
    let page = printed(&case, 100);
    assert!(!page.contains("RUNTIME"), "{page}");
    assert!(on_one_line(&page).contains("stopped by the collector, collections, CPU time"), "{page}");
    case.rec.processes[0].runtime = Ok(Runtime::Node { version: None });
    let page = printed(&case, 100);
    assert!(page.contains("pauses and allocation rate of V8: not readable from outside"), "{page}");
}

#[test]
fn resident_memory_is_a_section_or_a_limit() {
    let mut case = sketches::first_touch();
    // A sketch has no memory: that is no limit of a run.
    assert!(!printed(&case, 100).contains("MEMORY"));
    assert!(!printed(&case, 100).contains("resident memory by owner"));
    case.rec.resident = Ok(TargetMemory { bills: vec![memory_text::tests::bill()], others: 0, unread: None });
    let page = printed(&case, 100);
    let sections: Vec<&str> = page.split("\n\n").collect();
    let at = |title: &str| sections.iter().position(|section| section.starts_with(title)).expect(title);
    assert_eq!(at("MEMORY"), at("WAITS") + 1, "{page}");
    assert!(sections[at("MEMORY")].contains("main heap (brk)"), "{page}");
    case.rec.resident = Err(Absence::new(Reason::TooCostly, "no time").mend("read it alone"));
    let page = printed(&case, 100);
    assert!(!page.contains("MEMORY"), "{page}");
    assert!(page.contains("resident memory by owner: no time → read it alone"), "{page}");
}

#[test]
fn a_remedy_shows_what_it_returns() {
    let mut case = sketches::first_touch();
    let mut first = |key: &str, returns_bytes| {
        let remedy = &mut case.verdict.remedies[0];
        (remedy.remedy, remedy.gain, remedy.at_most) = (key.into(), None, None);
        remedy.returns_bytes = returns_bytes;
        let page = printed(&case, 100);
        let (_, remedies) = page.split_once("REMEDIES").expect("remedies");
        remedies.split_once(" · ").expect("the first one").0.to_owned()
    };
    let trim = "malloc-trim";
    assert!(first(trim, Some(5 << 20)).ends_with("returns at most 5.0 MiB"));
    assert!(first(trim, None).ends_with("saves memory, not CPU"));
    assert!(first("nice", None).ends_with("saves time, not CPU"));
    // Another allocator changes CPU time too.
    let swap = first("jemalloc", Some(5 << 20));
    let test = "returns at most 5.0 MiB; gain unknown: test it with `allocwall trial --with jemalloc`";
    assert!(swap.ends_with(test), "{swap}");
}

#[test]
fn a_saving_of_nothing_is_one_of_memory_only_where_memory_is_the_wall() {
    let mut remedy = sketches::first_touch().verdict.remedies.swap_remove(0);
    (remedy.gain, remedy.at_most, remedy.returns_bytes) = (None, Some(0.001), None);
    let shown = |remedy: &Prescription, key| saved(remedy, find(key));
    assert_eq!(shown(&remedy, "jemalloc-decay"), "saves memory, almost no CPU");
    assert_eq!(shown(&remedy, "thp-always"), "saves almost no CPU");
    remedy.gain = Some(Interval::new(-0.001, 0.001, 0.002));
    assert_eq!(shown(&remedy, "thp-always"), "saves almost no CPU");
    remedy.gain = Some(Interval::new(0.0, 0.01, 0.02));
    assert_eq!(shown(&remedy, "thp-always"), "saves 0 to 2 % of CPU");
}

#[test]
fn the_columns_of_the_ladder_do_not_depend_on_the_wall() {
    let mut case = sketches::first_touch();
    case.verdict.findings[0].wall = Wall::Fork;
    let page = printed(&case, 100);
    let ladder = page.split("\n\n").find(|section| section.starts_with("LADDER")).expect("a ladder");
    let at: Vec<usize> = ladder.lines().filter_map(|line| line.find("ruled out")).collect();
    assert!(at.len() > 3 && at.iter().all(|column| *column == at[0]), "{ladder}");
}

#[test]
fn hostile_names_reach_no_terminal() {
    let mut case = sketches::first_touch();
    hostile(&mut case, "x\u{1b}[2J\u{202e}\n\u{9b}31m");
    for page in [printed(&case, 100), briefly(&case, 100)] {
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
        assert!(!page.contains('\u{202e}'));
        assert!(page.contains("\\u{1b}[2J"));
    }
}

/// Puts `name` in every place where a name from outside can be.
fn hostile(case: &mut Case, name: &str) {
    let process = &mut case.rec.processes[0];
    process.cmdline = vec![name.into(), name.into()];
    process.libc = Ok(Libc::Other { name: name.into() });
    process.allocator.as_mut().unwrap().kind = AllocatorKind::Other;
    process.allocator.as_mut().unwrap().module = name.into();
    process.runtime = Ok(Runtime::Jvm { version: Some(name.into()) });
    case.rec.host.kernel_release = name.into();
    case.rec.host.hypervisor = Some(name.into());
    case.rec.probes[0].what = name.into();
    case.rec.probes[0].state =
        ProbeState::Partial(Absence::new(Reason::NotFound, name).mend(name.to_owned()));
    case.rec.meta.ended = Ended::TargetExited { status: Some(name.into()) };
    for line in case.bill.on_cpu.as_mut().unwrap() {
        line.method = name.into();
        line.notes = vec![name.into()];
        for site in &mut line.sites {
            site.function = name.into();
            site.module = name.into();
            site.python = site.python.as_ref().map(|_| name.into());
            site.path = vec![name.into(), name.into()];
        }
    }
    case.verdict.sentence = name.into();
    for finding in &mut case.verdict.findings {
        finding.because = name.into();
        finding.evidence = vec![name.into()];
        finding.show = name.into();
    }
    for remedy in &mut case.verdict.remedies {
        remedy.title = name.into();
        remedy.how.command = name.into();
        remedy.backfires = name.into();
    }
    case.verdict.next = vec![name.into()];
    let mut memory = memory_text::tests::bill();
    (memory.comm, memory.cmdline, memory.notes) = (name.into(), vec![name.into()], vec![name.into()]);
    memory.group = Ok(GroupMemory { path: name.into(), kernel_bytes: 1, page_cache_bytes: 2 });
    for row in &mut memory.rows {
        row.split = row.split.clone().map(|split| Split { method: name.into(), ..split });
    }
    case.rec.resident = Ok(TargetMemory { bills: vec![memory], others: 7, unread: None });
    case.rec.accounts = vec![RuntimeAccount {
        method: name.into(),
        allocated_bytes: Err(Absence::new(Reason::NotSupported, name)),
        ..account(case.rec.processes[0].pid)
    }];
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_line_is_wider_than_the_page(name in "\\PC{0,60}|[a-z]{1,300}|[\\x00-\\x1f a]{0,30}", width in 40usize..140, color: bool) {
        for mut case in sketches::all() {
            hostile(&mut case, &name);
            for extent in [Extent::Brief, Extent::All] {
                let page = in_style(&case, extent, Style { color: false, width });
                for line in page.lines() {
                    prop_assert!(columns(line) <= width, "{} columns of {width}: {line:?}", columns(line));
                }
                if color {
                    in_style(&case, extent, Style { color: true, width });
                }
            }
        }
    }

    #[test]
    fn printed_shares_sum_to_a_hundred(parts in prop::collection::vec(0.0..1.0f64, 13)) {
        let whole: f64 = parts.iter().sum();
        prop_assume!(whole > 0.1);
        let mut case = sketches::first_touch();
        for (line, part) in case.bill.on_cpu.as_mut().unwrap().iter_mut().zip(&parts) {
            line.share = Interval::exact(part / whole);
        }
        for page in [printed(&case, 100), briefly(&case, 100)] {
            let (sum, total) = printed_sum(&page);
            prop_assert!((sum - 100.0).abs() < 1e-6 && total == 100.0, "{sum} {total}");
        }
    }
}

#[test]
fn a_long_title_of_a_remedy_is_shortened_and_its_gain_is_not() {
    let named = |title: &str, width: usize| {
        let mut case = sketches::first_touch();
        case.verdict.remedies[1].title = title.to_owned();
        let page = briefly(&case, width);
        page.split("\nOR ").nth(1).unwrap().lines().next().unwrap().trim().to_owned()
    };
    let long = "long words ".repeat(20);
    let short = named(&long, 100);
    assert!(short.contains("… · saves 28 to 44 % of CPU") && columns(&short) <= 100 - 13, "{short}");
    assert!(columns(&named(&long, 140)) > columns(&short));
    // The near twin fits.
    assert!(named("Huge pages", 100).ends_with(": Huge pages · saves 28 to 44 % of CPU"));
}

#[test]
fn a_long_reason_is_wrapped_and_a_short_one_has_its_advice() {
    let page = |detail: &str| {
        let mut case = sketches::nothing_found();
        let absence = Absence::new(Reason::NotFound, detail).mend("build it again");
        case.rec.probes = vec![Probe::new(ProbeName::Smaps, ProbeState::Absent(absence))];
        case.verdict.findings.iter_mut().for_each(|finding| finding.missing = None);
        on_one_line(&briefly(&case, 100))
    };
    let long = format!("{}the last word", "a reason of many words ".repeat(6));
    assert!(page(&long).contains(&long) && !page(&long).contains('…'), "{}", page(&long));
    assert!(page("a reason").contains("a reason → build it again"), "{}", page("a reason"));
    // It has a limit all the same.
    assert!(page(&"many words ".repeat(100)).contains('…'));
}
