"""CPython's small objects on huge pages, on interpreters nobody rebuilt; and exact counts of what code asks of its allocators.

    import allocwall
    allocwall.hugepages.enable()

or `python -m allocwall run [-m] app.py ...`, or ALLOCWALL_HUGEPAGES=1 in the environment.

    with allocwall.count() as c:
        ...
    print(c)
"""

from __future__ import annotations

from . import hugepages

# Imported at the start of programs that expect to import things first: `count` and `Totals` are when they are asked for.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .counting import Totals, count

__all__ = ["hugepages", "count", "Totals"]


def __getattr__(name: str) -> Any:
    if name not in ("count", "Totals"):
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    from . import counting

    # Once: an import takes a lock, which a fork at that moment would leave closed.
    globals().update(count=counting.count, Totals=counting.Totals)
    return globals()[name]
