//! Tables of a recording for notebooks and spreadsheets: one definition feeds CSV and Parquet. docs/formats.md describes every column; a
//! test compares the two.
//!
//! What was not measured is absent: an empty cell, a null. Figures of the text report are rounded, these are not.

pub mod csv;
pub mod parquet;

use super::collapsed::{Level, Names, Place};
use super::escape::terminal;
use allocwall_diagnose::bill::{Bill, Classified};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::recording::{
    CgroupTick, CpuSample, FaultSlice, HostTick, OwnerFaults, Recording, Smaps, Tick, gained,
};
use allocwall_model::units::{Absence, Interval, Measured, Reason};

/// A longer text is cut: a recording has a name once, a table may have it in each row.
const LONGEST_TEXT: usize = 200;

pub struct Table {
    pub columns: Vec<Column>,
    /// Each column has so many cells.
    pub rows: usize,
}

pub struct Column {
    pub name: &'static str,
    /// `s`, `ns`, `bytes`, `ratio`, `count`, or nothing for texts and numbers that name something.
    pub unit: &'static str,
    pub cells: Cells,
}

pub enum Cells {
    Whole(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    Text(Vec<Option<String>>),
}

/// How a cell is read from a row.
enum Read<R> {
    Whole(fn(&R) -> Option<i64>),
    Real(fn(&R) -> Option<f64>),
    Text(fn(&R) -> Option<String>),
}

/// Name, unit, cell.
type Spec<R> = (&'static str, &'static str, Read<R>);

fn table<R>(rows: &[R], specs: &[Spec<R>]) -> Table {
    let column = |(name, unit, read): &Spec<R>| Column {
        name,
        unit,
        cells: match read {
            Read::Whole(read) => Cells::Whole(rows.iter().map(read).collect()),
            Read::Real(read) => {
                Cells::Real(rows.iter().map(|row| read(row).filter(|v| v.is_finite())).collect())
            }
            Read::Text(read) => {
                Cells::Text(rows.iter().map(|row| read(row).map(|text| shortened(&text))).collect())
            }
        },
    };
    Table { columns: specs.iter().map(column).collect(), rows: rows.len() }
}

fn shortened(text: &str) -> String {
    let text = terminal(text);
    match text.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn whole(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

fn seconds(ns: u64) -> Option<f64> {
    Some(ns as f64 / 1e9)
}

struct BillRow {
    kind: &'static str,
    line: &'static str,
    title: &'static str,
    seconds: Measured<Interval>,
    share: Option<Interval>,
    samples: Option<u64>,
    method: Option<String>,
}

impl BillRow {
    fn seconds(&self) -> Option<&Interval> {
        self.seconds.as_ref().ok()
    }
}

/// The lines of CPU time, then those of waiting time.
pub fn bill(bill: &Bill) -> Table {
    let cpu = CostClass::ALL.into_iter().enumerate().map(|(at, class)| {
        let line = bill.on_cpu.as_ref().map(|lines| lines.get(at).filter(|line| line.class == class));
        let known = line.as_ref().ok().copied().flatten();
        let missing = || Absence::new(Reason::TooLittle, "no such line");
        BillRow {
            kind: "cpu",
            line: class.key(),
            title: class.title(),
            seconds: line.map_err(Clone::clone).and_then(|line| line.map(|l| l.cpu_s).ok_or_else(missing)),
            share: known.map(|line| line.share),
            samples: known.map(|line| line.samples),
            method: known.map(|line| line.method.clone()),
        }
    });
    let waits = bill.off_cpu.iter().map(|line| BillRow {
        kind: "wait",
        line: line.class.key(),
        title: line.class.title(),
        seconds: line.thread_s.clone(),
        share: None,
        samples: None,
        method: Some(line.method.clone()),
    });
    let specs: &[Spec<BillRow>] = &[
        ("kind", "", Read::Text(|r| Some(r.kind.into()))),
        ("line", "", Read::Text(|r| Some(r.line.into()))),
        ("title", "", Read::Text(|r| Some(r.title.into()))),
        ("seconds", "s", Read::Real(|r| Some(r.seconds()?.point))),
        ("seconds_low", "s", Read::Real(|r| Some(r.seconds()?.low))),
        ("seconds_high", "s", Read::Real(|r| Some(r.seconds()?.high))),
        ("share", "ratio", Read::Real(|r| Some(r.share?.point))),
        ("share_low", "ratio", Read::Real(|r| Some(r.share?.low))),
        ("share_high", "ratio", Read::Real(|r| Some(r.share?.high))),
        ("samples", "count", Read::Whole(|r| whole(r.samples?))),
        ("method", "", Read::Text(|r| r.method.clone())),
        ("absent", "", Read::Text(|r| r.seconds.as_ref().err().map(ToString::to_string))),
    ];
    table(&cpu.chain(waits).collect::<Vec<_>>(), specs)
}

struct TickRow<'a> {
    before: Option<&'a Tick>,
    now: &'a Tick,
}

impl TickRow<'_> {
    /// The growth of a cumulative counter since the row before.
    fn gained(&self, read: impl Fn(&Tick) -> Option<u64>) -> Option<u64> {
        gained(read(self.before?)?, read(self.now)?)
    }

    fn count(&self, read: impl Fn(&Tick) -> Option<u64>) -> Option<i64> {
        whole(self.gained(read)?)
    }

    fn time(&self, read: impl Fn(&Tick) -> Option<u64>) -> Option<f64> {
        seconds(self.gained(read)?)
    }

    fn host(&self, read: fn(&HostTick) -> Option<u64>) -> Option<u64> {
        self.gained(|t| read(t.host.as_ref()?))
    }

    fn cgroup(&self, read: fn(&CgroupTick) -> u64) -> Option<u64> {
        self.gained(|t| Some(read(t.cgroup.as_ref()?)))
    }

    fn smaps(&self, read: fn(&Smaps) -> u64) -> Option<i64> {
        whole(read(self.now.smaps.as_ref()?))
    }
}

/// One row for each reading of the counters. Cumulative ones as the growth since the reading before.
///
/// # Errors
/// There was no reading.
pub fn series(rec: &Recording) -> Measured<Table> {
    if rec.ticks.is_empty() {
        return Err(Absence::new(
            Reason::TooLittle,
            "the recording has no readings of the process counters: --table series",
        ));
    }
    let before = [None].into_iter().chain(rec.ticks.iter().map(Some));
    let rows: Vec<TickRow> = before.zip(&rec.ticks).map(|(before, now)| TickRow { before, now }).collect();
    let specs: &[Spec<TickRow>] = &[
        ("t_s", "s", Read::Real(|r| seconds(r.now.t_ns))),
        ("over_s", "s", Read::Real(|r| r.time(|t| Some(t.t_ns)))),
        ("cpu_user_s", "s", Read::Real(|r| r.time(|t| Some(t.user_ns)))),
        ("cpu_system_s", "s", Read::Real(|r| r.time(|t| Some(t.system_ns)))),
        ("minor_faults", "count", Read::Whole(|r| r.count(|t| Some(t.minor_faults)))),
        ("major_faults", "count", Read::Whole(|r| r.count(|t| Some(t.major_faults)))),
        ("voluntary_switches", "count", Read::Whole(|r| r.count(|t| t.voluntary_switches))),
        ("involuntary_switches", "count", Read::Whole(|r| r.count(|t| t.involuntary_switches))),
        ("threads", "count", Read::Whole(|r| Some(r.now.threads.into()))),
        ("resident_bytes", "bytes", Read::Whole(|r| whole(r.now.resident))),
        ("anonymous_bytes", "bytes", Read::Whole(|r| whole(r.now.anonymous?))),
        ("data_bytes", "bytes", Read::Whole(|r| whole(r.now.vm_data?))),
        ("virtual_bytes", "bytes", Read::Whole(|r| whole(r.now.vm_size))),
        ("smaps_rss_bytes", "bytes", Read::Whole(|r| r.smaps(|s| s.rss))),
        ("smaps_pss_bytes", "bytes", Read::Whole(|r| r.smaps(|s| s.pss))),
        ("smaps_anonymous_bytes", "bytes", Read::Whole(|r| r.smaps(|s| s.anonymous))),
        ("smaps_lazy_free_bytes", "bytes", Read::Whole(|r| r.smaps(|s| s.lazy_free))),
        ("smaps_anon_huge_bytes", "bytes", Read::Whole(|r| r.smaps(|s| s.anon_huge))),
        ("smaps_hugetlb_bytes", "bytes", Read::Whole(|r| r.smaps(|s| s.hugetlb))),
        ("smaps_swap_bytes", "bytes", Read::Whole(|r| r.smaps(|s| s.swap))),
        ("cgroup_periods", "count", Read::Whole(|r| whole(r.cgroup(|c| c.periods)?))),
        ("cgroup_throttled_periods", "count", Read::Whole(|r| whole(r.cgroup(|c| c.throttled_periods)?))),
        ("cgroup_throttled_s", "s", Read::Real(|r| seconds(r.cgroup(|c| c.throttled_ns)?))),
        ("cgroup_quota_cpus", "count", Read::Real(|r| r.now.cgroup?.quota_cpus)),
        ("cgroup_memory_bytes", "bytes", Read::Whole(|r| whole(r.now.cgroup?.memory?))),
        ("cgroup_memory_limit_bytes", "bytes", Read::Whole(|r| whole(r.now.cgroup?.memory_limit?))),
        ("host_busy_s", "s", Read::Real(|r| seconds(r.host(|h| Some(h.busy_ns))?))),
        ("host_idle_s", "s", Read::Real(|r| seconds(r.host(|h| Some(h.idle_ns))?))),
        ("host_iowait_s", "s", Read::Real(|r| seconds(r.host(|h| Some(h.iowait_ns))?))),
        ("host_steal_s", "s", Read::Real(|r| seconds(r.host(|h| Some(h.steal_ns))?))),
        ("host_psi_cpu_s", "s", Read::Real(|r| Some(r.host(|h| h.psi_cpu_us)? as f64 / 1e6))),
        ("host_psi_memory_s", "s", Read::Real(|r| Some(r.host(|h| h.psi_memory_us)? as f64 / 1e6))),
        ("host_psi_io_s", "s", Read::Real(|r| Some(r.host(|h| h.psi_io_us)? as f64 / 1e6))),
    ];
    Ok(table(&rows, specs))
}

/// One row for each owner in each slice of the window.
///
/// # Errors
/// The faults were not counted by owner.
pub fn faults(rec: &Recording) -> Measured<Table> {
    if rec.fault_slices.is_empty() {
        let why = match rec.samples.iter().any(|sample| sample.faulted.is_some()) {
            true => "the faults have their owners in the samples: --table samples, column fault_owner",
            false => "the recording has no page faults by owner: --table faults",
        };
        return Err(Absence::new(Reason::NotFound, why));
    }
    let of_slice = |slice| move |owner| (slice, owner);
    let rows: Vec<(&FaultSlice, &OwnerFaults)> =
        rec.fault_slices.iter().flat_map(|slice| slice.owners.iter().map(of_slice(slice))).collect();
    let specs: &[Spec<(&FaultSlice, &OwnerFaults)>] = &[
        ("t_s", "s", Read::Real(|r| seconds(r.0.t_ns))),
        ("over_s", "s", Read::Real(|r| seconds(r.0.over_ns))),
        ("owner", "", Read::Text(|r| Some(r.1.owner.key().into()))),
        ("faults", "count", Read::Whole(|r| Some(r.1.faults.into()))),
        ("samples", "count", Read::Whole(|r| Some(r.1.samples.into()))),
    ];
    Ok(table(&rows, specs))
}

struct SampleRow<'a> {
    rec: &'a Recording,
    names: &'a Names<'a>,
    sample: &'a CpuSample,
    class: CostClass,
}

