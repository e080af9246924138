#!/usr/bin/env python3
"""Closed-loop load for the example services: a few connections, each with one request in progress at any time.

In a closed loop, a slow server also slows the load down. So the throughput is correct, but the latencies look too good. Loopback
only, limited in time and connections. Standard library only.
"""

import argparse
import json
import selectors
import signal
import socket
import sys
import time

LOOPBACK = ("127.0.0.1", "::1", "localhost")
STARTS_S = 5


def record(sequence):
    """A segment record of about 2 KB, as a video packager writes it for each segment of a stream."""
    return {
        "stream_id": f"stream-{sequence % 17:06d}",
        "sequence": sequence,
        "duration": 6.006,
        "bitrate": 4_500_000 + sequence,
        "codec": "avc1.640028,mp4a.40.2",
        "uri": f"https://origin.invalid/live/{sequence:012d}.m4s?token=" + "f" * 640,
        "drm": {"scheme": "cenc", "key_id": "a" * 32, "licence": {"url": "https://licence.invalid/acquire", "ttl": 3600}},
        "edges": [{"pop": f"pop-{n:02d}", "latency": 11 + n} for n in range(6)],
        "tags": [f"tag-{n:02d}-" + "t" * 48 for n in range(12)],
    }


def manifest(segments):
    return json.dumps({"version": 7, "segments": [record(n) for n in range(segments)]}).encode()


def connected(address):
    """A connection; a service that has just been started gets some time until it listens."""
    latest = time.monotonic() + STARTS_S
    while True:
        try:
            return socket.create_connection(address, timeout=10)
        except ConnectionRefusedError:
            if time.monotonic() > latest:
                raise
            time.sleep(0.05)


class Connection:
    """One keep-alive connection with one request in progress."""

    def __init__(self, address, request):
        self.request = request
        self.socket = connected(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()
        self.expected = None

    def send(self):
        self.started = time.perf_counter()
        self.socket.sendall(self.request)

    def receive(self):
        """True if a whole response has arrived."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.received += data
        if self.expected is None:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return False
            head = bytes(self.received[:end]).split(b"\r\n")
            if head[0].split(b" ")[1] != b"200":
                raise ConnectionError(f"the server answered {head[0].decode('latin-1')}")
            lengths = [line.split(b":")[1] for line in head[1:] if line.lower().startswith(b"content-length:")]
            if not lengths:
                raise ConnectionError("the server's answer has no Content-Length")
            self.expected = end + 4 + int(lengths[0])
        if len(self.received) < self.expected:
            return False
        self.received.clear()
        self.expected = None
        return True


def run(args):
    body = manifest(args.segments)
    head = f"POST {args.path} HTTP/1.1\r\nHost: {args.host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    latencies = []
    stopping = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.append(True))
    with selectors.DefaultSelector() as selector:
        for _ in range(args.connections):
            connection = Connection((args.host, args.port), request)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send()
        began = time.perf_counter()
        end = began + args.duration
        sent = args.connections
        while not stopping and time.perf_counter() < end and len(latencies) < args.requests:
            for key, _ in selector.select(timeout=0.5):
                if key.data.receive():
                    latencies.append(time.perf_counter() - key.data.started)
                    if sent < args.requests:
                        sent += 1
                        key.data.send()
        elapsed = time.perf_counter() - began
    latencies.sort()
    return {
        "requests": len(latencies),
        "seconds": round(elapsed, 3),
        "requests_per_s": round(len(latencies) / elapsed, 1),
        "latency_ms_p50": quantile_ms(latencies, 0.5),
        "latency_ms_p99": quantile_ms(latencies, 0.99),
        "loop": "closed",
    }


def quantile_ms(ordered, q):
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1e3, 3) if ordered else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, help="required, unless --print-body is given")
    parser.add_argument("--print-body", action="store_true", help="print the body of a request, and send nothing")
    parser.add_argument("--path", default="/manifest")
    parser.add_argument("--connections", type=int, default=4, help="1 to 64")
    parser.add_argument("--duration", type=float, default=20, help="seconds, at most 600")
    parser.add_argument("--requests", type=int, default=sys.maxsize, help="stop after this many requests; at least one per connection")
    parser.add_argument("--segments", type=int, default=8, help="2 KB records in each request, 1 to 500")
    args = parser.parse_args()
    if args.print_body and 1 <= args.segments <= 500:
        sys.stdout.buffer.write(manifest(args.segments))
        return 0
    if args.port is None:
        parser.error("--port is required")
    if args.host not in LOOPBACK:
        parser.error("--host must be 127.0.0.1, ::1 or localhost: the load generator works only on this machine")
    if not (1 <= args.connections <= 64 and 0 < args.duration <= 600 and 1 <= args.segments <= 500 and args.connections <= args.requests):
        parser.error("a value is out of range: see --help")
    try:
        print(json.dumps(run(args)))
    except OSError as error:
        print(f"error: {args.host}:{args.port}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
