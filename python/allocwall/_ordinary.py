"""Twenty small programs as in benchmark suites for Python, with heaps of a few megabytes: `allocwall bench obmalloc --set ordinary`.
Huge pages can gain little here; the question is whether they cost anything."""

import asyncio
import collections
import copy
import csv
import decimal
import heapq
import io
import itertools
import json
import logging
import math
import pickle
import random
import re
import sqlite3
import string
import zlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generator, List, Optional, Tuple

if __package__:
    from ._workloads import Workload
else:
    from _workloads import Workload


def _nbody(_: None) -> float:
    bodies = [[k * 1.5, k * 0.7, k * 0.1, 0.01 * k, -0.02 * k, 0.005, 1.0 / k] for k in range(1, 6)]
    pairs = list(itertools.combinations(bodies, 2))
    for _step in range(9_000):
        for one, two in pairs:
            dx, dy, dz = one[0] - two[0], one[1] - two[1], one[2] - two[2]
            pull = 0.001 / (dx * dx + dy * dy + dz * dz + 0.01) ** 1.5
            for axis, delta in ((3, dx), (4, dy), (5, dz)):
                one[axis] -= delta * two[6] * pull
                two[axis] += delta * one[6] * pull
        for body in bodies:
            body[0] += 0.001 * body[3]
            body[1] += 0.001 * body[4]
            body[2] += 0.001 * body[5]
    return bodies[0][0]


