//! Containers that run on this machine, by the cgroups of their processes.
//!
//! A runtime puts the container's id into the path of its cgroup, so that no daemon has to be asked. Names are in files that the runtimes
//! keep: Docker's config.v2.json, the containers.json of containers/storage (Podman, CRI-O), and the OCI config.json of containerd (CRI,
//! nerdctl). They are read within limits, in the root of the first process too: an agent in a container has the host's processes, but not
//! its files.

use crate::facts::Machine;
use crate::inside;
use allocwall_model::catalogue::nearest::{hint, plain};
use allocwall_model::error::{Error, Result};
use allocwall_model::units::{Absence, Measured, Reason};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Docker, Podman and the CRI name their containers by 32 random bytes.
const ID_DIGITS: usize = 64;
const SHORT_ID: usize = 12;
/// More are not listed; a machine with so many processes in containers has other problems.
const MOST: usize = 4096;
/// Containers that an error names.
const SHOWN: usize = 8;
/// The largest file of one container, and of all containers of a storage. Real ones have some 10 KiB and some MiB.
const ONE_FILE: u64 = 1 << 20;
const LIST_FILE: u64 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runtime {
    Docker,
    Podman,
    CriO,
    Containerd,
    /// Only the id is known: the path of the cgroup does not name a runtime.
    Unknown,
}

impl Runtime {
    fn title(self) -> &'static str {
        match self {
            Runtime::Docker => "Docker",
            Runtime::Podman => "Podman",
            Runtime::CriO => "CRI-O",
            Runtime::Containerd => "containerd",
            Runtime::Unknown => "container",
        }
    }
}

/// What stands before the id in a part of the path, with systemd as manager of the cgroups, and for Podman without it.
const PREFIXES: &[(&str, Runtime)] = &[
    ("docker-", Runtime::Docker),
    ("libpod-", Runtime::Podman),
    ("crio-", Runtime::CriO),
    ("cri-containerd-", Runtime::Containerd),
    ("nerdctl-", Runtime::Containerd),
];

/// A container with its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    pub runtime: Runtime,
    /// From the shortest to the full one. In Kubernetes: of the container, with its pod, with its namespace; or of the pod. Empty if
    /// unknown.
    names: Vec<String>,
    pub pids: Vec<i32>,
}

impl Container {
    /// `default/web-0/app (containerd 0123456789ab)`
    pub fn title(&self) -> String {
        let short: String = self.id.chars().take(SHORT_ID).collect();
        let known = format!("{} {short}", self.runtime.title());
        match self.names.iter().max_by_key(|name| name.len()) {
            Some(name) => format!("{name} ({known})"),
            None => known,
        }
    }
}

/// The containers that are visible here, and why some names are unknown.
struct Found {
    containers: Vec<Container>,
    unread: Option<Absence>,
}

/// The only container with this name, id or start of an id.
///
/// # Errors
/// One line: no container, or several, with candidates.
pub fn find(machine: &Machine, wanted: &str) -> Result<Container> {
    let refused = |why: String| Err(Error::Refused(format!("--container {wanted}: {why}")));
    let found = match all(machine) {
        Ok(found) => found,
        Err(absence) => return refused(absence.with_advice()),
    };
    if found.containers.is_empty() {
        return refused(
            "no process of a container is visible here; run on the host, or in a container with the host's processes (--pid=host; in \
             Kubernetes hostPID: true)"
                .to_owned(),
        );
    }
    let matching = found.matching(wanted);
    match &matching[..] {
        [one] => Ok((*one).clone()),
        [] => {
            let names = found.containers.iter().flat_map(|container| &container.names).map(String::as_str);
            let near = hint(wanted, names);
            // It matters only if a name is missing.
            let nameless = |container: &Container| container.names.is_empty() && is_id(&container.id);
            let unread = found.unread.as_ref().filter(|_| found.containers.iter().any(nameless));
            let unread = unread.map_or_else(String::new, |absence| format!("; names are unknown: {absence}"));
            refused(format!("no such container{near}; running: {}{unread}", listed(found.containers.iter())))
        }
        several => refused(format!(
            "{} containers match: {}; give a longer name or more of the id",
            several.len(),
            listed(several.iter().copied())
        )),
    }
}

