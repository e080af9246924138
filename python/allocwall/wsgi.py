"""WSGI middleware: counts the calls that the requests of each route make to CPython's allocators.

    app = allocwall.wsgi.CountAllocations(app)
    ...
    print(app.routes["GET /items/<item_id>"])

A request's count contains the call of the application and each step of the iterable that it returns, until that is closed. It does
not contain the server's work in between, including `start_response`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Tuple

from ._routes import TOLD, UNTOLD, Routes
from .counting import count

__all__ = ["CountAllocations"]

Environ = Dict[str, Any]

#: Where routers store the route: a key of the environment, and the attributes that lead from there to the template.
_TEMPLATES: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    (TOLD, ()),
    # Flask: present until its response starts; removed before it returns.
    ("werkzeug.request", ("url_rule", "rule")),
    ("bottle.route", ("rule",)),
)


def route_of(environ: Environ) -> str:
    """The route of a request: the application's entry `allocwall.route` in the environment; else the path template that the router
    put there; else UNTOLD. Never the path itself: their number is unlimited."""
    for key, way in _TEMPLATES:
        found = environ.get(key)
        for name in way:
            found = getattr(found, name, None)
        if isinstance(found, str):
            return found
    return UNTOLD


class CountAllocations:
    """Wraps an application; `routes` has the totals by method and route.

    route: a function of the environment that returns the name of the route. Called when the application starts its response; and
        again at the end of the request if no response was started or the function returned UNTOLD. Default: `route_of`.
    most: the maximum number of routes; later ones share the entry `(other routes)`.
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
            # The application is finished; and a server may need the length of the list.
            done()
            return answer
        return _Answer(answer, counted, done)


class _Answer:
    """Wraps the iterable that the application returned, and counts while it runs. The server closes it."""

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
