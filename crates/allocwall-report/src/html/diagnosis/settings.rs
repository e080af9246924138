//! The exact settings: the target, the host, and how it was recorded.

use super::{Case, short};
use crate::html::page::{Section, facts, table};
use crate::recordings::utc;
use crate::text::{bytes, verdict as text};
use allocwall_diagnose::main_process;
use allocwall_model::catalogue::prices::describe;
use allocwall_model::recording::{Process, Recording};
use allocwall_model::shell::quoted;
use allocwall_model::units::{Measured, thousands};
use maud::{Markup, html};
use std::fmt::Display;

/// Processes, variables and prices that are listed.
const LISTED: usize = 40;
/// Columns of a value.
const VALUE: usize = 1000;

pub(super) fn section(case: &Case) -> Section {
    let Case { rec, .. } = case;
    let body = html! {
        h3 { "Target" }
        @if let Some(process) = main_process(rec) { (target(rec, process)) }
        @if rec.processes.len() > 1 { (processes(rec)) }
        h3 { "Host" }
        (host(rec))
        h3 { "Recording" }
        (recording(case))
        (prices(rec))
    };
    let aside = "what was measured, on which machine, and how";
    Section { id: "settings", title: "Settings and host", aside: aside.into(), body }
}

fn text(value: impl Display) -> Markup {
    html! { (short(&value.to_string(), VALUE)) }
}

fn measured<T: Display>(value: &Measured<T>) -> Markup {
    match value {
        Ok(value) => text(value),
        Err(absence) => html! { span.absent { "not measured: " (absence.with_advice()) } },
    }
}

fn yes(value: &Measured<bool>) -> Markup {
    measured(&value.as_ref().map(|yes| if *yes { "yes" } else { "no" }).map_err(Clone::clone))
}

fn target(rec: &Recording, process: &Process) -> Markup {
    let environment = process.environment.iter().take(LISTED);
    let mut rows = vec![
        ("command", html! { code { (short(&text::command(process), VALUE)) } }),
        ("pid", text(process.pid)),
        ("program", measured(&process.exe)),
        ("runtime", text(text::runtime(process).unwrap_or_else(|| "native".into()))),
        ("C library", text(text::libc(process).unwrap_or_default())),
        ("allocator", text(text::allocator(process))),
        ("transparent huge pages disabled", yes(&process.thp_disabled)),
        ("settings ignored by the loader (setuid)", yes(&process.secure_exec)),
        ("cgroup", text(rec.cgroup.as_deref().unwrap_or("none"))),
    ];
    rows.extend(
        environment.map(|(name, value)| {
            ("environment", html! { code { (short(&format!("{name}={value}"), VALUE)) } })
        }),
    );
    if process.environment.is_empty() {
        rows.push(("environment", text("no settings of allocators or runtimes")));
    }
    facts(rows)
}

fn processes(rec: &Recording) -> Markup {
    let rows = rec.processes.iter().take(LISTED).map(|process| {
        (
            html! { (process.pid) },
            vec![html! { code { (short(&text::command(process), VALUE / 10)) } }, html! { (process.ppid) }],
        )
    });
    let more = rec.processes.len().saturating_sub(LISTED);
    html! {
        details {
            summary { (thousands(rec.processes.len() as u64)) " processes" }
            (table("Processes of the target", &["pid", "command", "started by"], rows))
            @if more > 0 { p.note { (thousands(more as u64)) " more: see processes with --json" } }
        }
    }
}

fn host(rec: &Recording) -> Markup {
    let host = &rec.host;
    facts(vec![
        ("kernel", text(&host.kernel_release)),
        ("processor", text(format!("{} ({})", host.cpu_model, host.architecture))),
        ("CPUs", text(host.online_cpus)),
        ("NUMA nodes", text(host.numa_nodes)),
        (
            "memory",
            text(match host.memory_bytes {
                0 => "not measured: /proc/meminfo could not be read".into(),
                n => bytes(n),
            }),
        ),
        ("page", text(bytes(host.page_bytes))),
        ("hypervisor", text(host.hypervisor.as_deref().unwrap_or("none"))),
        ("container", text(host.container.as_deref().unwrap_or("none"))),
        ("the host may reclaim idle memory", yes(&host.free_page_reporting)),
        ("transparent huge pages", measured(&host.thp_enabled)),
        ("their defragmentation", measured(&host.thp_defrag)),
        ("reserved huge pages", text(format!("{}, {} free", host.hugepages_total, host.hugepages_free))),
        ("cgroup version", measured(&host.cgroup_version)),
        ("perf_event_paranoid", measured(&host.perf_event_paranoid)),
        ("kptr_restrict", measured(&host.kptr_restrict)),
        ("hardware counters", measured(&host.pmu.as_ref().map(|()| "yes").map_err(Clone::clone))),
        (
            "user of allocwall",
            text(match host.euid {
                0 => "root".into(),
                id => format!("uid {id}"),
            }),
        ),
    ])
}

fn recording(case: &Case) -> Markup {
    let meta = &case.rec.meta;
    let rate = |period_ns: u64| 1e9 / period_ns.max(1) as f64;
    let yes = |yes: bool| text(if yes { "yes" } else { "no" });
    let mut rows = vec![
        ("allocwall", text(&meta.tool_version)),
        ("started", text(utc(meta.started_unix_ms / 1000))),
        (
            "window",
            text(format!("{:.1} s of {:.1} s", meta.window_ns as f64 / 1e9, meta.requested_ns as f64 / 1e9)),
        ),
        ("samples", text(thousands(case.rec.samples.len() as u64))),
        ("rate", text(format!("{:.0} samples per CPU-second", rate(meta.sample_period_ns)))),
        ("samples of waits", text(format!("each thread {:.0} times a second", rate(meta.wait_period_ns)))),
        ("kernel stacks", yes(meta.kernel_samples)),
        ("all CPUs of the machine", yes(meta.system_wide)),
        ("lost records", text(thousands(meta.lost_records))),
    ];
    if let Some(command) = &meta.command {
        let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
        rows.push(("started command", html! { code { (short(&words.join(" "), VALUE)) } }));
    }
    if let Some(file) = case.file {
        rows.push(("again", html! { code { "allocwall report " (quoted(file)) " --all" } }));
    }
    facts(rows)
}

/// What one event costs on this machine.
fn prices(rec: &Recording) -> Markup {
    let Ok(list) = &rec.prices else { return html! {} };
    let rows = list.prices.iter().take(LISTED).map(|price| {
        let ns = price.ns;
        let cells = vec![
            html! { (format!("{:.1} ns", ns.point)) },
            html! { (format!("{:.1} to {:.1}", ns.low, ns.high)) },
        ];
        let title = describe(&price.name)
            .map_or(price.name.clone(), |(group, title)| format!("{}: {title}", group.group.title()));
        (text(title), cells)
    });
    html! {
        details {
            summary { "Prices of this machine" }
            (table("Prices of this machine", &["event", "cost", "95 % interval"], rows))
        }
    }
}