fn listed<'a>(containers: impl ExactSizeIterator<Item = &'a Container>) -> String {
    let rest = containers.len().saturating_sub(SHOWN);
    let mut titles: Vec<String> = containers.take(SHOWN).map(Container::title).collect();
    if rest > 0 {
        titles.push(format!("{rest} more"));
    }
    titles.join(", ")
}

impl Found {
    /// By the whole id or a name; else by the start of an id.
    fn matching(&self, wanted: &str) -> Vec<&Container> {
        // As Docker prints it.
        let wanted = wanted.strip_prefix('/').unwrap_or(wanted);
        let same = |container: &&Container| {
            container.id == wanted || container.names.iter().any(|name| plain(name) == plain(wanted))
        };
        let exact: Vec<&Container> = self.containers.iter().filter(same).collect();
        if !exact.is_empty() || wanted.is_empty() {
            return exact;
        }
        self.containers.iter().filter(|container| container.id.starts_with(wanted)).collect()
    }
}

/// A part of a cgroup's path that names a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    id: String,
    runtime: Runtime,
    /// The part above it: with containerd and no systemd, its namespace.
    above: String,
    /// It is on the machine of a Kubernetes pod.
    in_pod: bool,
}

/// The containers of a path, outermost first: one may run in another one.
fn parts(path: &str) -> Vec<Part> {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let mut found = vec![];
    for (at, name) in names.iter().enumerate() {
        let above = at.checked_sub(1).map_or("", |above| names[above]);
        let in_pod = names[..=at].iter().any(|name| name.starts_with("kubepods"));
        // containerd writes SLICE:PREFIX:ID if it is told to use systemd and the kubelet is not.
        let name = name.rsplit(':').next().unwrap_or(name);
        let name = name.strip_suffix(".scope").unwrap_or(name);
        let prefix =
            PREFIXES.iter().find_map(|(prefix, runtime)| Some((name.strip_prefix(prefix)?, *runtime)));
        let (id, runtime) = prefix.unwrap_or_else(|| (name, of_parent(above)));
        if is_id(id) {
            found.push(Part { id: id.to_owned(), runtime, above: above.to_owned(), in_pod });
        }
    }
    // With containerd alone, the user chooses the id: /NAMESPACE/ID.
    if let ([namespace, id], []) = (&names[..], &found[..])
        && ![*namespace, *id].iter().any(|name| name.contains('.'))
    {
        found.push(Part {
            id: (*id).to_owned(),
            runtime: Runtime::Containerd,
            above: (*namespace).to_owned(),
            in_pod: false,
        });
    }
    found
}

/// In other folders, for example those of the kubelet, the containers may be of any runtime.
fn of_parent(above: &str) -> Runtime {
    match above {
        "docker" => Runtime::Docker,
        _ => Runtime::Unknown,
    }
}

fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn all(machine: &Machine) -> Measured<Found> {
    let mut pids_of: BTreeMap<Part, BTreeSet<i32>> = BTreeMap::new();
    let own = std::process::id() as i32;
    for pid in machine.proc.pids()?.into_iter().filter(|pid| *pid != own) {
        // A process may end meanwhile.
        let Ok(lines) = machine.proc.cgroups(pid) else { continue };
        for part in lines.iter().flat_map(|line| parts(&line.path)) {
            pids_of.entry(part).or_default().insert(pid);
            if pids_of.len() > MOST {
                return Err(Absence::new(
                    Reason::TooCostly,
                    format!("more than {MOST} containers run here: use --cgroup PATH"),
                ));
            }
        }
    }
    let mut files = Files::of(machine);
    let mut containers: BTreeMap<String, Container> = BTreeMap::new();
    for (part, pids) in pids_of {
        let Some((runtime, names)) = files.names(&part) else { continue };
        // The hierarchies of version 1 may have different parts for the same container.
        let container = containers.entry(part.id.clone()).or_insert_with(|| Container {
            id: part.id,
            runtime,
            names: vec![],
            pids: vec![],
        });
        container.pids.extend(pids);
        container.pids.sort_unstable();
        container.pids.dedup();
        if container.names.is_empty() {
            (container.runtime, container.names) = (runtime, names);
        }
    }
    Ok(Found { containers: containers.into_values().collect(), unread: files.unread })
}

