"""A WSGI service whose responses show whether its memory has the expected content. Its workers inherit most of that memory from the
process that forks them, and write to it."""

import hashlib
import json
import random

RESIDENT = {n: {"id": n, "name": "n%d" % n, "tags": [n, n + 1]} for n in range(60_000)}
_cache = {}


def answer(n):
    """The same content for the same n."""
    dice = random.Random(n)
    rows = []
    for at in range(300):
        key = dice.randrange(len(RESIDENT))
        # Equal content in new memory: the inherited memory is freed bit by bit.
        RESIDENT[key] = dict(RESIDENT[key], tags=list(RESIDENT[key]["tags"]))
        rows.append(dict(RESIDENT[key], at=at))
    _cache[n % 500] = rows
    text = json.dumps(rows)
    assert json.loads(text) == rows
    return hashlib.sha256(text.encode()).hexdigest()


def application(environ, start_response):
    from allocwall import hugepages

    body = answer(int(environ["QUERY_STRING"])).encode()
    start_response("200 OK", [("Content-Length", str(len(body))), ("X-Mode", hugepages.status()["mode"])])
    return [body]


def task(n):
    import os

    from allocwall import hugepages

    return n, answer(n), os.getpid(), hugepages.status()["mode"]
