"""Programs with heaps of 200 MB to 2 GB: `allocwall bench obmalloc --set real`. Inputs are made here; nothing is downloaded."""

import collections
import gc
import json
import os
import pickle
import random
from typing import Any, Callable, Dict, List, Tuple
from xml.etree import ElementTree

if __package__:
    from ._workloads import Workload
else:
    from _workloads import Workload


def _file(folder: str, name: str, write: Callable[[Any], None]) -> str:
    """The path of an input file. It is written once and used again by later runs."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        with open(path + ".new", "wb") as file:
            write(file)
        os.replace(path + ".new", path)
    return path


def _record(at: int) -> Dict[str, Any]:
    return {
        "id": at,
        "stream": "stream-%07d" % (at * 7919 % 1_000_003),
        "duration": at % 97 / 8,
        "codec": {"name": "h264", "profile": at % 5, "bitrate": 500_000 + at % 4096},
        "edges": [{"pop": "pop-%03d" % (at * k % 613), "latency": at % 31 + k} for k in (1, 2, 3)],
        "tags": ["tag-%04d" % (at * k % 9973) for k in (5, 7, 11, 13)],
    }


# ---- documents ----


def _json_text(folder: str) -> str:
    def write(file: Any) -> None:
        file.write(b"[")
        for at in range(670_000):
            file.write(b",\n" * (at > 0) + json.dumps(_record(at)).encode())
        file.write(b"]")

    with open(_file(folder, "records.json", write)) as file:
        return file.read()


def _json_sum(records: List[Dict[str, Any]]) -> int:
    return sum(record["codec"]["bitrate"] + record["edges"][1]["latency"] for record in records)


def _xml_path(folder: str) -> str:
    def write(file: Any) -> None:
        file.write(b"<catalogue>\n")
        for at in range(250_000):
            line = '<book id="b%d" lang="en"><title>Title %d</title><author>Author %d</author><price>%d.50</price></book>\n'
            file.write((line % (at, at, at % 4001, at % 90)).encode())
        file.write(b"</catalogue>\n")

    return _file(folder, "catalogue.xml", write)


def _xml_search(tree: Any) -> int:
    return sum(1 for book in tree.getroot() if book.find("price").text.startswith("4"))


def _pickled(folder: str) -> bytes:
    def write(file: Any) -> None:
        # Copied one by one, because pickle would store an object that occurs twice as a reference.
        file.write(pickle.dumps([json.loads(json.dumps(_record(at))) for at in range(120_000)], protocol=4))

    with open(_file(folder, "records.pickle", write), "rb") as file:
        return file.read()


# ---- containers ----


def _containers() -> List[List[int]]:
    gc.disable()
    return [[at] for at in range(5_000_000)]


def _collect(_: Any) -> None:
    gc.collect()
    gc.enable()


class _Account:
    __slots__ = ("balance", "name")

    def __init__(self, at: int) -> None:
        self.balance = at
        self.name = "account %d" % at


def _shuffled(_: str) -> List[int]:
    order = list(range(1_500_000))
    random.Random(42).shuffle(order)
    return order


def _accounts(order: List[int]) -> Tuple[List[int], Dict[str, _Account]]:
    return order, {"key-%d" % at: _Account(at) for at in range(len(order))}


def _look_up(built: Tuple[List[int], Dict[str, _Account]]) -> int:
    order, accounts = built
    total = 0
    for at in order:
        total += accounts["key-%d" % at].balance
    return total


# ---- libraries ----


def _edges(_: str) -> List[Tuple[int, int]]:
    chance = random.Random(42).randrange
    return [(chance(120_000), chance(120_000)) for _ in range(450_000)]


def _graph(edges: List[Tuple[int, int]]) -> Any:
    import networkx

    return networkx.Graph(edges)


def _search(graph: Any) -> int:
    import networkx

    return sum(1 for _ in networkx.bfs_edges(graph, 0))


def _statements(_: str) -> List[str]:
    text = (
        "SELECT a.id, a.name, COUNT(*) AS n, SUM(b.amount * %d) AS total FROM accounts AS a "
        "JOIN orders_%d AS b ON a.id = b.account AND b.state IN ('open', 'paid', 'sent') "
        "LEFT JOIN regions AS r ON r.id = a.region WHERE a.created > '2020-01-%02d' AND (b.amount > %d OR r.name LIKE 'north%%') "
        "GROUP BY a.id, a.name HAVING COUNT(*) > %d ORDER BY total DESC LIMIT 100"
    )
    return [text % (at % 7 + 1, at % 50, at % 28 + 1, at % 900, at % 5) for at in range(700)]


def _trees(statements: List[str]) -> Tuple[List[Any], List[Dict[str, Any]]]:
    import sqlglot

    # Other memory of the process, which exists when the collector runs.
    held = [_record(at) for at in range(70_000)]
    return [sqlglot.parse_one(statement) for statement in statements], held


def _written(built: Tuple[List[Any], List[Dict[str, Any]]]) -> List[str]:
    return [tree.sql() for tree in built[0]]


def _rows(_: str) -> Any:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}])
        django.setup()
    from django.template import Template

    return Template(
        "<table>{% for row in rows %}<tr class=\"{% cycle 'odd' 'even' %}\"><td>{{ row.id }}</td><td>{{ row.stream }}</td>"
        "<td>{{ row.codec.name|upper }}</td><td>{% if row.duration > 6 %}long{% else %}short{% endif %}</td>"
        "<td>{% for tag in row.tags %}{{ tag }} {% endfor %}</td></tr>{% endfor %}</table>"
    )


def _page(template: Any) -> Tuple[Any, List[Dict[str, Any]]]:
    return template, [_record(at) for at in range(150_000)]


def _render(built: Tuple[Any, List[Dict[str, Any]]]) -> int:
    from django.template import Context

    template, rows = built
    return sum(len(template.render(Context({"rows": rows[at::75]}))) for at in range(6))


# ---- a service ----


class _Session:
    def __init__(self, at: int) -> None:
        self.user = "user-%d" % at
        self.seen = at
        self.basket = [{"item": at * k % 10_007, "count": k} for k in (1, 2, 3)]
        self.flags = {"beta": at % 2 == 0, "region": "r%d" % (at % 19)}


def _sessions() -> "collections.OrderedDict[int, _Session]":
    return collections.OrderedDict((at, _Session(at)) for at in range(200_000))


def _serve(sessions: "collections.OrderedDict[int, _Session]") -> int:
    """Requests to old and new sessions. A new session replaces the one that was unused for the longest time."""
    chance = random.Random(42).randrange
    sent = 0
    newest = len(sessions)
    for at in range(150_000):
        request = json.loads('{"user": %d, "item": %d, "meta": {"agent": "a/%d", "retry": false}}' % (at, at % 997, at % 7))
        if at % 3 == 0:
            sessions[newest] = _Session(newest)
            sessions.popitem(last=False)
            newest += 1
            continue
        key = newest - 1 - chance(150_000)
        session = sessions[key]
        sessions.move_to_end(key)
        session.seen = at
        session.basket = [*session.basket[-4:], {"item": request["item"], "count": 1}]
        sent += len(json.dumps({"user": session.user, "basket": session.basket}))
    return sent


def _nothing(_: Any) -> None:
    pass


PROGRAMS: Dict[str, Workload] = {
    "json": Workload("parse 200 MB of JSON, read two fields of each record", json.loads, _json_sum, _json_text),
    "elementtree": Workload("parse 27 MB of XML, look through a million elements", ElementTree.parse, _xml_search, _xml_path),
    "unpickle": Workload("load 120 k records from a pickle", pickle.loads, _nothing, _pickled),
    "gc_collect": Workload("gc.collect() over 5 M lists", _containers, _collect),
    "dict_lookup": Workload("1.5 M objects in a dict, looked up in random order", _accounts, _look_up, _shuffled),
    "networkx": Workload("breadth-first search of 450 k edges", _graph, _search, _edges, ("networkx",)),
    "sqlglot": Workload(
        "parse 700 SQL statements beside 70 k records, write them again",
        _trees,
        _written,
        _statements,
        ("sqlglot",),
    ),
    "django": Workload("150 k records, six pages of 2,000 rows rendered", _page, _render, _rows, ("django",)),
    "service": Workload("200 k sessions, 150 k requests, a third of them new sessions", _sessions, _serve),
}
