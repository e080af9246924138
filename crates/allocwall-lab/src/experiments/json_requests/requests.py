"""One run of json-requests in CPython: json.loads parses each request, and an edge is appended.

Argument: the length of the timed part in seconds. Input: one record a line. Output: a line when the timed part begins, then the
result as JSON.
"""

import array
import collections
import json
import resource
import sys
import time

WARM_UP = 2000


def handle(text):
    record = json.loads(text)
    record["edges"].append({"pop": "added", "latency": 1.5})


def minor_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def main():
    if sys.implementation.name != "cpython":
        sys.exit("python3 is not CPython")
    timed_ns = int(float(sys.argv[1]) * 1e9)
    texts = sys.stdin.buffer.read().splitlines()
    for n in range(WARM_UP):
        handle(texts[n % len(texts)])
    print("ready", flush=True)
    now, times = time.perf_counter_ns, array.array("Q")
    faults, cpu_s = minor_faults(), time.process_time()
    began = ended = now()
    while ended - began < timed_ns:
        text = texts[len(times) % len(texts)]
        start = now()
        handle(text)
        ended = now()
        times.append(ended - start)
    result = {
        "requests": len(times),
        "seconds": (ended - began) / 1e9,
        "cpu_s": time.process_time() - cpu_s,
        "minor_faults": minor_faults() - faults,
        "times": sorted(collections.Counter(times).items()),
    }
    json.dump(result, sys.stdout)


main()
