"""The real programs: how each is started and loaded, and what its report may and must contain.

Each entry of the table starts one server in its own directory on a free loopback port, and has the commands that load it from other
processes. Nothing here depends on how allocwall is run.
"""

import os
import pwd
import re
import shutil
import socket
import sys
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Callable

from evidence import JVM_PAUSE, NODE_PAUSE

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LOAD = EXAMPLES / "manifest-service" / "load.py"

# Walls that need several threads in one address space, and walls that need a collector.
THREADED = {"address_space_lock", "allocator_contention"}
COLLECTED = {"garbage_collector"}
# Walls that are wrong for a program that computes on warm memory.
COLD_MEMORY = {"first_touch", "map_churn", "retention"}
# Walls that are wrong for a program that rarely calls malloc. NUMA and TLB have only upper bounds here, so they can never be walls.
NOT_THE_ALLOCATOR = {"call_rate", "large_allocations", "allocator_code", "numa", "tlb"}


@dataclass
class Expectation:
    """What a report on the service must contain. Only clearly wrong walls are forbidden."""

    runtime: str
    allocator: str
    # Walls that must be called a wall, not a contributor, if the evidence of the same run shows it (evidence.py).
    must_be_wall: set = field(default_factory=set)
    # A place in the code that one of these walls must name.
    must_name: str = None
    # Walls that must not be called a wall.
    must_not_be_wall: set = field(default_factory=set)


@dataclass
class Service:
    name: str
    # Required programs, each with its Debian package.
    programs: dict
    # Starts the server: gets the Stage, returns the pid to diagnose.
    start: Callable
    # Returns the load commands: gets the Stage and the number of seconds.
    load: Callable
    # Returns the number of requests so far. If it is None, the rate is read from the load's output with `rate_pattern`.
    served: Callable = None
    rate_pattern: str = None
    expect: Expectation = None
    # Pattern of a pause in the collector's log, which is the server's output.
    pauses: re.Pattern = None
    # Walls whose shares are compared with perf's groups.
    perf: tuple = ()


