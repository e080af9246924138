"""WSGI middleware: what each route's requests ask of CPython's allocators.

    app = allocwall.wsgi.CountAllocations(app)
    ...
    print(app.routes["GET /items/<item_id>"])

A request's count is of the application's call and of each step of what it returns, until that is closed; not of the server's
work in between, `start_response` included.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Tuple

from ._routes import TOLD, UNTOLD, Routes
from .counting import count

__all__ = ["CountAllocations"]

Environ = Dict[str, Any]

#: Where routers leave what they found: a key of the environment, and the way from there to the template.
_TEMPLATES: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    (TOLD, ()),
    # Flask: there until its response has begun, and taken out before it returns.
    ("werkzeug.request", ("url_rule", "rule")),
    ("bottle.route", ("rule",)),
)


def route_of(environ: Environ) -> str:
    """What the application put under `allocwall.route`; else the path's template as its router left it in the environment; else
    UNTOLD. Never the path itself: there is no end of those."""
    for key, way in _TEMPLATES:
        found = environ.get(key)
        for name in way:
            found = getattr(found, name, None)
        if isinstance(found, str):
            return found
    return UNTOLD


class CountAllocations:
    """Wraps an application; `routes` has the totals by method and route.

    route: a function of the environment that names the route. Called when the application begins its answer, and when the request
        is done if it hadn't begun or the function said UNTOLD. Default: `route_of`.
    most: so many routes are kept apart at most; those that come later are in one, `(other routes)`.
    """

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        *,
        route: Optional[Callable[[Environ], str]] = None,
        most: int = 256,
    ) -> None:
        self.app = app
        self.routes = Routes(most)
        self._route = route or route_of

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        counted = count()
        told = [UNTOLD]

        def start(*answer: Any) -> Any:
            told[0] = self._route(environ)
            return start_response(*answer)

        def done() -> None:
            counted.finish()
            route = self._route(environ) if told[0] == UNTOLD else told[0]
            self.routes.add(environ.get("REQUEST_METHOD", "?"), route, counted)

        try:
            answer = counted.step(self.app, (environ, partial(counted.aside, start)))
        except BaseException:
            done()
            raise
        if isinstance(answer, (list, tuple)):
            # Nothing is left to be done; and a server may look at its length.
            done()
            return answer
        return _Answer(answer, counted, done)


class _Answer:
    """What the application returned, counted while it runs. The server closes it."""

    def __init__(self, answer: Any, counted: count, done: Callable[[], None]) -> None:
        self._answer = answer
        self._count = counted
        self._done: Optional[Callable[[], None]] = done

    def __iter__(self) -> Iterator[bytes]:
        iterator = self._count.step(iter, (self._answer,))
        while True:
            ended, part = self._count.send(iterator, None)
            if ended:
                return
            yield part

    def close(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        try:
            close = getattr(self._answer, "close", None)
            if close is not None:
                self._count.step(close, ())
        finally:
            done()

    def __del__(self) -> None:
        self.close()
