"""Totals by route: hand-written applications of both kinds, whose allocations are known."""

import asyncio
import threading
import types
import unittest
from wsgiref.util import setup_testing_defaults

from allocwall import asgi, wsgi

from test_count import of


class Asgi(unittest.TestCase):
    def ask(self, app, *scopes):
        async def main():
            async def receive():
                return {"type": "http.request", "body": b""}

            async def send(message):
                await asyncio.sleep(0)

            await asyncio.gather(*[app(scope, receive, send) for scope in scopes], return_exceptions=True)

        asyncio.run(main())

    @staticmethod
    def http(path, **scope):
        return {"type": "http", "method": "GET", "path": path, **scope}

    def test_requests_at_once_are_each_counted_alone(self):
        async def inner(scope, receive, send):
            size = 1000 if scope["path"].startswith("/small") else 3000
            scope["route"] = types.SimpleNamespace(path="/small/{n}" if size == 1000 else "/large/{n}")
            kept = []
            for _ in range(5):
                kept.append(bytes(size))
                await send({"type": "http.response.body", "body": b""})

        app = asgi.CountAllocations(inner)
        self.ask(app, *[self.http("/%s/%d" % (kind, i)) for i in range(10) for kind in ("small", "large")])
        self.assertEqual(set(app.routes), {"GET /small/{n}", "GET /large/{n}"})
        small, large = app.routes["GET /small/{n}"], app.routes["GET /large/{n}"]
        self.assertEqual((small.counts, of(small, "obj", 2048).calls, of(small, "obj", 4096).calls), (10, 50, 0))
        self.assertEqual((large.counts, of(large, "obj", 2048).calls, of(large, "obj", 4096).calls), (10, 0, 50))
        self.assertTrue(small.complete)

    def test_the_name_of_a_route_is_never_the_path(self):
        def endpoint():
            pass

        async def inner(scope, receive, send):
            if scope["path"] == "/endpoint":
                scope["endpoint"] = endpoint
            if scope["path"] == "/raises":
                raise KeyError

        app = asgi.CountAllocations(inner)
        self.ask(app, self.http("/endpoint"), self.http("/one"), self.http("/two"), self.http("/raises"))
        name = "GET %s.%s" % (endpoint.__module__, endpoint.__qualname__)
        self.assertEqual({key: totals.counts for key, totals in app.routes.items()}, {name: 1, "GET (no route)": 3})

    def test_there_is_an_end_of_routes(self):
        async def inner(scope, receive, send):
            pass

        app = asgi.CountAllocations(inner, route=lambda scope: scope["path"], most=3)
        self.ask(app, *[self.http("/%d" % i) for i in range(10)])
        self.assertEqual(set(app.routes), {"GET /0", "GET /1", "GET /2", "(other routes)"})
        self.assertEqual(app.routes["(other routes)"].counts, 7)

    def test_lifespan_is_not_counted_and_websockets_are(self):
        seen = []

        async def inner(scope, receive, send):
            seen.append(scope["type"])

        app = asgi.CountAllocations(inner)
        self.ask(app, {"type": "lifespan"}, {"type": "websocket", "path": "/"})
        self.assertEqual((sorted(seen), list(app.routes)), (["lifespan", "websocket"], ["WEBSOCKET (no route)"]))


class Wsgi(unittest.TestCase):
    def ask(self, app, path, method="GET"):
        environ = {}
        setup_testing_defaults(environ)
        environ.update(PATH_INFO=path, REQUEST_METHOD=method)
        answer = app(environ, lambda status, headers: None)
        try:
            return list(answer)
        finally:
            if hasattr(answer, "close"):
                answer.close()

    def test_the_call_and_each_step_of_the_answer(self):
        closed = []

        class Answer:
            def __iter__(self):
                for _ in range(3):
                    yield bytes(1000)

            def close(self):
                closed.append(bytes(1000))

        def inner(environ, start_response):
            environ["bottle.route"] = types.SimpleNamespace(rule="/items/<n>")
            kept = bytes(1000)
            start_response("200 OK", [])
            self.assertEqual(len(kept), 1000)
            return Answer()

        app = wsgi.CountAllocations(inner)
        for i in range(4):
            self.assertEqual(len(self.ask(app, "/items/%d" % i)), 3)
        self.assertEqual(len(closed), 4)
        totals = app.routes["GET /items/<n>"]
        self.assertEqual((totals.counts, of(totals, "obj", 2048).calls), (4, 4 * 5))

    def test_start_response_is_not_counted_and_the_rest_is(self):
        def inner(environ, start_response):
            write = start_response("200 OK", [])
            write(bytes(1000))
            return [bytes(1000)]

        def start(status, headers):
            started.append(bytes(1000))
            return started.append

        started = []
        app = wsgi.CountAllocations(inner)
        app({"REQUEST_METHOD": "GET"}, start)
        self.assertEqual(len(started), 2)
        self.assertEqual(of(app.routes["GET (no route)"], "obj", 2048).calls, 2)

    def test_a_route_that_is_there_only_until_the_answer_begins(self):
        def inner(environ, start_response):
            environ["werkzeug.request"] = types.SimpleNamespace(url_rule=types.SimpleNamespace(rule="/items/<n>"))
            start_response("200 OK", [])
            environ["werkzeug.request"] = None
            return []

        app = wsgi.CountAllocations(inner)
        self.ask(app, "/items/1")
        self.assertEqual(list(app.routes), ["GET /items/<n>"])

    def test_a_route_that_the_application_says_itself(self):
        for when in ("before", "after"):
            def inner(environ, start_response):
                if when == "before":
                    environ["allocwall.route"] = "/items"
                start_response("200 OK", [])
                environ["allocwall.route"] = "/items"
                environ["bottle.route"] = types.SimpleNamespace(rule="/items/<n>")
                return []

            app = wsgi.CountAllocations(inner)
            self.ask(app, "/items/1")
            self.assertEqual(list(app.routes), ["GET /items"], when)

    def test_a_list_stays_a_list(self):
        app = wsgi.CountAllocations(lambda environ, start_response: [b"one"])
        self.assertEqual(app({"REQUEST_METHOD": "GET"}, None), [b"one"])
        self.assertEqual(app.routes["GET (no route)"].counts, 1)

    def test_an_application_that_raises(self):
        def inner(environ, start_response):
            raise KeyError

        app = wsgi.CountAllocations(inner)
        with self.assertRaises(KeyError):
            self.ask(app, "/", "POST")
        self.assertEqual(app.routes["POST (no route)"].counts, 1)

    def test_an_answer_that_is_left(self):
        def inner(environ, start_response):
            yield b"one"
            yield b"two"

        app = wsgi.CountAllocations(inner)
        answer = app({"REQUEST_METHOD": "GET"}, None)
        self.assertEqual(next(iter(answer)), b"one")
        del answer
        self.assertEqual(app.routes["GET (no route)"].counts, 1)

    def test_requests_on_many_threads(self):
        def inner(environ, start_response):
            environ["werkzeug.request"] = types.SimpleNamespace(url_rule=types.SimpleNamespace(rule="/"))
            return [bytes(1000) for _ in range(5)]

        app = wsgi.CountAllocations(inner)

        def work():
            for _ in range(50):
                self.ask(app, "/")

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        totals = app.routes["GET /"]
        self.assertEqual((totals.counts, of(totals, "obj", 2048).calls), (400, 2000))


if __name__ == "__main__":
    unittest.main()
