//! The facts about a machine, read from its files.

use crate::file;
use crate::perf_trial;
use crate::proc::ProcFs;
use crate::topology;
use allocwall_model::machine::{HostFacts, chosen};
use allocwall_model::units::{Absence, Measured, Reason, count};
use std::path::PathBuf;

/// The root of a machine's files: `/`, or a copy for tests.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    pub proc: ProcFs,
}

impl Machine {
    pub fn live() -> Self {
        Self::at("/")
    }

    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Machine { proc: ProcFs::at(root.join("proc")), root }
    }

    /// The kernel is the running one. It also answers questions that no file answers: perf events, memory of
    /// other processes.
    pub fn is_live(&self) -> bool {
        self.proc.is_live()
    }

    /// An absolute path of the machine, below the root.
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// The facts that diagnosis and reports need. Three of them come from the processor and the kernel, not
    /// from a file: hypervisor, effective user and hardware counters.
    pub fn facts(&self) -> HostFacts {
        let memory = self.proc.meminfo();
        HostFacts {
            kernel_release: self.proc.sysctl_text("kernel/osrelease").unwrap_or_else(|_| uname_release()),
            architecture: std::env::consts::ARCH.to_owned(),
            cpu_model: self.cpu_model(),
            online_cpus: self.online_cpus(),
            numa_nodes: self.numa_nodes(),
            memory_bytes: memory.as_ref().map_or(0, |memory| memory.total),
            page_bytes: self.proc.page_bytes(),
            hypervisor: hypervisor(),
            free_page_reporting: self.free_page_reporting(),
            thp_enabled: self.thp("enabled"),
            thp_defrag: self.thp("defrag"),
            hugepages_total: memory.as_ref().map_or(0, |memory| memory.hugepages_total.unwrap_or(0)),
            hugepages_free: memory.as_ref().map_or(0, |memory| memory.hugepages_free.unwrap_or(0)),
            cgroup_version: crate::cgroup::CgroupFs::of(self).map(|cgroups| cgroups.version()),
            container: self.container(),
            euid: rustix::process::geteuid().as_raw(),
            perf_event_paranoid: self.proc.sysctl("kernel/perf_event_paranoid").map_err(|absence| {
                match absence.reason {
                    Reason::NotFound => Absence::new(
                        Reason::NotSupported,
                        "no /proc/sys/kernel/perf_event_paranoid: this kernel has no perf events",
                    ),
                    _ => absence,
                }
            }),
            kptr_restrict: self.proc.sysctl("kernel/kptr_restrict"),
            pmu: perf_trial::hardware_cycles(),
        }
    }

    /// The machine that a price list is valid for: CPU model, CPUs, memory, hypervisor and kernel. It does not
    /// change with a reboot.
    pub fn identity(&self) -> Measured<String> {
        let kernel = self.proc.sysctl_text("kernel/osrelease")?;
        let online = topology::online_cpus(&self.path("/sys"))?.len();
        // Rounded to a quarter of a GiB: the kernel's own memory differs a little from boot to boot.
        let quarters = (self.proc.meminfo()?.total as f64 / f64::from(1 << 28)).round();
        Ok(format!(
            "{}, {}, {:.2} GiB, {}, Linux {kernel}",
            self.cpu_model(),
            count(online, "CPU"),
            quarters / 4.0,
            hypervisor().unwrap_or_else(|| "no hypervisor seen".to_owned())
        ))
    }

    /// Without a name in /proc/cpuinfo, the architecture.
    fn cpu_model(&self) -> String {
        self.proc.cpu_model().unwrap_or_else(|_| format!("{} CPU", std::env::consts::ARCH))
    }

    fn online_cpus(&self) -> u32 {
        match topology::online_cpus(&self.path("/sys")) {
            Ok(cpus) => cpus.len() as u32,
            Err(_) => std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        }
    }

    /// NUMA nodes that have memory; a kernel without NUMA counts as one node.
    fn numa_nodes(&self) -> u32 {
        let with_memory = topology::memory_nodes(&self.path("/sys"));
        with_memory.map_or(1, |nodes| nodes.len().max(1) as u32)
    }

    /// A setting of transparent huge pages: `enabled` or `defrag`.
    pub fn thp(&self, name: &str) -> Measured<String> {
        let path = self.path("/sys/kernel/mm/transparent_hugepage").join(name);
        let text = file::read_line(&path).map_err(|absence| match absence.reason {
            Reason::NotFound => {
                Absence::new(Reason::NotSupported, "this kernel was built without transparent huge pages")
            }
            _ => absence,
        })?;
        chosen(&text).map(str::to_owned).ok_or_else(|| file::unparsable(&path.display(), text.as_bytes()))
    }

    /// The release of Debian, 12 for bookworm (os-release(5)).
    ///
    /// # Errors
    /// `NotApplicable`: another distribution, or a release without a number (testing).
    pub fn debian_release(&self) -> Measured<u32> {
        let path = self.path("/etc/os-release");
        let text = file::read(&path, |bytes| Ok(String::from_utf8_lossy(bytes).into_owned()))?;
        let value = |name: &str| {
            let of = |line: &str| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
            let quoted = text.lines().find_map(of)?;
            Some(quoted.trim().trim_matches(['"', '\'']).to_owned())
        };
        let is_debian = value("ID").is_some_and(|id| id == "debian");
        let release = value("VERSION_ID").and_then(|version| version.parse().ok());
        release
            .filter(|_| is_debian)
            .ok_or_else(|| Absence::new(Reason::NotApplicable, "this is no numbered release of Debian"))
    }

    /// Whether the guest reports its free pages to the host. The balloon device negotiates it: feature bit 5
    /// (VIRTIO_BALLOON_F_REPORTING, Virtio 1.2 section 5.5.3), the sixth digit of `features` in sysfs.
    /// Hyper-V uses hv_balloon for the same, which does not show its state.
    pub fn free_page_reporting(&self) -> Measured<bool> {
        let driver = self.path("/sys/bus/virtio/drivers/virtio_balloon");
        let Ok(devices) = std::fs::read_dir(&driver) else {
            return if self.path("/sys/bus/vmbus/drivers/hv_balloon").is_dir() {
                Err(Absence::new(
                    Reason::NotSupported,
                    "the hv_balloon driver is loaded; it does not show whether it reports free pages",
                ))
            } else {
                Ok(false)
            };
        };
        let device =
            devices.flatten().find(|entry| entry.file_name().to_string_lossy().starts_with("virtio"));
        let Some(device) = device else { return Ok(false) };
        let features = file::read_line(&device.path().join("features"))?;
        match features.as_bytes().get(5) {
            Some(b'1') => Ok(true),
            Some(b'0') => Ok(false),
            _ => Err(file::unparsable(&"features of the balloon device", features.as_bytes())),
        }
    }

    /// Whether a balloon driver has a device: then the host can reclaim memory even without free-page
    /// reporting.
    pub fn balloon(&self) -> bool {
        let bound = |driver: &str, prefix: &str| {
            std::fs::read_dir(self.path(driver)).is_ok_and(|entries| {
                entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            })
        };
        bound("/sys/bus/virtio/drivers/virtio_balloon", "virtio")
            || self.path("/sys/bus/vmbus/drivers/hv_balloon").is_dir()
            || self.path("/sys/bus/xen-backend/drivers/xen-balloon").is_dir()
            || self.path("/sys/devices/system/xen_memory").is_dir()
    }

    /// The container technology that this process runs in. A marker file alone is not enough: virtual
    /// machines that boot from container images keep the file, but all their namespaces are the kernel's
    /// initial ones.
    pub fn container(&self) -> Option<String> {
        let cgroup_paths = || {
            let own = file::read(&self.path("/proc/self/cgroup"), |bytes| {
                Ok(String::from_utf8_lossy(bytes).into_owned())
            });
            let init = file::read(&self.path("/proc/1/cgroup"), |bytes| {
                Ok(String::from_utf8_lossy(bytes).into_owned())
            });
            own.unwrap_or_default() + &init.unwrap_or_default()
        };
        let first = FIRST_NAMESPACES.iter().all(|(kind, inode)| {
            // An unreadable or missing file (a kernel without that namespace) is no evidence.
            self.proc.own_namespace(kind).map_or(true, |text| text == format!("{kind}:[{inode}]"))
        });
        if first {
            return None;
        }
        let text = cgroup_paths();
        let by_path = CONTAINER_PATHS.iter().find(|(part, _)| text.contains(part)).map(|(_, name)| *name);
        let by_file =
            CONTAINER_FILES.iter().find(|(path, _)| self.path(path).exists()).map(|(_, name)| *name);
        let kubernetes = self.path("/var/run/secrets/kubernetes.io").exists().then_some("kubernetes");
        let declared = std::env::var("container").ok().filter(|name| !name.is_empty());
        let named = by_path.filter(|name| *name == "kubernetes").or(kubernetes).or(by_file).or(by_path);
        Some(named.map(str::to_owned).or(declared).unwrap_or_else(|| "unnamed".to_owned()))
    }
}

