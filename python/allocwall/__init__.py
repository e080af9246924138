"""CPython's small objects on huge pages, without rebuilding the interpreter; and exact counts of allocator calls.

    import allocwall
    allocwall.hugepages.enable()

or run `python -m allocwall run [-m] app.py ...`, or set ALLOCWALL_HUGEPAGES=1 in the environment.

    with allocwall.count() as c:
        ...
    print(c)
"""

from __future__ import annotations

from . import hugepages

# A start file imports this package before the program's own imports. So `count` and `Totals` are imported on first use.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .counting import Totals, count

__all__ = ["hugepages", "count", "Totals"]


def __getattr__(name: str) -> Any:
    if name not in ("count", "Totals"):
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    from . import counting

    # Import only once: an import takes a lock, and a fork at that moment would leave the lock held in the child.
    globals().update(count=counting.count, Totals=counting.Totals)
    return globals()[name]
