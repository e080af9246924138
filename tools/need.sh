#!/usr/bin/env bash
# Installs Debian packages whose programs are missing: need.sh PROGRAM=PACKAGE...
# A PROGRAM with a slash is a file name; * matches anything.
# Prints one line about what it installs; does nothing if nothing is missing; starts no service.
set -euo pipefail

PATH=$PATH:/usr/sbin:$(printf '%s:' /usr/lib/postgresql/*/bin)

missing=()
for pair in "$@"; do
    case "${pair%%=*}" in
        */*) compgen -G "${pair%%=*}" >/dev/null ;;
        *) command -v "${pair%%=*}" >/dev/null ;;
    esac || missing+=("${pair#*=}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

# One package may contain several programs.
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
if ! command -v apt-get >/dev/null; then
    echo "need: ${missing[*]} not installed, and this machine has no apt-get: install them by hand" >&2
    exit 1
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "need: ${missing[*]} not installed, and there is no sudo: run as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    sudo=(sudo)
fi
echo "need: installing ${missing[*]}" >&2

# Debian starts a server when it is installed, unless this file forbids it (policy-rc.d, Debian Policy 9.3.3).
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" install -m 755 /dev/stdin "$policy"
    trap '"${sudo[@]}" rm -f "$policy"' EXIT
fi
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null >&2; }
install_quietly() { apt install --no-install-recommends "${missing[@]}"; }
# Package lists may be missing or old: fetch them only if the first try fails.
install_quietly 2>/dev/null || { apt update && install_quietly; }
