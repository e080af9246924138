"""The scenarios for each kernel, and the boots with their settings."""

import json
import shlex
from dataclasses import dataclass, field

from judge import Calibrated, Check, Figure, NotSampled, Refused, Status, Wall, judge_command, judge_observation

# The Debian suite of each kernel.
KERNELS = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie"}
ARM64_KERNEL = "6.1"


@dataclass
class Observation:
    """A diagnosis of a subject."""

    name: str
    subject: str  # its name and options
    expect: object
    # Wrapper commands: around subject and tool together, around the subject, around the tool.
    around: str = ""
    inside: str = ""
    tool: str = ""
    # Shell commands on the emulated machine: before, in the middle of the window, and after.
    before: str = ""
    during: str = ""
    after: str = ""

    def shell(self, out, window):
        words = [out, str(window), self.inside, self.tool, self.during]
        return f"{self.around} /bin/guest.sh observe {shlex.join(words)} {self.subject}"

    def judge(self, files, machine):
        return judge_observation(self.expect, files, machine)


@dataclass
class Command:
    """One run of the tool without a subject."""

    name: str
    arguments: str
    expect: object
    around: str = ""
    before: str = ""
    after: str = ""

    def shell(self, out, _window):
        return f"{self.around} /bin/guest.sh plain {out} {self.arguments}"

    def judge(self, files, machine):
        return judge_command(self.expect, files, machine)


@dataclass
class Boot:
    """One configuration of the emulated machine, and its scenarios."""

    name: str
    cgroup: int
    nodes: int
    huge_pages: str
    scenarios: list = field(default_factory=list)

    def plan(self, scenarios, window):
        """The shell script that the emulated machine runs."""
        lines = [CGROUPS[self.cgroup], f"echo {self.huge_pages} >/sys/kernel/mm/transparent_hugepage/enabled"]
        for scenario in scenarios:
            out = f"/out/{scenario.name}"
            lines += [f"mkdir -m 777 {out}", scenario.before, scenario.shell(out, window), scenario.after]
            lines += [f"send {scenario.name}"]
        return "\n".join(lines) + "\n"


CGROUPS = {
    1: """for controllers in cpu,cpuacct memory freezer cpuset; do
    mkdir /sys/fs/cgroup/$controllers
    mount -t cgroup -o $controllers none /sys/fs/cgroup/$controllers
done""",
    2: """mount -t cgroup2 none /sys/fs/cgroup
echo '+cpu +memory' >/sys/fs/cgroup/cgroup.subtree_control""",
}

PID_NAMESPACE = "/bin/unshare --pid --fork --mount-proc"
TIME_NAMESPACE = "/bin/unshare --time --boottime 1000000 --monotonic 1000000 --fork"
USER_NAMESPACE = "/bin/unshare --user --map-root-user"
# With a root file system whose path exists in no other namespace.
MOUNT_NAMESPACE = "/bin/unshare --mount /bin/guest.sh jail"
USER = "/bin/setpriv --reuid 1000 --regid 1000 --clear-groups /bin/env HOME=/home/user"


def paranoid(level):
    """Debian's default level is 3, which is not in the kernel's documentation: users have no performance events at all."""
    return {
        "before": f"echo {level} >/proc/sys/kernel/perf_event_paranoid",
        "after": "echo 3 >/proc/sys/kernel/perf_event_paranoid",
    }


TOUCH = "cold-touch --dial 0.6"
FIRST_TOUCH = Wall("first_touch", line="fault_path+zeroing")
LOCK = "address-space-lock --dial 0.3"
CONTENTION = "contention --dial 0.5"
# The subject has many calls, slow calls and contention. Which of the three is the wall depends on the speed of the CPUs.
IN_ALLOCATOR = Wall(
    "allocator_contention", "allocator_code", "call_rate", line="allocator_code+allocator_locks"
)
THROTTLED = "throttling --dial 0.5"

CHECK = Command("check", "check --json", Check(available=("cpu_samples", "kernel_stacks", "kernel_symbols", "cgroup")))
CHECK_USER = Command("check-user", "check --json", Check(absent=("cpu_samples", "kernel_stacks")), around=USER)
CALIBRATE = Command("calibrate", "calibrate --fresh", Calibrated())

