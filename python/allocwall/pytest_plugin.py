"""The pytest plugin: a test fails when it asks more of CPython's allocators than its budget.

    @pytest.mark.alloc_budget(calls=30, bytes=4096, peak=2048)
    def test_handle(): ...

calls, bytes and peak are those of `allocwall.count`, at most. Of the test's own call: neither fixtures nor other threads, and of
an asynchronous test its own steps. What it does for the first time counts too: imports, caches.

`by_line=True` in the mark, or `alloc_budget_by_line = true` in the configuration, also says which lines asked, at some hundred
nanoseconds a call. The counts are the same, but for the frame objects that exceptions make since 3.11: they are there already.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Dict, Iterator, List

import pytest

if TYPE_CHECKING:
    # It loads the extension: only where a test has a budget.
    from .counting import count

#: What can be limited, and where a count has it.
_LIMITS = {"calls": "calls", "bytes": "bytes", "peak": "peak_bytes"}
_BY_LINE = "alloc_budget_by_line"
#: So many lines are shown at most.
_LINES = 20


def pytest_addoption(parser: Any) -> None:
    parser.addini(_BY_LINE, "alloc_budget: say which lines asked", type="bool", default=False)


def pytest_configure(config: Any) -> None:
    config.addinivalue_line(
        "markers",
        "alloc_budget(calls=N, bytes=N, peak=N, by_line=False): fail a test that asks CPython's allocators for more (allocwall)",
    )


def pytest_collection_modifyitems(items: List[Any]) -> None:
    for item in items:
        _budget(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    budget = _budget(item)
    test = getattr(item, "obj", None)
    if not budget or test is None:
        yield
        return
    from .counting import wrap

    by_line = budget.pop("by_line", item.config.getini(_BY_LINE))
    counts: List[count] = []
    counted = wrap(test, counts.append, by_line=by_line)
    item.obj = _checked(counted, test, counts, budget)
    try:
        yield
    finally:
        item.obj = test


def _checked(counted: Any, test: Any, counts: List[count], budget: Dict[str, Any]) -> Any:
    """The counted test, which fails when it was over its budget and nothing else failed."""
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def checked(*args: Any, **kwargs: Any) -> Any:
            result = await counted(*args, **kwargs)
            _check(counts[-1], budget)
            return result

    else:

        @functools.wraps(test)
        def checked(*args: Any, **kwargs: Any) -> Any:
            result = counted(*args, **kwargs)
            _check(counts[-1], budget)
            return result

    return checked


def _check(counted: count, budget: Dict[str, Any]) -> None:
    over = [
        "%s %d, budget %d" % (name, getattr(counted, _LIMITS[name]), most)
        for name, most in budget.items()
        if getattr(counted, _LIMITS[name]) > most
    ]
    if not over:
        if not counted.complete:
            pytest.fail("alloc_budget: some of it went by uncounted", pytrace=False)
        return
    lines = ["alloc_budget: " + "; ".join(over), str(counted)]
    asked = counted.lines
    if asked:
        lines.append("%9s %13s  %s" % ("calls", "bytes", "line"))
        lines += [
            "%9d %13d  %s"
            % (line.calls, line.bytes, "%s:%d in %s" % (line.file, line.line, line.function) if line.file else "no Python code")
            for line in asked[:_LINES]
        ]
        if len(asked) > _LINES:
            rest = asked[_LINES:]
            lines.append("%9d %13d  %d other lines" % (sum(r.calls for r in rest), sum(r.bytes for r in rest), len(rest)))
    pytest.fail("\n".join(lines), pytrace=False)


def _budget(item: Any) -> Dict[str, Any]:
    """A test's budget, of its nearest mark; empty without one."""
    mark = item.get_closest_marker("alloc_budget")
    if mark is None:
        return {}
    numbers = {name: value for name, value in mark.kwargs.items() if name != "by_line"}
    if (
        mark.args
        or not numbers
        or any(name not in _LIMITS or type(value) is not int or value < 0 for name, value in numbers.items())
    ):
        raise pytest.UsageError(
            "%s: alloc_budget takes calls, bytes or peak, whole numbers from 0 on, and by_line" % item.nodeid
        )
    return dict(mark.kwargs)
