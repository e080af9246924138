"""The pytest plugin: a test fails if its use of CPython's allocators exceeds its budget.

    @pytest.mark.alloc_budget(calls=30, bytes=4096, peak=2048)
    def test_handle(): ...

calls, bytes and peak are upper limits for the values of `allocwall.count`. The plugin counts the call of the test function:
no fixtures and no other threads; of an asynchronous test, its own steps. Work that is done only the first time (imports,
caches) counts too.

With `by_line=True` in the mark, or `alloc_budget_by_line = true` in the configuration, the failure also lists the lines that
allocated. It costs some hundred nanoseconds per call. The counts are the same, with one exception: since 3.11, the frame
objects that exceptions create already exist, so they are not counted.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

import pytest

if TYPE_CHECKING:
    # This loads the extension, so it is imported only for tests that have a budget.
    from .counting import count

#: The values that can be limited, and their attributes of a count.
_LIMITS = {"calls": "calls", "bytes": "bytes", "peak": "peak_bytes"}
_BY_LINE = "alloc_budget_by_line"
#: The maximum number of lines to show.
_LINES = 20


def pytest_addoption(parser: Any) -> None:
    parser.addini(_BY_LINE, "alloc_budget: list the lines that allocated", type="bool", default=False)


def pytest_configure(config: Any) -> None:
    config.addinivalue_line(
        "markers",
        "alloc_budget(calls=N, bytes=N, peak=N, by_line=False): fail a test that allocates more from CPython (allocwall)",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    budget = _budget(item)
    test = getattr(item, "obj", None)
    if budget is None or test is None:
        yield
        return
    if not budget:
        item.obj = _refused
        try:
            yield
        finally:
            item.obj = test
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
    """The counted test. It fails if it exceeded its budget and did not fail otherwise."""
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
            pytest.fail("alloc_budget: the count is incomplete: some allocator calls were not seen", pytrace=False)
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


def _budget(item: Any) -> Optional[Dict[str, Any]]:
    """A test's budget, from its closest mark; None without a mark, and empty if the mark makes no sense."""
    mark = item.get_closest_marker("alloc_budget")
    if mark is None:
        return None
    numbers = {name: value for name, value in mark.kwargs.items() if name != "by_line"}
    wrong = any(name not in _LIMITS or type(value) is not int or value < 0 for name, value in numbers.items())
    return {} if mark.args or not numbers or wrong else dict(mark.kwargs)


def _refused(*_args: Any, **_kwargs: Any) -> None:
    """Stands in for a test whose budget makes no sense: only this test fails."""
    pytest.fail("alloc_budget takes calls, bytes or peak as integers of at least 0, and optionally by_line", pytrace=False)
