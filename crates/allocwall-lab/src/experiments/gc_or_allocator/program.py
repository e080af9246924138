"""One run of gc-or-allocator, for CPython 3.7 or later: requests, one after the other, and the log of the collector.

Arguments: what the requests do, and the length of the timed part in seconds. Output: a line when all is ready; then, when a line
comes in, the timed part, and its result as JSON.
"""

import array
import gc
import json
import resource
import sys
import time

# Containers that stay alive. A full collection visits all of them.
HEAP = 200_000
# Pairs of objects that refer to each other, in a request.
CYCLES = 100
# Like a service that collects after each batch of requests. At this rate, more than 0.1 % of the requests wait for it.
BATCH = 250
# Above 512 bytes, so that malloc serves them, and above 1,032, so that they do not fit glibc's thread cache.
SIZES = [1_100 + 37 * n % 400 for n in range(300)]
ROUNDS = 500

now = time.perf_counter_ns


class Node:
    __slots__ = ("other", "payload")


def compute():
    x = 1
    for _ in range(ROUNDS):
        x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
    return x


def make_cycles(nth):
    for _ in range(CYCLES):
        a, b = Node(), Node()
        a.other, a.payload = b, [a]
        b.other, b.payload = a, []
    if nth % BATCH == 0:
        gc.collect()


def allocate():
    # Few steps of the interpreter for each block.
    list(map(bytes, SIZES))


def main():
    if sys.implementation.name != "cpython":
        sys.exit("python3 is not CPython")
    what, timed_ns = sys.argv[1], int(float(sys.argv[2]) * 1e9)
    heap = [[n] for n in range(HEAP)]
    gc.collect()
    if what != "collector":
        gc.freeze()
        gc.disable()
    request = {
        "collector": make_cycles,
        "allocator": lambda _: allocate(),
        "neither": lambda _: compute(),
    }[what]
    times = array.array("Q")
    # The number of the request, and the time that a collection took.
    log = []
    began_collecting = 0

    def note(phase, _info):
        nonlocal began_collecting
        if phase == "start":
            began_collecting = now()
        else:
            log.append((len(times), now() - began_collecting))

    gc.callbacks.append(note)
    for nth in range(1, BATCH + 1):
        request(nth)
    log.clear()
    print("ready", flush=True)
    sys.stdin.readline()
    faults, cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
    began = ended = now()
    while ended - began < timed_ns:
        start = now()
        request(len(times) + 1)
        ended = now()
        times.append(ended - start)
    result = {
        "seconds": (ended - began) / 1e9,
        "cpu_s": time.process_time() - cpu_s,
        "minor_faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
        "times_ns": times.tolist(),
        # What the result itself causes is not in a request.
        "log": [entry for entry in log if entry[0] < len(times)],
    }
    print(json.dumps(result), flush=True)


main()
