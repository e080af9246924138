"""The routes that real frameworks leave for the middlewares. Each test is skipped if its framework is not installed."""

import asyncio
import importlib.util
import unittest
from wsgiref.util import setup_testing_defaults

from allocwall import asgi, wsgi

from test_count import of

#: The number of allocations by each endpoint, in addition to those of the framework.
BLOCKS = 7


def ask():
    return [bytes(5000) for _ in range(BLOCKS)]


def needs(package):
    return unittest.skipUnless(importlib.util.find_spec(package), "needs %s" % package)


class Frameworks(unittest.TestCase):
    def check(self, app, route, get):
        """Requests two items, and a path that does not exist."""
        self.assertEqual([get(app, path) for path in ("/items/1", "/items/2", "/none")], [200, 200, 404])
        self.assertEqual({name: totals.counts for name, totals in app.routes.items()}, {route: 2, "GET (no route)": 1})
        totals = app.routes[route]
        self.assertTrue(totals.complete)
        self.assertGreaterEqual(of(totals, "obj", 8192).calls, 2 * BLOCKS)
        self.assertLess(of(app.routes["GET (no route)"], "obj", 8192).calls, BLOCKS)

    def check_wsgi(self, app, rule):
        """For applications with a decorator for routes."""

        @app.route(rule)
        def item(item):
            return str(len(ask()))

        self.check(wsgi.CountAllocations(app), "GET " + rule, self.over_wsgi)

    @staticmethod
    def over_wsgi(app, path):
        environ, seen = {}, []
        setup_testing_defaults(environ)
        environ["PATH_INFO"] = path
        answer = app(environ, lambda status, headers, *error: seen.append(int(status.split()[0])))
        b"".join(answer)
        if hasattr(answer, "close"):
            answer.close()
        return seen[0]

    @staticmethod
    def over_asgi(app, path):
        seen = []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
            "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": [],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            seen.append(message)

        asyncio.run(app(scope, receive, send))
        return seen[0]["status"]

    @needs("flask")
    def test_flask(self):
        import flask

        self.check_wsgi(flask.Flask("app"), "/items/<int:item>")

    @needs("flask")
    def test_flask_with_an_endpoint_that_raises(self):
        import flask

        app = flask.Flask("app")
        app.logger.disabled = True

        @app.route("/items/<int:item>")
        def item(item):
            raise KeyError(item)

        counted = wsgi.CountAllocations(app)
        self.assertEqual(self.over_wsgi(counted, "/items/1"), 500)
        self.assertEqual(list(counted.routes), ["GET /items/<int:item>"])

    @needs("bottle")
    def test_bottle(self):
        import bottle

        self.check_wsgi(bottle.Bottle(), "/items/<item>")

    @needs("starlette")
    def test_starlette(self):
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route

        async def item(request):
            return PlainTextResponse(str(len(ask())))

        app = Starlette(routes=[Route("/items/{item}", item)])
        counted = asgi.CountAllocations(app)
        # Older versions leave only the endpoint.
        self.over_asgi(counted, "/items/1")
        (route,) = counted.routes
        self.assertIn(route, ("GET /items/{item}", "GET %s.%s" % (item.__module__, item.__qualname__)))
        self.check(asgi.CountAllocations(app), route, self.over_asgi)

    @needs("fastapi")
    def test_fastapi(self):
        import fastapi

        app = fastapi.FastAPI()

        @app.get("/items/{item}")
        async def item(item: int):
            return len(ask())

        self.check(asgi.CountAllocations(app), "GET /items/{item}", self.over_asgi)

    @needs("starlette")
    def test_an_application_may_say_it_itself(self):
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse
        from starlette.routing import Mount, Route

        async def item(request):
            request.scope["allocwall.route"] = "/shop/items"
            return PlainTextResponse("")

        app = asgi.CountAllocations(Starlette(routes=[Mount("/shop", routes=[Route("/{item}", item)])]))
        self.over_asgi(app, "/shop/1")
        self.assertEqual(list(app.routes), ["GET /shop/items"])


if __name__ == "__main__":
    unittest.main()
