"""Totals by route, for the middlewares."""

from __future__ import annotations

from typing import Dict

from .counting import Totals, count

#: The key of the scope or the environment under which an application of any framework may put the name of the route.
TOLD = "allocwall.route"
#: The route of requests without a known route.
UNTOLD = "(no route)"
#: The route of requests whose route is new after the limit of routes is reached.
OTHERS = "(other routes)"


class Routes(Dict[str, Totals]):
    """Totals by route: at most `most` routes, and one entry for all others."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def add(self, method: str, route: str, counted: count) -> None:
        key = "%s %s" % (method, route) if method else route
        totals = self.get(key)
        if totals is None:
            if len(self) >= self.most:
                key = OTHERS
            # Atomic, so that two threads with the same new route share one entry.
            totals = self.setdefault(key, Totals())
        totals.add(counted)
