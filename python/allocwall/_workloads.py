"""The programs of `allocwall bench obmalloc`, each run in a new process: python -m allocwall._workloads NAME ARM [SET [FOLDER]].

Each program has three parts that are timed separately: build the data, use it, and free it. This module has the nine workloads of the
published comparison of pymalloc on huge pages, without the garbage collector, and variants of four of them. Real programs are in
`_real`, ordinary ones in `_ordinary`. `--probe SET` prints, as JSON, the kind of this interpreter and the missing packages of each program
of a set.

Published are the kinds, numbers and sizes of the objects, what is done with them, and that all of them die at the end. Published times are
those of the whole, here the total. Chosen here: what counts as building and what as using; that every other block is the one at an even
place; that to touch a block is to write its byte 0; the keys and values of the dicts.
"""

import collections
import gc
import importlib
import importlib.util
import json
import os
import random
import resource
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple


class Workload(NamedTuple):
    doc: str
    build: Callable[..., Any]
    use: Callable[[Any], Any]
    #: Makes the argument of `build`, untimed. Its own argument is a folder, which may contain the file of an earlier run.
    inputs: Optional[Callable[[str], Any]] = None
    #: Required packages that are not in the standard library.
    needs: Tuple[str, ...] = ()
    #: Its heap may not fill a huge page.
    small: bool = False


def _blocks(count: int, size: int) -> List[bytearray]:
    return [bytearray(size) for _ in range(count)]


def _write_first(blocks: List[bytearray]) -> None:
    for block in blocks:
        block[0] = 1


def _appended(count: int) -> List[bytearray]:
    blocks: List[bytearray] = []
    for _ in range(count):
        blocks.append(bytearray(64))
    return blocks


def _append_and_pop(blocks: List[bytearray]) -> None:
    """As often as there are blocks. Each pop moves the places of all the others: 1.6 MB for 200,000 blocks."""
    for _ in range(len(blocks)):
        blocks.append(bytearray(64))
        blocks.pop(0)


def _append_and_pop_left(blocks: "collections.deque[bytearray]") -> None:
    for _ in range(len(blocks)):
        blocks.append(bytearray(64))
        blocks.popleft()


def _make_and_delete(count: int) -> None:
    for _ in range(count):
        made = {"a": 1, "b": 2, "c": 3, "d": 4}
        del made


def _drop_and_refill(blocks: List[Any]) -> None:
    for at in range(0, len(blocks), 2):
        blocks[at] = None
    for at in range(0, len(blocks), 2):
        blocks[at] = bytearray(128)


def _mixed() -> List[bytearray]:
    sizes = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    return [bytearray(sizes[i % len(sizes)]) for i in range(500_000)]


class _Point:
    __slots__ = ("x", "y", "z")

    def __init__(self, x: int, y: int, z: int) -> None:
        self.x = x
        self.y = y
        self.z = z


def _layers(layers: int, count: int) -> List[List[bytearray]]:
    return [_blocks(count, 256) for _ in range(layers)]


def _rounds(rounds: int, count: int) -> None:
    for _ in range(rounds):
        blocks = _blocks(count, 256)
        del blocks


def _walk(blocks: List[bytearray]) -> None:
    order = list(range(len(blocks)))
    random.Random(42).shuffle(order)
    for at in order:
        blocks[at][0] = 1


def _nothing(_: Any) -> None:
    pass


#: By their published names.
PUBLISHED: Dict[str, Workload] = {
    "tuples": Workload("1 M tuples of three ints", lambda: [(i, i + 1, i + 2) for i in range(1_000_000)], _nothing),
    "fragmentation": Workload("500 k of 128 B, every second one replaced", lambda: _blocks(500_000, 128), _drop_and_refill),
    "mixed": Workload("500 k of 8 to 512 B", _mixed, _nothing),
    "bulk": Workload("1 M of 48 B, one byte written to each", lambda: _blocks(1_000_000, 48), _write_first),
    "instances": Workload(
        "500 k objects with three slots, each with an int of its own",
        lambda: [_Point(i, i + 1, i + 2) for i in range(500_000)],
        _nothing,
    ),
    "arena_pressure": Workload("10 layers of 200 k of 256 B, all kept: 700 MB", lambda: _layers(10, 200_000), _nothing),
    "random_walk": Workload("1 M of 64 B, touched in random order", lambda: _blocks(1_000_000, 64), _walk),
    "churn": Workload(
        "200 k of 64 B in a list; 200 k times one appended and the first popped", lambda: _appended(200_000), _append_and_pop
    ),
    "dict_churn": Workload(
        "500 k times a dict of four keys is made and deleted", lambda: None, lambda _: _make_and_delete(500_000), small=True
    ),
}

