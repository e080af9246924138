//! Tests `check` on file trees of other machines.

use super::judge::{self, Check, Report, State};
use super::surroundings::{self, Kernel};
use super::{as_json, as_text};
use allocwall_host::facts::Machine;
use allocwall_model::error::Result;
use allocwall_report::text::Style;
use allocwall_sketches::machines::{Groups, Home, Server, TARGET, Tree};
use std::fs;
use std::io;

const GRANTS: Kernel = Kernel {
    cpu_clock: |_, _| Ok(()),
    tracepoint: |_, _| Ok(()),
    hardware: |_| Ok(()),
    read_memory: |_| Ok(()),
};

/// What an unprivileged user gets, and what a sandbox without perf events answers.
const REFUSES: Kernel = Kernel {
    cpu_clock: |_, _| Err(io::Error::from_raw_os_error(libc::EACCES)),
    tracepoint: |_, _| Err(io::Error::from_raw_os_error(libc::EACCES)),
    hardware: |_| Err(io::Error::from_raw_os_error(libc::EACCES)),
    read_memory: |_| Err(io::Error::from_raw_os_error(libc::EPERM)),
};
const SANDBOX: Kernel = Kernel {
    cpu_clock: |_, _| Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    tracepoint: |_, _| Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    hardware: |_| Err(io::Error::from_raw_os_error(libc::ENOSYS)),
    read_memory: |_| Err(io::Error::from_raw_os_error(libc::ENOSYS)),
};

fn checked(tree: &Tree, kernel: Kernel, pid: Option<i32>) -> Result<Report> {
    let surroundings = surroundings::gather(&Machine::at(tree.root()), kernel, pid)?;
    let report = judge::judge(&surroundings);
    let text = as_text(&report, Style::FILE);
    for figure in ["NaN", " 0 CPUs", " 0.0 GiB", "-0.0"] {
        assert!(!text.contains(figure), "{figure}: {text}");
    }
    let document: serde_json::Value = serde_json::from_str(&as_json(&report, pid)).unwrap();
    assert_eq!(document["checks"].as_array().unwrap().len(), report.checks.len());
    assert!(report.checks.len() > 10);
    for Check { probe, answer } in &report.checks {
        let line = |text: &str| !text.is_empty() && !text.contains('\n');
        assert!(line(&answer.detail), "{}: {answer:?}", probe.name);
        assert!(answer.mend.iter().all(|mend| line(&mend.how)), "{}: {answer:?}", probe.name);
        // The summary names the cause where something that a diagnosis needs is absent.
        let absent = probe.group.is_needed() && answer.state == State::Absent;
        assert!(answer.cause.is_some() || !absent, "{}: {answer:?}", probe.name);
    }
    Ok(report)
}

fn state(report: &Report, name: &str) -> State {
    let found = report.checks.iter().find(|check| check.probe.name == name);
    found.unwrap_or_else(|| panic!("no check {name}")).answer.state
}

#[test]
fn servers_of_every_kind() {
    for groups in [Groups::V1, Groups::V2, Groups::Hybrid, Groups::None] {
        for home in [Home::Host, Home::Lxc, Home::Docker, Home::Kubernetes] {
            let server = Server {
                groups,
                home,
                cpus: "0-3,8-63",
                nodes: &["0-3,8-31", "32-63", ""],
                with_memory: "0,2",
                kernel: "5.10.0-32-amd64",
                hidepid: home == Home::Lxc,
                whole_kernel: home != Home::Docker,
                ..Server::usual()
            };
            let tree = server.build();
            let granted = checked(&tree, GRANTS, Some(TARGET)).unwrap();
            assert_eq!(state(&granted, "target_samples"), State::Available);
            let cgroup = match groups {
                Groups::None => State::Absent,
                _ => State::Available,
            };
            assert_eq!(state(&granted, "cgroup"), cgroup, "{groups:?} {home:?}");
            for kernel in [REFUSES, SANDBOX] {
                let refused = checked(&tree, kernel, Some(TARGET)).unwrap();
                assert_eq!(state(&refused, "target_samples"), State::Absent);
                assert!(refused.summary.contains("cannot be sampled"), "{}", refused.summary);
                checked(&tree, kernel, None).unwrap();
            }
        }
    }
}

#[test]
fn two_thousand_cpus() {
    let server = Server {
        cpus: "0-2047",
        nodes: &["0-1023", "1024-2047"],
        with_memory: "0-1",
        processes: 64,
        ..Server::usual()
    };
    checked(&server.build(), GRANTS, Some(TARGET)).unwrap();
}

#[test]
fn any_file_may_be_missing_empty_or_cut_short() {
    for groups in [Groups::V1, Groups::V2] {
        let server = Server {
            groups,
            cpus: "0-1",
            nodes: &["0", "1"],
            with_memory: "0-1",
            processes: 1,
            threads: 1,
            ..Server::usual()
        };
        let mut refused = 0;
        let tree = server.build();
        for path in tree.files() {
            let bytes = fs::read(&path).unwrap();
            for kept in [None, Some(0), Some(bytes.len() / 2)] {
                match kept {
                    None => fs::remove_file(&path).unwrap(),
                    Some(kept) => fs::write(&path, &bytes[..kept]).unwrap(),
                }
                checked(&tree, REFUSES, None).unwrap();
                if let Err(error) = checked(&tree, GRANTS, Some(TARGET)) {
                    let line = error.to_string();
                    assert!(!line.is_empty() && !line.contains('\n'), "{path:?}: {line}");
                    refused += 1;
                }
            }
            fs::write(&path, bytes).unwrap();
        }
        // A process without its own counter files is reported as missing.
        assert!(refused <= 6, "{refused}");
    }
}