/// Where containers/storage is, below a root. CRI-O and Podman share it.
const STORAGE: &str = "/var/lib/containers/storage";
const TASKS: &str = "/run/containerd/io.containerd.runtime.v2.task";

/// The files of the runtimes.
struct Files {
    proc_root: PathBuf,
    /// The processes in whose roots they are: often both have the same.
    roots: [i32; 2],
    /// Names by id.
    stored: BTreeMap<String, Vec<String>>,
    /// Why a file that is there could not be read.
    unread: Option<Absence>,
}

impl Files {
    fn of(machine: &Machine) -> Files {
        let roots = [std::process::id() as i32, 1];
        let proc_root = machine.proc.root().to_owned();
        let mut files = Files { proc_root, roots, stored: BTreeMap::new(), unread: None };
        let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share"));
        // The user's own folder is not below the root of another process.
        let own = data.or_else(home).map(|data| (data.join("containers/storage"), &roots[..1]));
        for (storage, roots) in own.into_iter().chain([(PathBuf::from(STORAGE), &roots[..])]) {
            // One folder for each driver of the storage.
            for driver in ["overlay", "vfs", "btrfs"] {
                let list = storage.join(format!("{driver}-containers/containers.json"));
                if let Some(document) = files.read(roots, &list, LIST_FILE) {
                    files.stored.extend(stored(&document));
                }
            }
        }
        files
    }

    /// From the first of these roots that has the file; None if none has it. Remembers why it could not be read.
    fn read(&mut self, roots: &[i32], path: &Path, limit: u64) -> Option<Value> {
        for &root in roots {
            let absence = match inside::read(&self.proc_root, root, path, limit) {
                Ok(bytes) => match serde_json::from_slice(&bytes) {
                    Ok(document) => return Some(document),
                    Err(_) => Absence::new(
                        Reason::Unparsable,
                        format!("{} is not JSON, or too large", path.display()),
                    ),
                },
                Err(absence) => {
                    let below = format!("{}/{root}/root", self.proc_root.display());
                    Absence { detail: absence.detail.replacen(&below, "", 1), ..absence }
                }
            };
            if !absence.is_gone() {
                self.unread.get_or_insert(absence);
            }
        }
        None
    }

    /// The runtime and the names of a container. None if the part does not belong to a container after all.
    fn names(&mut self, part: &Part) -> Option<(Runtime, Vec<String>)> {
        let roots = self.roots;
        if let Some(names) = self.stored.get(&part.id) {
            let runtime = if part.in_pod { Runtime::CriO } else { Runtime::Podman };
            return Some((runtime, names.clone()));
        }
        if is_id(&part.id) && matches!(part.runtime, Runtime::Docker | Runtime::Unknown) {
            let path = format!("/var/lib/docker/containers/{}/config.v2.json", part.id);
            let name =
                self.read(&roots, Path::new(&path), ONE_FILE).and_then(|document| docker_name(&document));
            if let Some(name) = name {
                return Some((Runtime::Docker, names_of(&name)));
            }
        }
        if matches!(part.runtime, Runtime::Containerd | Runtime::Unknown) {
            // Below another folder than that of its namespace, only a random id is sure to be the same container.
            let elsewhere: &[&str] = if is_id(&part.id) { &["k8s.io", "default"] } else { &[] };
            for namespace in [part.above.as_str()].iter().chain(elsewhere).filter(|name| !name.is_empty()) {
                let path = format!("{TASKS}/{namespace}/{}/config.json", part.id);
                if let Some(document) = self.read(&roots, Path::new(&path), ONE_FILE) {
                    return Some((Runtime::Containerd, annotated(&document)));
                }
            }
        }
        is_id(&part.id).then_some((part.runtime, vec![]))
    }
}

