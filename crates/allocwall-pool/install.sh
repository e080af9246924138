#!/bin/sh
# Installs the C and C++ interface: install.sh PREFIX [LIBRARY]
#
# Builds the static library, or takes LIBRARY. DESTDIR, if set, is put before PREFIX, as packagers need it.
set -eu

[ $# -ge 1 ] && [ $# -le 2 ] || { echo "usage: install.sh PREFIX [LIBRARY]" >&2; exit 2; }
prefix=$1
here=$(cd "$(dirname "$0")" && pwd)
library=${2:-}
if [ -z "$library" ]; then
    target=$(mktemp -d)
    trap 'rm -rf "$target"' EXIT
    cargo rustc --manifest-path "$here/Cargo.toml" --lib --release --no-default-features --features capi --crate-type staticlib \
        --target-dir "$target"
    library=$target/release/liballocwall_pool.a
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml" "$here/../../Cargo.toml" 2>/dev/null | head -1)
to=${DESTDIR:-}$prefix
mkdir -p "$to/include" "$to/lib/pkgconfig"
cp "$here/include/allocwall_pool.h" "$here/include/allocwall_pool.hpp" "$to/include/"
cp "$library" "$to/lib/liballocwall_pool.a"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/allocwall-pool.pc.in" >"$to/lib/pkgconfig/allocwall-pool.pc"
