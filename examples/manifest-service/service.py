#!/usr/bin/env python3
"""A manifest-rewrite service: one process, one thread, JSON in, JSON out. Standard library only.

Each request contains a manifest (a list of 2 KB segment records). The service parses it, adds an edge to every
segment and sends it back. This is plain computing: `allocwall diagnose` should report that memory is not the wall.

With --wall, every 16th request also writes all segments into one new buffer of 40 MiB and frees it again. glibc always
allocates blocks above 32 MiB with mmap and frees them with munmap. So each buffer costs ten thousand first touches: page
faults, zeroed pages and released pages. The throughput drops to a fraction, and nothing in the Python code looks slow.

    python3 service.py --port 8080 --wall &
    python3 load.py --port 8080 --duration 30 &
    allocwall diagnose -p $(pgrep -f service.py)

The remedy in the code is to keep one buffer. Without a change of the code, make glibc keep such blocks in its heap:

    GLIBC_TUNABLES=glibc.malloc.mmap_threshold=268435456:glibc.malloc.trim_threshold=268435456
"""

import argparse
import asyncio
import json
import mmap
import os
import signal
import struct
import sys

WINDOW_BYTES = 40 << 20
MAX_BODY = 8 << 20


class Counter:
    """The number of requests served, as eight bytes in a mapped file, so that other processes can read it."""

    def __init__(self, path):
        self.count = 0
        self.memory = None
        if path:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(fd, mmap.PAGESIZE)
            self.memory = mmap.mmap(fd, mmap.PAGESIZE)
            os.close(fd)

    def add(self):
        self.count += 1
        if self.memory is not None:
            struct.pack_into("<Q", self.memory, 0, self.count)


def rewrite(body, lay_out):
    """Parse, append an edge to each segment, serialise; if `lay_out`, also fill the 40 MiB buffer."""
    manifest = json.loads(body)
    for segment in manifest["segments"]:
        segment["edges"].append({"pop": "local", "latency": segment["sequence"] % 97})
    if lay_out:
        window = body * (WINDOW_BYTES // len(body) + 1)
        manifest["window_bytes"] = len(window)
    return json.dumps(manifest).encode()


class Connection(asyncio.BufferedProtocol):
    """HTTP/1.1 with keep-alive: only the parts that a simple client needs."""

    def __init__(self, counter, every):
        self.counter = counter
        self.every = every
        self.pending = b""
        # One buffer is kept, because by default asyncio allocates a new 256 KiB buffer for every read.
        self.buffer = bytearray(65536)

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.pending += memoryview(self.buffer)[:nbytes]
        while True:
            head, separator, rest = self.pending.partition(b"\r\n\r\n")
            if not separator:
                if len(head) > 65536:
                    self.refuse(b"431 Request Header Fields Too Large")
                return
            length = content_length(head)
            if length is None or length > MAX_BODY:
                self.refuse(b"413 Content Too Large")
                return
            if len(rest) < length:
                return
            self.pending = rest[length:]
            self.answer(rest[:length])

    def answer(self, body):
        try:
            lay_out = self.every and self.counter.count % self.every == 0
            payload = rewrite(body, lay_out)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.refuse(b"400 Bad Request")
            return
        self.counter.add()
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (len(payload), payload)
        )

    def refuse(self, status):
        self.pending = b""
        self.transport.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        self.transport.close()


def content_length(head):
    """The length of the body in bytes; None if the header is malformed."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            value = value.strip()
            return int(value) if value.isdigit() else None
    return 0


async def serve(args):
    counter = Counter(args.counter)
    every = args.every if args.wall else 0
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(counter, every), "127.0.0.1", args.port)
    port = server.sockets[0].getsockname()[1]
    print(f"listening on 127.0.0.1:{port}, pid {os.getpid()}", flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    server.close()
    print(f"served {counter.count} requests", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one, printed)")
    parser.add_argument("--wall", action="store_true", help="add the wall: a new 40 MiB buffer in some requests")
    parser.add_argument("--every", type=int, default=16, help="with --wall: one buffer per this many requests (default: 16)")
    parser.add_argument("--counter", help="file to store the number of served requests in")
    args = parser.parse_args()
    asyncio.run(serve(args))


if __name__ == "__main__":
    sys.exit(main())
