//! The control groups of a target. A recording holds the figures of one of them.

use allocwall_host::cgroup::{Cgroup, CgroupFs};
use allocwall_host::facts::Machine;
use allocwall_model::recording::{CgroupTick, Probe, ProbeName, ProbeState};
use allocwall_model::units::{Absence, Measured, Reason};

/// The most processes whose group is read, and the most groups that are compared.
const ASKED: usize = 256;
const GROUPS: usize = 16;

/// The groups of a target's root processes. In a pod each container has its own group, and the first process
/// may be in an irrelevant one.
pub struct Groups {
    groups: Vec<Group>,
    chosen: usize,
    /// Some groups were not compared.
    more: bool,
    /// Why the figures could not be read at some time.
    unread: Option<Absence>,
}

struct Group {
    cgroup: Cgroup,
    first: Option<CgroupTick>,
}

/// The data for the comparison of groups.
struct Standing<'a> {
    path: &'a str,
    /// Throttled time in the window.
    grown_ns: u64,
}

impl Groups {
    pub fn of(machine: &Machine, roots: &[i32]) -> Measured<Groups> {
        let fs = CgroupFs::of(machine)?;
        let mut groups: Vec<Group> = Vec::new();
        let mut last = Absence::new(Reason::NotFound, "no process");
        let mut more = roots.len() > ASKED;
        for &pid in roots.iter().take(ASKED) {
            match fs.group_of(pid) {
                Ok(cgroup) if groups.iter().any(|g| g.cgroup.path == cgroup.path) => {}
                Ok(_) if groups.len() >= GROUPS => more = true,
                Ok(cgroup) => {
                    let first = cgroup.tick().ok();
                    groups.push(Group { cgroup, first });
                }
                Err(absence) => last = absence,
            }
        }
        if groups.is_empty() {
            return Err(last);
        }
        let ticks: Vec<Option<CgroupTick>> = groups.iter().map(|g| g.first).collect();
        Ok(Groups { chosen: choose(&ticks), groups, more, unread: None })
    }

    pub fn path(&self) -> &str {
        &self.groups[self.chosen].cgroup.path
    }

    /// None if the figures could not be read. The outcome has the reason.
    pub fn tick(&mut self) -> Option<CgroupTick> {
        match self.groups[self.chosen].cgroup.tick() {
            Ok(tick) => Some(tick),
            Err(absence) => {
                self.unread.get_or_insert(absence);
                None
            }
        }
    }

    /// The probe at the end of the window: which group it measured, and whether that was the right group.
    pub fn outcome(&self) -> Probe {
        let grown = |group: &Group| {
            let now = group.cgroup.tick().ok()?.throttled_ns;
            Some(now.saturating_sub(group.first?.throttled_ns))
        };
        let standings: Vec<Standing<'_>> = self
            .groups
            .iter()
            .map(|group| Standing { path: &group.cgroup.path, grown_ns: grown(group).unwrap_or(0) })
            .collect();
        let mut probe = outcome(&standings, self.chosen, self.more);
        if probe.state == ProbeState::Measured
            && let Some(absence) = &self.unread
        {
            probe.state = ProbeState::Partial(absence.clone());
        }
        probe
    }
}

/// The group that was throttled most so far. If none was throttled, the one with the smallest quota; without
/// quotas, the first.
fn choose(ticks: &[Option<CgroupTick>]) -> usize {
    let throttled = |tick: &Option<CgroupTick>| tick.map_or(0, |t| t.throttled_ns);
    let quota = |tick: &Option<CgroupTick>| tick.and_then(|t| t.quota_cpus).unwrap_or(f64::INFINITY);
    let order = |a: &usize, b: &usize| {
        throttled(&ticks[*b])
            .cmp(&throttled(&ticks[*a]))
            .then(quota(&ticks[*a]).total_cmp(&quota(&ticks[*b])))
            .then(a.cmp(b))
    };
    (0..ticks.len()).min_by(order).unwrap_or(0)
}

fn outcome(groups: &[Standing<'_>], chosen: usize, more: bool) -> Probe {
    let shown = &groups[chosen];
    let mut probe = Probe::new(ProbeName::Cgroup, ProbeState::Measured);
    if groups.len() == 1 && !more {
        return probe;
    }
    probe.what += &format!(" of {}, one of {} groups", shown.path, groups.len());
    let worst = groups.iter().max_by_key(|g| g.grown_ns).unwrap_or(shown);
    if worst.grown_ns > shown.grown_ns {
        let ms = |group: &Standing<'_>| group.grown_ns / 1_000_000;
        let detail = format!(
            "the figures are for cgroup {}, which was throttled for {} ms in the window; {} was throttled for {} ms",
            shown.path,
            ms(shown),
            worst.path,
            ms(worst)
        );
        let absence = Absence::new(Reason::TooLittle, detail);
        probe.state = ProbeState::Partial(absence.mend("diagnose that group alone with --cgroup"));
    } else if more {
        let detail = format!("the target has more groups; only {} were compared", groups.len());
        probe.state = ProbeState::Partial(Absence::new(Reason::TooCostly, detail));
    }
    probe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(throttled_ns: u64, quota_cpus: Option<f64>) -> Option<CgroupTick> {
        Some(CgroupTick { throttled_ns, quota_cpus, ..CgroupTick::default() })
    }

    #[test]
    fn the_throttled_group_is_chosen() {
        let pause = tick(0, None);
        assert_eq!(choose(&[pause, tick(0, Some(2.0)), tick(0, Some(0.5))]), 2);
        assert_eq!(choose(&[pause, tick(9, Some(2.0)), tick(0, Some(0.5))]), 1);
        assert_eq!(choose(&[pause, pause]), 0);
        assert_eq!(choose(&[None, tick(0, Some(4.0))]), 1);
    }

    #[test]
    fn a_wrong_choice_is_reported() {
        let standing = |path, grown_ns| Standing { path, grown_ns };
        let groups = [standing("/a", 5_000_000), standing("/b", 90_000_000)];
        let probe = outcome(&groups, 1, false);
        assert_eq!(probe.what, "quota and throttling of /b, one of 2 groups");
        assert_eq!(probe.state, ProbeState::Measured);
        let ProbeState::Partial(absence) = outcome(&groups, 0, false).state else {
            panic!("the other one was throttled more");
        };
        assert!(absence.detail.contains("/b ") && absence.detail.contains("90 ms"), "{absence}");
        assert!(matches!(outcome(&groups, 1, true).state, ProbeState::Partial(_)));
        let alone = outcome(&groups[..1], 0, false);
        assert_eq!(alone, Probe::new(ProbeName::Cgroup, ProbeState::Measured));
    }
}