def _spectral(_: None) -> float:
    size = 120
    matrix = [[1.0 / ((i + j) * (i + j + 1) // 2 + i + 1) for j in range(size)] for i in range(size)]
    columns = list(zip(*matrix))
    vector = [1.0] * size
    for _step in range(16):
        vector = [sum(map(float.__mul__, row, vector)) for row in matrix]
        vector = [sum(map(float.__mul__, column, vector)) for column in columns]
        largest = max(vector)
        vector = [value / largest for value in vector]
    return sum(vector)


def _fannkuch(_: None) -> int:
    most = 0
    for order in itertools.permutations(range(8)):
        flips, row = 0, list(order)
        while row[0]:
            row[: row[0] + 1] = row[row[0] :: -1]
            flips += 1
        most = max(most, flips)
    return most


def _queens(_: None) -> int:
    def place(row: int, columns: int, left: int, right: int) -> int:
        if row == 9:
            return 1
        found, free = 0, 0x1FF & ~(columns | left | right)
        while free:
            bit = free & -free
            free ^= bit
            found += place(row + 1, columns | bit, (left | bit) << 1, (right | bit) >> 1)
        return found

    return sum(place(0, 0, 0, 0) for _ in range(16))


def _mandelbrot(_: None) -> int:
    inside = 0
    for y in range(130):
        for x in range(130):
            c, z = complex(x / 50 - 2.0, y / 65 - 1.0), 0j
            for _step in range(60):
                z = z * z + c
                if abs(z) > 2:
                    break
            else:
                inside += 1
    return inside


def _digits(_: None) -> str:
    # Gibbons' spigot for pi: large integers.
    q, r, t, k, n, l = 1, 0, 1, 1, 3, 3
    digits: List[str] = []
    while len(digits) < 1_000:
        if 4 * q + r - t < n * t:
            digits.append(str(n))
            q, r, n = 10 * q, 10 * (r - n * t), 10 * (3 * q + r) // t - 10 * n
        else:
            q, r, t, k, n, l = q * k, (2 * q + r) * l, t * l, k + 1, (q * (7 * k + 2) + r * l) // (t * l), l + 2
    return "".join(digits)


class _Node:
    __slots__ = ("left", "right")

    def __init__(self, depth: int) -> None:
        self.left: Optional[_Node] = _Node(depth - 1) if depth else None
        self.right: Optional[_Node] = _Node(depth - 1) if depth else None

    def count(self) -> int:
        return 1 + (self.left.count() + self.right.count() if self.left and self.right else 0)


def _trees(_: None) -> int:
    return sum(_Node(11).count() for _ in range(55))


@dataclass
class _Point:
    x: float
    y: float
    z: float

    def normalised(self) -> "_Point":
        length = math.sqrt(self.x**2 + self.y**2 + self.z**2) or 1.0
        return _Point(self.x / length, self.y / length, self.z / length)


def _points(_: None) -> float:
    total = 0.0
    for _round in range(12):
        points = [_Point(math.sin(k), math.cos(k), k % 7).normalised() for k in range(20_000)]
        total += max(point.x for point in points)
    return total


_DOCUMENT = {"id": 7, "name": "a name", "tags": ["x", "y", "z"] * 4, "inner": {"a": 1.5, "b": None, "c": [True, False] * 5}}


def _json(_: None) -> int:
    return sum(len(json.dumps(json.loads(json.dumps(_DOCUMENT)))) for _ in range(22_000))


def _pickle(_: None) -> int:
    return sum(len(pickle.dumps(pickle.loads(pickle.dumps(_DOCUMENT)))) for _ in range(60_000))


def _deepcopy(_: None) -> Any:
    for _round in range(9_000):
        copied = copy.deepcopy(_DOCUMENT)
    return copied


def _regex(_: None) -> int:
    line = "127.0.0.%d - - [21/Nov/2026:13:0%d:00] \"GET /path/%d?q=a+b HTTP/1.1\" 200 %d \"-\" \"agent/1.0\""
    pattern = re.compile(r'(?P<host>\S+) \S+ \S+ \[(?P<when>[^\]]+)\] "(?P<verb>[A-Z]+) (?P<path>\S+) [^"]+" (?P<code>\d+) (?P<size>\d+)')
    total = 0
    for at in range(90_000):
        found = pattern.match(line % (at % 250, at % 10, at, at * 7))
        total += int(found["size"]) if found else 0
    return total


def _format(_: None) -> int:
    template = string.Template("$name has $count of $item")
    total = 0
    for at in range(60_000):
        total += len("%s %d %.3f" % ("name", at, at / 7)) + len(f"{at:>12,} {at / 3:<10.2f}|{'x' * (at % 9)}")
        if at % 4 == 0:
            total += len(template.substitute(name="n", count=at, item="i"))
    return total


def _logging(_: None) -> int:
    stream = io.StringIO()
    logger = logging.Logger("bench", logging.INFO)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    for at in range(25_000):
        logger.info("request %d took %s", at, 0.5)
        logger.debug("not written %d", at)
    return len(stream.getvalue())


def _generators(_: None) -> int:
    def walk(low: int, high: int) -> Generator[int, None, None]:
        if low < high:
            middle = (low + high) // 2
            yield from walk(low, middle)
            yield middle
            yield from walk(middle + 1, high)

    return sum(sum(walk(0, 1 << 13)) for _ in range(14))


def _asyncio(_: None) -> int:
    async def leaf(at: int) -> int:
        await asyncio.sleep(0)
        return at

    async def tree(depth: int) -> int:
        if depth == 0:
            return await leaf(1)
        return sum(await asyncio.gather(*(tree(depth - 1) for _ in range(5))))

    return asyncio.run(tree(6))


def _sqlite(_: None) -> int:
    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, c REAL)")
    base.executemany("INSERT INTO t VALUES (?, ?, ?)", ((at, "name %d" % (at % 997), at / 3) for at in range(90_000)))
    found = base.execute("SELECT b, COUNT(*), SUM(c) FROM t GROUP BY b ORDER BY 3 DESC").fetchall()
    return len(found) + len(base.execute("SELECT * FROM t WHERE a % 2").fetchall())


def _decimal(_: None) -> decimal.Decimal:
    total = decimal.Decimal(0)
    cent, rate = decimal.Decimal("0.01"), decimal.Decimal("0.0675")
    for at in range(220_000):
        price = decimal.Decimal(at % 10_000) * cent
        total += (price + price * rate).quantize(cent, rounding=decimal.ROUND_HALF_EVEN)
    return total


def _paths(_: None) -> int:
    chance = random.Random(1).randrange
    roads: Dict[int, List[Tuple[int, int]]] = collections.defaultdict(list)
    for at in range(40_000):
        roads[chance(8_000)].append((chance(8_000), 1 + at % 20))
    reached: Dict[int, int] = {}
    for start in range(6):
        reached = {}
        queue = [(0, start)]
        while queue:
            length, here = heapq.heappop(queue)
            if here not in reached:
                reached[here] = length
                for there, far in roads[here]:
                    heapq.heappush(queue, (length + far, there))
    return len(reached)


def _csv(_: None) -> int:
    file = io.StringIO()
    csv.writer(file).writerows((at, "name, %d" % at, at / 3, "x" * (at % 11)) for at in range(70_000))
    file.seek(0)
    rows = list(csv.DictReader(file, ["id", "name", "value", "rest"]))
    rows.sort(key=lambda row: row["name"])
    return zlib.crc32("".join(row["name"] for row in rows).encode())


def _one(doc: str, run: Callable[[None], Any]) -> Workload:
    """A program that only has a use: it frees everything that it builds."""
    return Workload(doc, lambda: None, run)


PROGRAMS: Dict[str, Workload] = {
    "nbody": _one("planets: floats in lists", _nbody),
    "spectral_norm": _one("a matrix of floats times a vector", _spectral),
    "fannkuch": _one("permutations of eight, flipped", _fannkuch),
    "queens": _one("nine queens: integers and recursion", _queens),
    "mandelbrot": _one("complex numbers", _mandelbrot),
    "pi_digits": _one("a thousand digits of pi: large integers", _digits),
    "binary_trees": _one("trees of 4,095 nodes, built and dropped", _trees),
    "points": _one("dataclasses with three floats", _points),
    "json_small": _one("a small document, to JSON and back", _json),
    "pickle_small": _one("a small document, to a pickle and back", _pickle),
    "deepcopy": _one("copies of a small document", _deepcopy),
    "regex": _one("lines of a web server's log", _regex),
    "formatting": _one("strings, in three ways", _format),
    "logging": _one("log records written to memory", _logging),
    "generators": _one("recursive generators", _generators),
    "asyncio": _one("a tree of 15,625 coroutines", _asyncio),
    "sqlite": _one("a table in memory", _sqlite),
    "decimal": _one("sums of money", _decimal),
    "shortest_paths": _one("Dijkstra's search with a heap", _paths),
    "csv": _one("rows written, read and sorted", _csv),
}
