"""Totals by route, for the middlewares."""

from __future__ import annotations

from typing import Dict

from .counting import Totals, count

#: Where an application of any framework may put a route's name itself: a key of the scope or the environment.
TOLD = "allocwall.route"
#: Where requests go whose route the application didn't tell.
UNTOLD = "(no route)"
#: Where they go once there are as many routes as may be.
OTHERS = "(other routes)"


class Routes(Dict[str, Totals]):
    """Totals by route: at most so many routes, and one of the others."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def add(self, method: str, route: str, counted: count) -> None:
        key = "%s %s" % (method, route) if method else route
        totals = self.get(key)
        if totals is None:
            if len(self) >= self.most:
                key = OTHERS
            # So that two threads with the same new route have one.
            totals = self.setdefault(key, Totals())
        totals.add(counted)