/// Inode numbers of the initial namespaces: include/uapi/linux/nsfs.h, in older kernels linux/proc_ns.h.
const FIRST_NAMESPACES: [(&str, u32); 4] =
    [("ipc", 0xEFFF_FFFF), ("uts", 0xEFFF_FFFE), ("pid", 0xEFFF_FFFC), ("cgroup", 0xEFFF_FFFB)];

const CONTAINER_PATHS: [(&str, &str); 7] = [
    ("kubepods", "kubernetes"),
    ("/docker", "docker"),
    ("libpod", "podman"),
    ("/lxc", "lxc"),
    ("machine.slice", "systemd-nspawn"),
    ("containerd", "containerd"),
    ("/ecs/", "ecs"),
];

const CONTAINER_FILES: [(&str, &str); 2] = [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")];

fn uname_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// From CPUID leaf 0x40000000; None on bare metal, or if the hypervisor hides itself.
#[cfg(target_arch = "x86_64")]
fn hypervisor() -> Option<String> {
    let cpuid = raw_cpuid::CpuId::new();
    if !cpuid.get_feature_info()?.has_hypervisor() {
        return None;
    }
    use raw_cpuid::Hypervisor;
    let Some(leaf) = cpuid.get_hypervisor_info() else {
        return Some("unnamed".to_owned());
    };
    let name = match leaf.identify() {
        Hypervisor::KVM => "KVM",
        Hypervisor::Xen => "Xen",
        Hypervisor::VMware => "VMware",
        Hypervisor::HyperV => "Hyper-V",
        Hypervisor::QEMU => "QEMU",
        Hypervisor::Bhyve => "bhyve",
        Hypervisor::QNX => "QNX",
        Hypervisor::ACRN => "ACRN",
        Hypervisor::Unknown(..) => "unnamed",
    };
    Some(name.to_owned())
}

/// Arm has no CPUID; the firmware names the common hypervisors.
#[cfg(not(target_arch = "x86_64"))]
fn hypervisor() -> Option<String> {
    let vendor = file::read_line(std::path::Path::new("/sys/class/dmi/id/sys_vendor")).ok()?;
    ["QEMU", "Amazon EC2", "Google", "Microsoft Corporation", "VMware"]
        .iter()
        .find(|name| vendor.starts_with(**name))
        .map(|name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn write(root: &Path, name: &str, body: &str) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, body).unwrap();
    }

    fn namespaces(root: &Path, pid_inode: u32) {
        std::fs::create_dir_all(root.join("proc/self/ns")).unwrap();
        for (kind, first) in FIRST_NAMESPACES {
            let inode = if kind == "pid" { pid_inode } else { first };
            symlink(format!("{kind}:[{inode}]"), root.join(format!("proc/self/ns/{kind}"))).unwrap();
        }
    }

    #[test]
    fn a_marker_file_counts_only_in_a_namespace_of_its_own() {
        let image_in_a_vm = tempfile::tempdir().unwrap();
        write(image_in_a_vm.path(), ".dockerenv", "");
        namespaces(image_in_a_vm.path(), 0xEFFF_FFFC);
        assert_eq!(Machine::at(image_in_a_vm.path()).container(), None);

        let container = tempfile::tempdir().unwrap();
        write(container.path(), ".dockerenv", "");
        namespaces(container.path(), 4_026_532_500);
        assert_eq!(Machine::at(container.path()).container().as_deref(), Some("docker"));

        let pod = tempfile::tempdir().unwrap();
        namespaces(pod.path(), 4_026_532_500);
        write(
            pod.path(),
            "proc/self/cgroup",
            "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope\n",
        );
        assert_eq!(Machine::at(pod.path()).container().as_deref(), Some("kubernetes"));
    }

    #[test]
    fn free_page_reporting_is_the_sixth_feature_bit() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        assert_eq!(machine.free_page_reporting(), Ok(false));
        let features = "sys/bus/virtio/drivers/virtio_balloon/virtio0/features";
        for (bits, expected) in
            [("01100101000\n", Ok(true)), ("01100001000\n", Ok(false)), ("0110\n", Err(Reason::Unparsable))]
        {
            write(dir.path(), features, bits);
            assert_eq!(machine.free_page_reporting().map_err(|absence| absence.reason), expected);
            assert!(machine.balloon());
        }
    }

    #[test]
    fn huge_page_modes_and_their_absence() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        assert_eq!(machine.thp("enabled").unwrap_err().reason, Reason::NotSupported);
        write(dir.path(), "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write(dir.path(), "sys/kernel/mm/transparent_hugepage/defrag", "\n");
        assert_eq!(machine.thp("enabled").as_deref(), Ok("madvise"));
        assert_eq!(machine.thp("defrag").unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn topology_lists() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "sys/devices/system/cpu/online", "0-3,8-11\n");
        write(dir.path(), "sys/devices/system/node/has_memory", "0-1\n");
        write(dir.path(), "proc/meminfo", "MemTotal: 1024 kB\nHugePages_Total: 4\nHugePages_Free: 1\n");
        let facts = Machine::at(dir.path()).facts();
        assert_eq!((facts.online_cpus, facts.numa_nodes), (8, 2));
        assert_eq!((facts.memory_bytes, facts.hugepages_total, facts.hugepages_free), (1 << 20, 4, 1));
        assert_eq!(facts.cgroup_version.unwrap_err().reason, Reason::NotFound);
        assert_eq!(facts.perf_event_paranoid.unwrap_err().reason, Reason::NotSupported);
    }

    #[test]
    fn identity_names_what_prices_depend_on() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::at(dir.path());
        assert!(machine.identity().is_err());
        write(dir.path(), "proc/sys/kernel/osrelease", "6.1.0\n");
        write(dir.path(), "proc/meminfo", "MemTotal:       25165000 kB\n");
        write(dir.path(), "sys/devices/system/cpu/online", "0-3\n");
        let unnamed = format!("{} CPU, 4 CPUs, 24.00 GiB, ", std::env::consts::ARCH);
        assert!(machine.identity().unwrap().starts_with(&unnamed), "{:?}", machine.identity());
        write(dir.path(), "proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast CPU\n");
        let identity = machine.identity().unwrap();
        assert!(identity.starts_with("Fast CPU, 4 CPUs, 24.00 GiB, "), "{identity}");
        assert!(identity.ends_with(", Linux 6.1.0"), "{identity}");
    }

    #[test]
    fn this_machine_has_facts() {
        let machine = Machine::live();
        let facts = machine.facts();
        assert!(facts.online_cpus > 0 && facts.memory_bytes > 0 && !facts.kernel_release.is_empty());
        let identity = machine.identity().unwrap();
        assert!(identity.contains("Linux "), "{identity}");
        assert_eq!(machine.identity().unwrap(), identity);
    }
}