/// Docker's name has a slash before it.
fn docker_name(document: &Value) -> Option<String> {
    Some(document.get("Name")?.as_str()?.trim_start_matches('/').to_owned())
}

/// Ids with names, from the list of containers/storage.
fn stored(document: &Value) -> BTreeMap<String, Vec<String>> {
    let entry = |entry: &Value| {
        let id = entry.get("id")?.as_str()?.to_owned();
        let names = entry.get("names")?.as_array()?.iter().filter_map(Value::as_str);
        Some((id, names.flat_map(names_of).collect()))
    };
    document.as_array().into_iter().flatten().filter_map(entry).collect()
}

/// The names of a container that a runtime knows by this one: the kubelet writes k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT.
fn names_of(name: &str) -> Vec<String> {
    let parts: Vec<&str> = name.split('_').collect();
    match parts[..] {
        ["k8s", container, pod, namespace, _, _] => of_pod(container, pod, namespace),
        _ => vec![name.to_owned()],
    }
}

/// From the annotations of an OCI config.json.
fn annotated(document: &Value) -> Vec<String> {
    let annotation = |name: &str| document.get("annotations")?.get(name)?.as_str();
    if let Some(name) = annotation("nerdctl/name") {
        return vec![name.to_owned()];
    }
    let of = |name: &str| annotation(&format!("io.kubernetes.cri.{name}"));
    match (of("sandbox-name"), of("sandbox-namespace")) {
        (Some(pod), Some(namespace)) => of_pod(of("container-name").unwrap_or(PAUSE), pod, namespace),
        _ => vec![],
    }
}

/// How the container that holds the namespaces of a pod is called: it does nothing else.
const PAUSE: &str = "POD";

