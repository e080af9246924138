#!/usr/bin/env bash
# Starts a Python service with a memory wall, puts load on it, diagnoses it, and stops it: demo.sh BINARY
set -euo pipefail

binary=$(realpath "$1")
service=$(cd "$(dirname "$0")/../examples/manifest-service" && pwd)
python=$(command -v /usr/bin/python3 || command -v python3)
window_s=10

work=$(mktemp -d)
started=()
stop_all() {
    status=$?
    trap - EXIT INT TERM
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$work"
    exit "$status"
}
trap stop_all EXIT
trap 'exit 130' INT TERM

"$python" "$service/service.py" --wall >"$work/service" &
server=$!
started+=("$server")
for _ in $(seq 50); do
    port=$(sed -n 's/.*127\.0\.0\.1:\([0-9]*\).*/\1/p' "$work/service")
    [ -z "$port" ] || break
    sleep 0.1
done
[ -n "$port" ] || { echo "demo: the service did not start within 5 s" >&2; exit 1; }

"$python" "$service/load.py" --port "$port" --duration 60 >"$work/load" &
started+=("$!")
sleep 2

echo "demo: examples/manifest-service/service.py --wall runs as pid $server under load; the next command is:" >&2
echo "\$ allocwall diagnose -p $server -d $window_s" >&2
# Next to the binary: the suggested commands need the recording after the demo.
recording=$(dirname "$binary")/demo.allocwall
rm -f "$recording"
"$binary" diagnose -p "$server" -d "$window_s" -o "$recording"
kill -0 "${started[1]}" 2>/dev/null || { echo "demo: the load ended before the end of the window" >&2; exit 1; }