FIRST_TOUCH_PAIR = [
    Observation("first-touch", TOUCH, FIRST_TOUCH),
    Observation("first-touch-twin", f"{TOUCH} --twin", Status("first_touch", "ruled_out")),
]
LOCK_PAIR = [
    Observation("lock", LOCK, Wall("address_space_lock", wait="address_space_lock")),
    Observation("lock-twin", f"{LOCK} --twin", Status("address_space_lock", "ruled_out")),
]
CONTENTION_PAIR = [
    Observation("contention", CONTENTION, IN_ALLOCATOR),
    # The twin still uses the same CPU time in the allocator.
    Observation("contention-twin", f"{CONTENTION} --twin", Status("allocator_contention", "ruled_out", "contributor")),
]
THROTTLED_PAIR = [
    Observation("throttled", THROTTLED, Wall("cgroup_throttling", wait="throttled")),
    Observation("throttled-twin", f"{THROTTLED} --twin", Status("cgroup_throttling", "ruled_out")),
]
NAMESPACES = [
    Observation("pid-namespace-target", TOUCH, FIRST_TOUCH, inside=PID_NAMESPACE),
    Observation("pid-namespace-both", TOUCH, FIRST_TOUCH, around=PID_NAMESPACE),
    Observation("mount-namespace-target", CONTENTION, IN_ALLOCATOR, inside=MOUNT_NAMESPACE),
    Observation("time-namespace-target", TOUCH, FIRST_TOUCH, inside=TIME_NAMESPACE),
    Observation("time-namespace-both", TOUCH, FIRST_TOUCH, around=TIME_NAMESPACE),
    Observation("user-namespace-target", TOUCH, FIRST_TOUCH, inside=USER_NAMESPACE),
    # Root in a user namespace may not use the kernel's performance events.
    Observation("user-namespace-both", TOUCH, NotSampled("not_permitted"), around=USER_NAMESPACE),
]
USERS = [
    Observation("user-target", TOUCH, FIRST_TOUCH, inside=USER),
    Observation("user-both", TOUCH, NotSampled("not_permitted"), around=USER),
    Observation("user-both-paranoid-1", TOUCH, FIRST_TOUCH, around=USER, **paranoid(1)),
    # Without kernel samples, first touch cannot be ruled out.
    Observation(
        "user-both-paranoid-2", TOUCH, Status("first_touch", "not_measured", "contributor", "wall"), around=USER, **paranoid(2)
    ),
    Observation("user-looks-at-root", TOUCH, Refused("not permitted to read process"), tool=USER),
]


def memory_of(variant, low, high):
    """One run of `bench numa`: the share of its memory that is not on its threads' node. An emulated node is as fast as another."""
    spec = {"experiment": "numa", "variant": variant, "seed": 1, "scale": 0.1, "timed_s": 0.5, "announce": False}
    arguments = f"bench experiment-run {shlex.quote(json.dumps(spec))}"
    return Command(f"numa-{variant}", arguments, Figure("elsewhere", low, high))


MEMORY_OF_NODES = [memory_of("local", 0, 0.1), memory_of("remote", 0.9, 1), memory_of("interleaved", 0.4, 0.6)]
UNPLUGGED = Observation(
    "cpu-unplugged",
    f"{TOUCH} --threads 4",
    FIRST_TOUCH,
    during="echo 0 >/sys/devices/system/cpu/cpu3/online",
    after="echo 1 >/sys/devices/system/cpu/cpu3/online",
)

BOOTS = [
    Boot(
        "v2-2nodes",
        cgroup=2,
        nodes=2,
        huge_pages="always",
        scenarios=[
            CHECK,
            CHECK_USER,
            CALIBRATE,
            *FIRST_TOUCH_PAIR,
            *LOCK_PAIR,
            *CONTENTION_PAIR,
            *THROTTLED_PAIR,
            *NAMESPACES,
            *USERS,
            *MEMORY_OF_NODES,
            UNPLUGGED,
        ],
    ),
    Boot(
        "v1-1node",
        cgroup=1,
        nodes=1,
        huge_pages="never",
        scenarios=[CHECK, *THROTTLED_PAIR, *FIRST_TOUCH_PAIR, *LOCK_PAIR, *CONTENTION_PAIR, UNPLUGGED],
    ),
]

# The scenarios for one kernel in three minutes.
CI_KERNEL = "6.12"
CI = Boot(
    "v2-2nodes",
    cgroup=2,
    nodes=2,
    huge_pages="always",
    scenarios=[CHECK, *FIRST_TOUCH_PAIR, *THROTTLED_PAIR, NAMESPACES[1], NAMESPACES[2], USERS[1], UNPLUGGED],
)

# On arm64, which is emulated more slowly.
ARM64 = Boot(
    "arm64",
    cgroup=2,
    nodes=1,
    huge_pages="always",
    scenarios=[CHECK, *FIRST_TOUCH_PAIR, *LOCK_PAIR, *CONTENTION_PAIR],
)