fn of_pod(container: &str, pod: &str, namespace: &str) -> Vec<String> {
    let full = [format!("{pod}/{container}"), format!("{namespace}/{pod}/{container}")];
    let short = match container {
        PAUSE => vec![],
        _ => vec![container.to_owned(), pod.to_owned(), format!("{namespace}/{pod}")],
    };
    short.into_iter().chain(full).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tempfile::TempDir;

    /// An id that starts with these digits.
    fn id(start: &str) -> String {
        format!("{start:0<64}")
    }

    /// A machine with these cgroups of processes, and files below the root of its first process.
    fn machine(processes: &[(i32, &str)], files: &[(&str, &str)]) -> (TempDir, Machine) {
        let root = tempfile::tempdir().expect("a temporary folder");
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            std::fs::write(path, text).expect("writable");
        };
        std::fs::create_dir_all(root.path().join("proc/1/root")).expect("writable");
        for (pid, path) in processes {
            write(root.path().join(format!("proc/{pid}/cgroup")), &format!("0::{path}\n"));
        }
        for (path, text) in files {
            write(root.path().join("proc/1/root").join(path.trim_start_matches('/')), text);
        }
        let machine = Machine::at(root.path());
        (root, machine)
    }

    fn refusal(machine: &Machine, wanted: &str) -> String {
        let text = find(machine, wanted).expect_err("not one container").to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn ids_are_found_in_the_paths_of_every_runtime() {
        let (one, two) = (id("a1"), id("b2"));
        for (path, runtime) in [
            (format!("/docker/{one}"), Runtime::Docker),
            (format!("/system.slice/docker-{one}.scope/init.scope"), Runtime::Docker),
            (format!("/machine.slice/libpod-{one}.scope/container"), Runtime::Podman),
            (format!("/libpod_parent/libpod-{one}"), Runtime::Podman),
            (
                format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{one}.scope"),
                Runtime::Podman,
            ),
            (
                format!("/kubepods.slice/kubepods-pod1_2.slice/cri-containerd-{one}.scope"),
                Runtime::Containerd,
            ),
            (format!("/kubepods.slice/kubepods-pod1_2.slice/crio-{one}.scope"), Runtime::CriO),
            (
                format!("/system.slice/containerd.service/kubepods-pod1_2.slice:cri-containerd:{one}"),
                Runtime::Unknown,
            ),
            (format!("/kubepods/burstable/pod1-2/{one}"), Runtime::Unknown),
            (format!("/../../kubepods/besteffort/pod1-2/{one}"), Runtime::Unknown),
            (format!("/default/{one}"), Runtime::Unknown),
        ] {
            let found = parts(&path);
            assert_eq!(
                found.iter().map(|part| (&part.id, part.runtime)).collect::<Vec<_>>(),
                [(&one, runtime)],
                "{path}"
            );
        }
        let nested = parts(&format!("/docker/{one}/kubepods/pod1/{two}"));
        assert_eq!(nested.iter().map(|part| part.id.as_str()).collect::<Vec<_>>(), [one.as_str(), &two]);
        for other in [
            "/".to_owned(),
            "/system.slice/ssh.service".to_owned(),
            format!("/machine.slice/libpod-conmon-{one}.scope"),
            format!("/docker/{}", &one[1..]),
            format!("/docker/{}", one.to_uppercase()),
            "/user.slice/user-0.slice/session-1.scope".to_owned(),
        ] {
            let found = parts(&other).into_iter().find(|part| is_id(&part.id));
            assert_eq!(found, None, "{other}");
        }
    }

    #[test]
    fn docker_containers_are_found_by_name_and_by_id() {
        let (web, db) = (id("0123456789ab"), id("0fedcba98765"));
        let (_root, machine) = machine(
            &[
                (1, "/init.scope"),
                (20, &format!("/system.slice/docker-{web}.scope")),
                (21, &format!("/system.slice/docker-{web}.scope/worker")),
                (30, &format!("/docker/{db}")),
            ],
            &[
                (
                    &format!("/var/lib/docker/containers/{web}/config.v2.json"),
                    r#"{"State":{},"Name":"/web"}"#,
                ),
                (&format!("/var/lib/docker/containers/{db}/config.v2.json"), r#"{"Name":"/my_db"}"#),
            ],
        );
        for wanted in ["web", "WEB", "/web", "01", "0123456789ab", &web] {
            let found = find(&machine, wanted).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((found.id.as_str(), &found.pids[..]), (web.as_str(), &[20, 21][..]), "{wanted}");
            assert_eq!(found.title(), "web (Docker 0123456789ab)");
        }
        assert_eq!(find(&machine, "my_db").map(|found| found.pids).ok(), Some(vec![30]));
        let several = refusal(&machine, "0");
        assert!(
            several.contains("2 containers match: web (Docker 0123456789ab), my_db (Docker 0fedcba98765)"),
            "{several}"
        );
        let unknown = refusal(&machine, "wbe");
        assert!(unknown.contains("no such container; nearest: web; running: "), "{unknown}");
        // The start of a name is no name.
        assert!(refusal(&machine, "we").contains("no such container"));
        assert!(refusal(&machine, "").contains("no such container"));
    }

    #[test]
    fn pods_are_found_through_containerd_and_cri_o() {
        let ids = ["11", "22", "33", "44"].map(id);
        let [app, sidecar, pause, crio] = &ids;
        let config = |name: Option<&str>, pod: &str| {
            let name =
                name.map_or(String::new(), |name| format!(r#""io.kubernetes.cri.container-name":"{name}","#));
            format!(
                r#"{{"annotations":{{{name}"io.kubernetes.cri.sandbox-name":"{pod}","io.kubernetes.cri.sandbox-namespace":"shop"}}}}"#
            )
        };
        let task = |id: &str| format!("{TASKS}/k8s.io/{id}/config.json");
        let slice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice";
        let (_root, machine) = machine(
            &[
                (20, &format!("{slice}/cri-containerd-{app}.scope")),
                (21, &format!("{slice}/cri-containerd-{sidecar}.scope")),
                (22, &format!("/kubepods/burstable/pod1-2/{pause}")),
                (23, &format!("{slice}/crio-{crio}.scope")),
            ],
            &[
                (&task(app), &config(Some("app"), "web-0")),
                (&task(sidecar), &config(Some("proxy"), "web-0")),
                (&task(pause), &config(None, "web-0")),
                (
                    &format!("{STORAGE}/overlay-containers/containers.json"),
                    &format!(r#"[{{"id":"{crio}","names":["k8s_db_db-0_shop_0b5f_0"]}},{{"id":7}},3]"#),
                ),
            ],
        );
        for (wanted, pid) in [
            ("app", 20),
            ("web-0/app", 20),
            ("shop/web-0/proxy", 21),
            ("web-0/POD", 22),
            ("db-0", 23),
            ("shop/db-0/db", 23),
            ("44", 23),
        ] {
            let found = find(&machine, wanted).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(found.pids, [pid], "{wanted}");
        }
        assert_eq!(
            find(&machine, "db").map(|found| found.title()).ok().as_deref(),
            Some("shop/db-0/db (CRI-O 440000000000)")
        );
        // Its containers, without the one that does nothing.
        let pod = refusal(&machine, "web-0");
        assert!(pod.contains("2 containers match: shop/web-0/app") && !pod.contains("POD"), "{pod}");
    }

    #[test]
    fn ids_that_users_choose_are_containers_only_if_containerd_knows_them() {
        let files = [(format!("{TASKS}/default/redis/config.json"), "{}".to_owned())];
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let (_root, machine) =
            machine(&[(20, "/default/redis"), (21, "/default/other"), (22, "/box")], &files);
        assert_eq!(find(&machine, "redis").map(|found| found.pids).ok(), Some(vec![20]));
        assert!(
            refusal(&machine, "other").contains("running: containerd redis"),
            "{}",
            refusal(&machine, "other")
        );
    }

    #[test]
    fn without_containers_and_without_names_the_reason_is_given() {
        let (_root, nothing) = machine(&[(1, "/init.scope"), (7, "/system.slice/ssh.service")], &[]);
        assert!(refusal(&nothing, "web").contains("no process of a container is visible here"));
        let box_id = id("ab");
        for (text, why) in [("{", "is not JSON"), (r#"{"Name":7}"#, "running: Docker ab")] {
            let path = format!("/var/lib/docker/containers/{box_id}/config.v2.json");
            let (_root, machine) = machine(&[(9, &format!("/docker/{box_id}"))], &[(&path, text)]);
            let refused = refusal(&machine, "web");
            assert!(refused.contains(why), "{refused}");
            assert_eq!(find(&machine, "ab").map(|found| found.pids).ok(), Some(vec![9]), "the id is enough");
        }
    }

    #[test]
    fn files_that_are_no_files_are_not_opened() {
        let box_id = id("ab");
        let (root, machine) = machine(&[(9, &format!("/docker/{box_id}"))], &[]);
        let folder = root.path().join(format!("proc/1/root/var/lib/docker/containers/{box_id}"));
        std::fs::create_dir_all(&folder).expect("writable");
        let fifo = folder.join("config.v2.json");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
        let refused = refusal(&machine, "web");
        assert!(
            refused.contains("names are unknown: ") && refused.contains("not a regular file"),
            "{refused}"
        );
    }

    proptest! {
        #[test]
        fn no_path_and_no_document_make_a_reader_panic(path in "\\PC{0,120}", text in "[\\[\\]{}:,\"a-z0-9_]{0,80}") {
            let _ = parts(&path);
            if let Ok(document) = serde_json::from_str::<Value>(&text) {
                let _ = (docker_name(&document), stored(&document), annotated(&document));
            }
            let _ = names_of(&text);
        }
    }
}
