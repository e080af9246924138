#!/usr/bin/env bash
# Builds what `make dist` packs, into a folder: build.sh OUT
#
#   OUT/gnu/allocwall     for glibc 2.28 and later
#   OUT/musl/allocwall    static, for any Linux
#   OUT/allocwall.cdx.json    the bill of materials (CycloneDX)
#
# zig has the headers and the symbol versions of old C libraries. It comes as a package of PyPI and needs no installation. The libraries
# that the program embeds are for glibc 2.28 in both programs. PROFILE=dev builds faster, for a try.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: build.sh OUT" >&2; exit 2; }
out=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
glibc=2.28
arch=$(uname -m)
profile=${PROFILE:-dist}
tools=$PWD/target/tools
target=${CARGO_TARGET_DIR:-target}

[ -x "$tools/zig/bin/cargo-zigbuild" ] || {
    echo "installing: zig, cargo-zigbuild" >&2
    python3 -m venv "$tools/zig"
    "$tools/zig/bin/pip" install --quiet --disable-pip-version-check ziglang==0.15.2 cargo-zigbuild==0.24.1
}
export PATH=$tools/zig/bin:$tools/bin:$PATH
command -v cargo-cyclonedx >/dev/null || {
    echo "installing: cargo-cyclonedx" >&2
    cargo install --quiet --locked --root "$tools" cargo-cyclonedx@0.5.9
}
command -v rustup >/dev/null || { echo "rustup is missing (https://rustup.rs): it installs the standard library of the other targets" >&2; exit 1; }
rustup target add "$arch-unknown-linux-gnu" "$arch-unknown-linux-musl"

# The compilers of the embedded libraries, in the build for musl. (In that for glibc, cargo-zigbuild sets its own.)
for kind in cc c++; do
    printf '#!/bin/sh\nexec cargo-zigbuild zig %s -- -fno-sanitize=all -target %s-linux-gnu.%s "$@"\n' "$kind" "$arch" "$glibc" >"$tools/zig-$kind"
    chmod +x "$tools/zig-$kind"
done
export "CC_${arch}_unknown_linux_gnu=$tools/zig-cc" "CXX_${arch}_unknown_linux_gnu=$tools/zig-c++"

mkdir -p "$out"
for libc in gnu musl; do
    suffix=
    [ "$libc" = musl ] || suffix=.$glibc
    cargo zigbuild --locked --profile "$profile" --package allocwall --target "$arch-unknown-linux-$libc$suffix"
    install -D "$target/$arch-unknown-linux-$libc/${profile/dev/debug}/allocwall" "$out/$libc/allocwall"
done

# cargo-cyclonedx writes beside the manifests, so it gets a copy of them.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | grep -zE '(^|/)(Cargo\.(toml|lock)|[^/]+\.rs)$' | tar -c --null -T - | tar -x -C "$copy"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) cargo cyclonedx --quiet --manifest-path "$copy/crates/allocwall/Cargo.toml" --format json --spec-version 1.5 \
    --target "$arch-unknown-linux-gnu" --override-filename allocwall.cdx
sed "s|$copy|/allocwall|g" "$copy/crates/allocwall/allocwall.cdx.json" >"$out/allocwall.cdx.json"
