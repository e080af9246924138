"""ASGI middleware: counts the calls that the requests of each route make to CPython's allocators.

    app = allocwall.asgi.CountAllocations(app)
    ...
    print(app.routes["GET /items/{item_id}"])

A request's count contains the steps of its own task. It contains no steps of other requests in between, no tasks that the request
starts, and no functions that it sends to other threads.
"""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Dict, Optional

from ._routes import TOLD, UNTOLD, Routes
from .counting import Steps

__all__ = ["CountAllocations"]

Scope = Dict[str, Any]


def route_of(scope: Scope) -> str:
    """The route of a request: the application's entry `allocwall.route` in the scope; else the path template that the router put
    into the scope; else the name of the endpoint there; else UNTOLD. Never the path itself: their number is unlimited."""
    told = scope.get(TOLD)
    if isinstance(told, str):
        return told
    route = scope.get("route")
    for name in ("path_format", "path"):
        template = getattr(route, name, None)
        if isinstance(template, str):
            return template
    endpoint = scope.get("endpoint")
    qualified = getattr(endpoint, "__qualname__", None)
    if isinstance(qualified, str):
        return "%s.%s" % (getattr(endpoint, "__module__", "?"), qualified)
    return UNTOLD


class CountAllocations:
    """Wraps an application; `routes` has the totals by method and route.

    route: a function of the scope that returns the name of the route. Called when the application has returned. Default:
        `route_of`.
    most: the maximum number of routes; later ones share the entry `(other routes)`.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        *,
        route: Optional[Callable[[Scope], str]] = None,
        most: int = 256,
    ) -> None:
        self.app = app
        self.routes = Routes(most)
        self._route = route or route_of

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        method = scope.get("method", "WEBSOCKET")
        await Steps(
            self.app(scope, receive, send),
            lambda counted: self.routes.add(method, self._route(scope), counted),
        )
