#!/usr/bin/env bash
# Installs nightly Rust and components if they are missing: nightly.sh TOOLCHAIN TEST [COMPONENT...]
# If they are not available, prints that TEST is skipped, with the reason, and fails.
set -euo pipefail

toolchain=$1 test=$2
shift 2
# Two installations at the same time spoil one another.
exec 9<"$0"
flock 9
lacking=()
installed=$(rustup component list --installed --toolchain "$toolchain" 2>/dev/null || true)
for component in "$@"; do
    grep -q "^$component\(-\|$\)" <<<"$installed" || lacking+=(--component "$component")
done
[ ${#lacking[@]} -gt 0 ] || ! rustup run "$toolchain" rustc --version >/dev/null 2>&1 || exit 0
echo "installing: Rust $toolchain${*:+ with $*}" >&2
if ! said=$(rustup toolchain install --profile minimal "${lacking[@]}" "$toolchain" 2>&1); then
    echo "skipped: $test: no Rust $toolchain${*:+ with $*}: $(grep -m1 error <<<"$said" || tail -1 <<<"$said")"
    echo "0 passed, 0 failed, 1 skipped"
    exit 1
fi
