# Garbage in reference cycles, in a large heap. For CPython 3.7 or later. Uses the protocol of the other subjects.
import collections, gc, json, os, select, signal, stat, sys, time

NAME, TWIN, DIAL, SECONDS = sys.argv[1], sys.argv[2] == "1", float(sys.argv[3]), float(sys.argv[4])

ended = False


def end(*_):
    global ended
    ended = True


signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
now = time.thread_time_ns
collecting = 0
started_at = 0
operations = 0


def watch(phase, _info):
    global collecting, started_at
    if phase == "start":
        started_at = now()
    else:
        collecting += now() - started_at


gc.callbacks.append(watch)


def compute():
    x = 1
    for _ in range(2000):
        x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
    return x


class Node:
    __slots__ = ("other", "payload")


def request(live):
    """Objects that refer to each other. The newest stay alive for a while, like sessions."""
    for _ in range(200):
        a, b = Node(), Node()
        a.other, a.payload = b, [a]
        b.other, b.payload = (None if TWIN else a), []
        if TWIN:
            a.payload = []
        live.append(a)
    if not TWIN:
        # Like a service that collects garbage after each batch of requests.
        gc.collect(1)


heap = [[i] for i in range(400_000)]
live = collections.deque(maxlen=20_000)
gc.collect()
if TWIN:
    gc.freeze()
    gc.disable()


def say(state):
    line = {
        "subject": NAME,
        "twin": TWIN,
        "dial": DIAL,
        "pid": os.getpid(),
        "threads": 1,
        "t_mono_ns": time.monotonic_ns(),
        "t_real_ms": time.time_ns() // 1_000_000,
        "cpu_s": time.process_time_ns() / 1e9,
        "lines": {"garbage_collector": collecting / 1e9},
        "waits": {},
        "operations": operations,
    }
    if state:
        line[state] = True
    print(json.dumps(line), flush=True)


def is_open_pipe():
    try:
        if not stat.S_ISFIFO(os.fstat(0).st_mode):
            return False
    except OSError:
        return False
    return not hung_up()


poller = select.poll()


def hung_up():
    return any(events & select.POLLHUP for _, events in poller.poll(0))


poller.register(0, 0)
watched = is_open_pipe()

start = time.monotonic()
begun = now()
collecting = in_requests = 0
band = 4_000_000
requesting = False
next_line = None
while not ended and time.monotonic() - start < SECONDS:
    for _ in range(10):
        elapsed = now() - begun
        # The twin's requests cause no collection, so its dial controls the time of the requests themselves.
        owed = DIAL * elapsed - (in_requests if TWIN else collecting)
        if owed > band:
            requesting = True
        elif owed < -band:
            requesting = False
        if requesting:
            before = now()
            request(live)
            in_requests += now() - before
            operations += 200
        else:
            compute()
    passed = time.monotonic() - start
    governed = in_requests if TWIN else collecting
    if next_line is None:
        settled = abs(governed / max(1, now() - begun) - DIAL) < 0.02
        if (passed > 0.7 and settled) or passed > min(3, SECONDS / 2):
            say("ready")
            next_line = passed + 1
    elif passed >= next_line:
        say(None)
        next_line += 1
    if watched and hung_up():
        break
say("final")