def find_program(name):
    """Path of a program, also in the folders of servers that Debian does not have in PATH."""
    places = os.environ.get("PATH", "").split(":") + ["/usr/sbin", *sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    return shutil.which(name, path=":".join(places))


def system_python():
    """Debian's interpreter if it exists: services run on it."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


def unprivileged(account_names=("postgres", "nobody")):
    """For servers that refuse to run as root: (prefix of the command, uid, gid)."""
    if os.geteuid() != 0:
        return [], os.geteuid(), os.getegid()
    for name in account_names:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        prefix = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]
        return prefix, account.pw_uid, account.pw_gid
    raise RuntimeError("no unprivileged account on this machine")


# --- CPython -----------------------------------------------------------------------------------------------------


def start_python(*options):
    def start(stage):
        service = EXAMPLES / "manifest-service" / "service.py"
        return stage.server([system_python(), service, "--port", stage.port, *options])

    return start


def http_load(connections=4, segments=8):
    def load(stage, seconds):
        command = [sys.executable, LOAD, "--port", stage.port, "--duration", seconds]
        return [[*command, "--connections", connections, "--segments", segments]]

    return load


HTTP_RATE = r'"requests_per_s": ([\d.]+)'


# --- Redis -------------------------------------------------------------------------------------------------------


def start_redis(stage):
    settings = ["--save", "", "--appendonly", "no", "--daemonize", "no", "--bind", "127.0.0.1"]
    server = [find_program("redis-server"), "--port", stage.port, "--dir", stage.directory, *settings]
    return stage.server(server)


def load_redis(stage, seconds):
    # 200,000 keys of up to 512 B: about 150 MB at most. Loops until it is stopped.
    mix = ["-t", "set,get,lpush,lpop", "-r", 200_000, "-d", 512]
    return [[find_program("redis-benchmark"), "-h", "127.0.0.1", "-p", stage.port, *mix, "-c", 16, "-P", 8, "-l", "-q"]]


def served_by_redis(stage):
    with socket.create_connection(("127.0.0.1", stage.port), timeout=5) as connection:
        connection.sendall(b"INFO stats\r\n")
        answer = b""
        while not re.search(rb"total_commands_processed:\d+\r\n", answer):
            part = connection.recv(65536)
            if not part:
                raise RuntimeError("redis closed the connection")
            answer += part
    return int(re.search(rb"total_commands_processed:(\d+)", answer)[1])


# --- PostgreSQL --------------------------------------------------------------------------------------------------


def start_postgres(stage):
    prefix, uid, gid = unprivileged()
    data = stage.directory / "data"
    data.mkdir(mode=0o700)
    os.chown(data, uid, gid)
    initdb = [find_program("initdb"), "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    stage.run([*prefix, *initdb])
    settings = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": data,
        "fsync": "off",
        "shared_buffers": "64MB",
        "max_connections": "20",
    }
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    pid = stage.server([*prefix, find_program("postgres"), "-D", data, "-p", stage.port, *options])
    stage.run([find_program("pgbench"), *postgres_address(stage), "-i", "-q", "-s", 2, "postgres"])
    return pid


def postgres_address(stage):
    return ["-h", "127.0.0.1", "-p", stage.port, "-U", "bench"]


def load_postgres(stage, seconds):
    mix = ["-S", "-M", "prepared", "-c", 4, "-j", 1, "-T", int(seconds)]
    return [[find_program("pgbench"), *postgres_address(stage), "-n", *mix, "postgres"]]


# --- nginx -------------------------------------------------------------------------------------------------------

NGINX_SETTINGS = """
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log stderr;
{user}
events {{ worker_connections 256; }}
http {{
    access_log off;
    default_type application/json;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    gzip on;
    gzip_types application/json;
    server {{
        listen 127.0.0.1:{port};
        root {directory}/pages;
    }}
}}
"""


def start_nginx(stage):
    pages = stage.directory / "pages"
    pages.mkdir()
    stage.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(LOAD.parent)!r}); import load, pathlib; "
               f"pathlib.Path({str(pages / 'manifest.json')!r}).write_bytes(load.manifest(8))"])
    settings = stage.directory / "nginx.conf"
    user = "user nobody nogroup;" if os.geteuid() == 0 else ""
    settings.write_text(NGINX_SETTINGS.format(directory=stage.directory, port=stage.port, user=user))
    return stage.server([find_program("nginx"), "-p", stage.directory, "-c", settings, "-e", "stderr"])


def load_nginx(stage, seconds):
    url = f"http://127.0.0.1:{stage.port}/manifest.json"
    return [[find_program("wrk"), "-t", 1, "-c", 8, "-d", f"{int(seconds)}s", "-H", "Accept-Encoding: gzip", url]]


# --- Java and Node -----------------------------------------------------------------------------------------------


def start_java(*options):
    def start(stage):
        classes = stage.directory / "classes"
        stage.run([find_program("javac"), "-d", classes, EXAMPLES / "java-service" / "Service.java"])
        return stage.server([find_program("java"), "-XX:+UseG1GC", "-Xlog:gc", "-Xmx48m", *options, "-cp", classes, "Service", stage.port])

    return start


def start_node(*options):
    def start(stage):
        return stage.server([find_program("node"), "--trace-gc", *options, EXAMPLES / "node-service" / "service.js", stage.port])

    return start


SERVICES = [
    Service(
        name="python-json",
        programs={"python3": "python3"},
        start=start_python(),
        load=http_load(),
        rate_pattern=HTTP_RATE,
        expect=Expectation(
            runtime="cpython",
            allocator="glibc",
            must_not_be_wall=COLD_MEMORY | THREADED | COLLECTED | NOT_THE_ALLOCATOR | {"application_lock", "waiting"},
        ),
    ),
    Service(
        name="python-wall",
        programs={"python3": "python3"},
        start=start_python("--wall"),
        load=http_load(),
        rate_pattern=HTTP_RATE,
        expect=Expectation(
            runtime="cpython",
            allocator="glibc",
            must_be_wall={"first_touch"},
            must_name="rewrite (service.py",
            must_not_be_wall=THREADED | COLLECTED | NOT_THE_ALLOCATOR | {"application_lock", "waiting"},
        ),
        perf=("first_touch", "map_churn"),
    ),
    Service(
        name="redis",
        programs={"redis-server": "redis-server", "redis-benchmark": "redis-tools"},
        start=start_redis,
        load=load_redis,
        served=served_by_redis,
        # Redis really allocates its lists and strings: call rate or allocator code may be the wall, contention may not.
        expect=Expectation(
            runtime="native",
            allocator="jemalloc",
            must_not_be_wall=THREADED | COLLECTED | {"map_churn", "application_lock", "numa", "waiting"},
        ),
    ),
    Service(
        name="postgresql",
        programs={"postgres": "postgresql-15", "initdb": "postgresql-15", "pgbench": "postgresql-15", "setpriv": "util-linux"},
        start=start_postgres,
        load=load_postgres,
        rate_pattern=r"tps = ([\d.]+)",
        expect=Expectation(
            runtime="native",
            allocator="glibc",
            must_not_be_wall=COLD_MEMORY | THREADED | COLLECTED | NOT_THE_ALLOCATOR | {"application_lock", "waiting"},
        ),
    ),
    Service(
        name="nginx",
        programs={"nginx": "nginx-light", "wrk": "wrk"},
        start=start_nginx,
        load=load_nginx,
        rate_pattern=r"Requests/sec:\s+([\d.]+)",
        # Each request grows the top of the heap and trims it again: brk calls, and about one fault a request.
        expect=Expectation(
            runtime="native",
            allocator="glibc",
            must_not_be_wall=COLD_MEMORY | THREADED | COLLECTED | NOT_THE_ALLOCATOR | {"application_lock", "waiting"},
        ),
        perf=("map_churn",),
    ),
    Service(
        name="java",
        programs={"java": "default-jdk-headless", "javac": "default-jdk-headless"},
        start=start_java(),
        load=http_load(connections=8),
        rate_pattern=HTTP_RATE,
        expect=Expectation(
            runtime="jvm",
            allocator="glibc",
            # Its own threads use all CPUs. That they wait for each other is not interference.
            must_not_be_wall=COLD_MEMORY | THREADED | NOT_THE_ALLOCATOR | {"application_lock", "waiting", "run_queue"},
        ),
        pauses=JVM_PAUSE,
    ),
    Service(
        name="java-collector",
        programs={"java": "default-jdk-headless", "javac": "default-jdk-headless"},
        # A small young generation: many collections a second.
        start=start_java("-Xmn2m"),
        load=http_load(connections=8),
        rate_pattern=HTTP_RATE,
        expect=Expectation(
            runtime="jvm",
            allocator="glibc",
            must_not_be_wall=COLD_MEMORY | THREADED | NOT_THE_ALLOCATOR | {"application_lock", "waiting"},
        ),
        pauses=JVM_PAUSE,
    ),
    Service(
        name="node",
        programs={"node": "nodejs"},
        start=start_node(),
        load=http_load(),
        rate_pattern=HTTP_RATE,
        expect=Expectation(
            runtime="node",
            allocator="glibc",
            must_not_be_wall=THREADED | {"allocator_code", "map_churn", "application_lock", "numa", "tlb", "waiting"},
        ),
        pauses=NODE_PAUSE,
    ),
    Service(
        name="node-collector",
        programs={"node": "nodejs"},
        # Small semi-spaces: many scavenges a second.
        start=start_node("--max-semi-space-size=1"),
        load=http_load(),
        rate_pattern=HTTP_RATE,
        expect=Expectation(
            runtime="node",
            allocator="glibc",
            must_not_be_wall=THREADED | {"allocator_code", "map_churn", "application_lock", "numa", "tlb", "waiting"},
        ),
        pauses=NODE_PAUSE,
    ),
]
