"""WSGI middleware: what each route's requests ask of CPython's allocators.

    app = allocwall.wsgi.CountAllocations(app)
    ...
    print(app.routes["GET /items/<item_id>"])

A request's count is of the application's call and of each step of what it returns, until that is closed; not of the server's
work in between.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Tuple

from ._routes import UNTOLD, Routes
from .counting import count

__all__ = ["CountAllocations"]

Environ = Dict[str, Any]

#: Where routers leave what they found: a key of the environment, and the way from there to the template.
_TEMPLATES: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("werkzeug.request", ("url_rule", "rule")),  # Flask
    ("bottle.route", ("rule",)),
    ("bfg.routes.route", ("pattern",)),  # Pyramid
)


def route_of(environ: Environ) -> str:
    """The path's template as the application's router left it in the environment, else UNTOLD. Never the path itself: there is
    no end of those."""
    for key, way in _TEMPLATES:
        found = environ.get(key)
        for name in way:
            found = getattr(found, name, None)
        if isinstance(found, str):
            return found
    return UNTOLD


class CountAllocations:
    """Wraps an application; `routes` has the totals by method and route.

    route: a function of the environment, called when the request is done, that names the route. Default: `route_of`.
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
        try:
            answer = counted.step(self.app, (environ, start_response))
        except BaseException:
            self._done(environ, counted)
            raise
        if isinstance(answer, (list, tuple)):
            # Nothing is left to be done; and a server may look at its length.
            self._done(environ, counted)
            return answer
        return _Answer(answer, counted, lambda: self._done(environ, counted))

    def _done(self, environ: Environ, counted: count) -> None:
        counted.finish()
        self.routes.add(environ.get("REQUEST_METHOD", "?"), self._route(environ), counted)


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