#: In these, the arenas grow where the published workload stays small, or shrink again where it keeps all, or the list does not move.
VARIANTS: Dict[str, Workload] = {
    "instances_shared": Workload(
        "variant of instances: one int in all three slots", lambda: [_Point(i, i, i) for i in range(500_000)], _nothing
    ),
    "arena_rounds": Workload(
        "variant of arena_pressure: 10 times 200 k of 256 B, freed each time", lambda: None, lambda _: _rounds(10, 200_000)
    ),
    "churn_deque": Workload(
        "variant of churn: a deque, from which the first is removed without a move",
        lambda: collections.deque(_appended(200_000)),
        _append_and_pop_left,
    ),
    "dicts_kept": Workload(
        "variant of dict_churn: 500 k dicts of four keys, all kept",
        lambda: [{"a": i, "b": i, "c": i, "d": i} for i in range(500_000)],
        _nothing,
    ),
}

WORKLOADS: Dict[str, Workload] = {**PUBLISHED, **VARIANTS}


def programs(name: str) -> Dict[str, Workload]:
    """The programs of a set: workloads, real or ordinary."""
    if name == "workloads":
        return WORKLOADS
    # Without the package if this file is run directly, with an interpreter that does not have the package.
    module = importlib.import_module("._" + name, __package__) if __package__ else importlib.import_module("_" + name)
    found: Dict[str, Workload] = module.PROGRAMS
    return found


def run(workload: Workload, arm: str, folder: str = ".", collector: bool = False, again_s: float = 0.0) -> Dict[str, Any]:
    """One run. Times in seconds, memory in bytes. With `again_s`, the use is repeated for that long, at least three times, and its
    median counts, so that a pause of the machine does not distort a short program."""
    mode, _, settings = arm.partition(":")
    chosen = {k: int(v) for k, _, v in (part.partition("=") for part in settings.split(",") if part)}
    hugepages: Any = None
    if mode in ("thp", "hugetlb", "auto", "collapse"):
        from . import hugepages

        if mode != "collapse":
            hugepages.enable(mode, **({"fork_unsafe": True} if mode == "hugetlb" else {}), **chosen)
    arguments = () if workload.inputs is None else (workload.inputs(folder),)
    gc.collect()
    if not collector:
        gc.disable()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    built = workload.build(*arguments)
    built_at = time.perf_counter()
    if mode == "collapse":
        # It happens between building and using, and its time is included in the total.
        hugepages.enable("collapse")
    uses: List[float] = []
    begun_at = built_at
    while True:
        result = workload.use(built)
        used_at = time.perf_counter()
        uses.append(used_at - begun_at)
        begun_at = used_at
        if sum(uses) >= again_s and len(uses) >= (3 if again_s else 1):
            break
    used = sorted(uses)[len(uses) // 2]
    memory = _memory()
    left_at = time.perf_counter()
    del built, result
    end = time.perf_counter()
    return {
        "build_s": built_at - start,
        "use_s": used,
        "teardown_s": end - left_at,
        "total_s": built_at - start + used + end - left_at,
        "faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
        **memory,
        "status": hugepages.status() if hugepages else None,
    }


def _memory() -> Dict[str, int]:
    fields = {}
    with open("/proc/self/smaps_rollup") as rollup:
        for line in rollup:
            name, _, rest = line.partition(":")
            if rest.endswith("kB\n"):
                fields[name] = int(rest.split()[0]) << 10
    # Kernels without hugetlbfs do not have these fields; the value is then 0.
    reserved = fields.get("Private_Hugetlb", 0) + fields.get("Shared_Hugetlb", 0)
    # The kernel does not count reserved pages in the resident set.
    return {"resident_bytes": fields["Rss"] + reserved, "huge_bytes": fields["AnonHugePages"] + reserved}


def probe(name: str) -> Dict[str, Any]:
    """The kind of this interpreter, the reason why each mode is refused (None if it is not), and the missing packages of each program."""
    refusals: Dict[str, Optional[str]] = {}
    if __package__:
        from . import hugepages

        for mode in hugepages.MODES:
            try:
                hugepages._refuse(mode, fork_unsafe=True)
            except hugepages.Refused as refused:
                refusals[mode] = str(refused)
            else:
                refusals[mode] = None
    return {
        "executable": sys.executable,
        "version": "%d.%d.%d" % sys.version_info[:3],
        "implementation": sys.implementation.name,
        "free_threaded": "t" in getattr(sys, "abiflags", ""),
        "script": os.path.abspath(__file__),
        "refusals": refusals,
        "programs": [
            {
                "name": key,
                "about": program.doc,
                "small": name == "ordinary" or program.small,
                "missing": [need for need in program.needs if importlib.util.find_spec(need) is None],
            }
            for key, program in programs(name).items()
        ],
    }


def _main(arguments: List[str]) -> None:
    if arguments[0] == "--probe":
        json.dump(probe(arguments[1]), sys.stdout)
        return
    name, arm, which, folder = (*arguments, *("workloads", ".")[len(arguments) - 2 :])
    again_s = 0.5 if which == "ordinary" else 0.0
    json.dump(run(programs(which)[name], arm, folder, which != "workloads", again_s), sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1:])