impl<'a> SampleRow<'a> {
    /// The frame in which the CPU was.
    fn leaf(&self) -> Level<'a> {
        let CpuSample { pid, tid, kernel, user, .. } = *self.sample;
        let place: Place = (pid, tid, kernel, user, None);
        self.names.levels(place)[0]
    }

    fn module(&self) -> Option<String> {
        let (Level::Kernel(frame) | Level::User(frame)) = self.leaf() else { return None };
        let module = super::collapsed::module(self.rec, self.rec.frames.get(frame as usize)?)?;
        Some(module.path.clone())
    }
}

/// One row for each CPU sample, in the order of the recording.
///
/// # Errors
/// The recording has no samples.
pub fn samples(rec: &Recording) -> Measured<Table> {
    if rec.samples.is_empty() {
        return Err(super::flamegraph::no_samples());
    }
    let names = &Names::of(rec);
    let classes = Classified::of(rec).classes;
    let rows: Vec<SampleRow> = rec
        .samples
        .iter()
        .zip(classes)
        .map(|(sample, class)| SampleRow { rec, names, sample, class })
        .collect();
    let specs: &[Spec<SampleRow>] = &[
        ("t_s", "s", Read::Real(|r| seconds(r.sample.t_ns))),
        ("cpu_s", "s", Read::Real(|r| seconds(r.rec.meta.sample_period_ns))),
        ("pid", "", Read::Whole(|r| Some(r.sample.pid.into()))),
        ("tid", "", Read::Whole(|r| Some(r.sample.tid.into()))),
        ("cpu", "", Read::Whole(|r| Some(r.sample.cpu.into()))),
        ("process", "", Read::Text(|r| Some(r.names.process(r.sample.pid)))),
        ("thread", "", Read::Text(|r| Some(r.names.thread(r.sample.pid, r.sample.tid)))),
        ("line", "", Read::Text(|r| Some(r.class.key().into()))),
        ("function", "", Read::Text(|r| Some(r.names.name(r.leaf()).into_owned()))),
        ("module", "", Read::Text(SampleRow::module)),
        ("fault_owner", "", Read::Text(|r| Some(r.sample.faulted?.key().into()))),
    ];
    Ok(table(&rows, specs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketches;
    use allocwall_model::recording::Owner;

    pub(super) fn all() -> Vec<(&'static str, Table)> {
        let case = sketches::first_touch();
        let mut rec = case.rec;
        let tick = |t_ns, user_ns, resident| Tick { t_ns, user_ns, resident, ..Tick::default() };
        rec.ticks = vec![tick(0, 5, 100), tick(500_000_000, 300_000_005, 200), tick(1_000_000_000, 0, 50)];
        let owners = vec![OwnerFaults { owner: Owner::Heap, samples: 3, faults: 700 }];
        rec.fault_slices = vec![FaultSlice { t_ns: 0, over_ns: 500_000_000, owners }];
        vec![
            ("bill", bill(&case.bill)),
            ("series", series(&rec).unwrap()),
            ("faults", faults(&rec).unwrap()),
            ("samples", samples(&rec).unwrap()),
        ]
    }

    fn column<'a>(table: &'a Table, name: &str) -> &'a Cells {
        &table.columns.iter().find(|column| column.name == name).unwrap().cells
    }

    #[test]
    fn the_page_names_the_columns_in_their_order() {
        let page = include_str!("../../../../docs/formats.md");
        for (name, table) in all() {
            let section =
                page.split(&format!("\n### `{name}`\n")).nth(1).expect("a section").split("\n#").next();
            let named: Vec<(&str, &str)> = section
                .unwrap()
                .lines()
                .filter_map(|line| {
                    let mut cells = line.strip_prefix("| `")?.split('|');
                    Some((cells.next()?.trim().trim_end_matches('`'), cells.next()?.trim()))
                })
                .collect();
            let columns: Vec<_> = table.columns.iter().map(|column| (column.name, column.unit)).collect();
            assert_eq!(named, columns, "{name}");
        }
    }

    #[test]
    fn every_column_has_every_row() {
        for (name, table) in all() {
            assert!(table.rows > 0);
            for column in &table.columns {
                let cells = match &column.cells {
                    Cells::Whole(cells) => cells.len(),
                    Cells::Real(cells) => cells.len(),
                    Cells::Text(cells) => cells.len(),
                };
                assert_eq!(cells, table.rows, "{name}: {}", column.name);
            }
        }
    }

    #[test]
    fn counters_are_differences_and_what_is_absent_is_absent() {
        let series = &all()[1].1;
        let Cells::Real(cpu) = column(series, "cpu_user_s") else { panic!("seconds") };
        // The first row has no row before it; a counter that ran backwards says nothing.
        assert_eq!(cpu, &[None, Some(0.3), None]);
        let Cells::Whole(resident) = column(series, "resident_bytes") else { panic!("bytes") };
        assert_eq!(resident, &[Some(100), Some(200), Some(50)]);
        let Cells::Whole(smaps) = column(series, "smaps_rss_bytes") else { panic!("bytes") };
        assert_eq!(smaps, &[None, None, None]);
    }

    #[test]
    fn a_bill_without_samples_keeps_its_lines_and_their_reason() {
        let mut case = sketches::first_touch();
        case.bill.on_cpu = Err(Absence::new(Reason::NotPermitted, "not root"));
        let table = bill(&case.bill);
        let Cells::Text(absent) = column(&table, "absent") else { panic!("a text") };
        assert_eq!(table.rows, CostClass::ALL.len() + case.bill.off_cpu.len());
        assert_eq!(absent[0].as_deref(), Some("not root"));
        let Cells::Real(share) = column(&table, "share") else { panic!("a share") };
        assert!(share.iter().all(Option::is_none));
    }

    #[test]
    fn a_recording_without_the_source_has_its_reason() {
        let mut rec = sketches::first_touch().rec;
        rec.ticks.clear();
        assert!(series(&rec).is_err());
        assert!(faults(&rec).err().unwrap().detail.contains("no page faults by owner"));
        rec.samples[0].faulted = Some(Owner::Heap);
        assert!(faults(&rec).err().unwrap().detail.contains("--table samples"));
        rec.samples.clear();
        assert!(samples(&rec).is_err());
    }

    #[test]
    fn a_long_name_is_cut() {
        let mut rec = sketches::first_touch().rec;
        rec.frames[0].symbol = Some("ü".repeat(100_000));
        let table = samples(&rec).unwrap();
        let Cells::Text(functions) = column(&table, "function") else { panic!("a text") };
        assert!(functions.iter().flatten().all(|name| name.chars().count() <= LONGEST_TEXT + 1));
        assert!(functions[0].as_ref().unwrap().ends_with('…'));
    }
}
