# Each target installs the Debian packages that it needs and that are missing, and prints one line about it.
# Builds write only to target/.

CARGO ?= cargo
NIGHTLY ?= nightly
BINARY := target/release/allocwall

.PHONY: demo test aarch64 aarch64-lab dist dist-test fuzz faults lab models miri tsan pool-install wheel python-test python-reliability bench count-cost count-suites trial-accuracy accuracy owners collectors experiments verdicts build

## Diagnoses a Python service with a known wall, under load. Under a minute after the build.
demo: build
	@tools/need.sh python3=python3
	@tools/demo.sh $(BINARY)

## Unit tests, subjects with a known truth, the bill compared with perf record, real programs under real load, the pool library's
## models, and the Python package on every installed CPython. Continues after a failure, and ends with the numbers of passed, failed
## and skipped tests.
test:
	@tools/need.sh python3=python3
	@python3 tests/run.py

## The pool library's protocols in every order that the memory model allows.
models:
	RUSTFLAGS='--cfg loom' $(CARGO) test -p allocwall-pool --release --locked --test loom --target-dir target/loom -- --show-output

## The same under Miri, which checks the use of pointers, and weak memory in random orders. Nightly Rust; takes minutes.
miri:
	@tools/nightly.sh $(NIGHTLY) miri miri rust-src || exit 0; set -ex; export MIRIFLAGS=-Zmiri-strict-provenance; \
	$(CARGO) +$(NIGHTLY) miri test -p allocwall-pool --locked --no-fail-fast --target-dir target/miri \
	    --test model --test threads --test request -- --show-output; \
	$(CARGO) +$(NIGHTLY) miri test -p allocwall-pool --locked --target-dir target/miri --features capi \
	    --lib -- --show-output memory::tests lane::tests capi::tests

## The pool library's threads under ThreadSanitizer, including the standard library. Nightly Rust.
tsan:
	@tools/nightly.sh $(NIGHTLY) tsan rust-src || exit 0; set -ex; \
	export RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS=allocator_may_return_null=1; \
	$(CARGO) +$(NIGHTLY) test -p allocwall-pool --locked --no-fail-fast --target-dir target/tsan -Zbuild-std \
	    --target $(shell rustc -vV | sed -n 's/host: //p') --test threads --test request -- --show-output

## The C and C++ interface of the pool library: static library, headers, pkg-config file. PREFIX: /usr/local; DESTDIR for packagers.
pool-install:
	crates/allocwall-pool/install.sh $(if $(PREFIX),$(PREFIX),/usr/local)

## Every reader of untrusted bytes under libFuzzer: one minute in all; with LONG=1 ten minutes a reader. Nightly Rust.
fuzz:
	@tools/need.sh python3=python3 c++=build-essential
	@tools/nightly.sh $(NIGHTLY) fuzz || exit 0; set -e; \
	cargo fuzz --version >/dev/null 2>&1 || { echo "installing: cargo-fuzz" >&2; $(CARGO) install --quiet --locked --debug cargo-fuzz@0.13.2; }; \
	python3 fuzz/run.py --toolchain $(NIGHTLY)$(if $(LONG), --seconds 600)

## Each system call of a short diagnosis and a short trial fails once, or a process is killed at it. Takes hours; FAULTS_SECONDS=120
## runs a random selection for two minutes. As root.
faults:
	@tools/need.sh python3=python3 cc=build-essential
	$(CARGO) build --locked
	python3 tests/faults/run.py --binary target/debug/allocwall $(if $(FAULTS_SECONDS),--seconds $(FAULTS_SECONDS))

## Small programs whose wall is known by their construction, and which had no part in any rule. Three minutes, on a quiet machine.
verdicts: build
	@tools/need.sh python3=python3 cc=build-essential c++=build-essential
	tests/verdicts/run.py

## Packages for machines without a compiler, in target/dist/packages: tarballs, .deb, wheel, bill of materials, checksums. They run on
## systems that are older than this one (docs/install.md). Two release builds.
dist:
	@tools/need.sh python3=python3 cc=build-essential c++=build-essential readelf=binutils dpkg-deb=dpkg
	@/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || tools/need.sh venv=python3-venv
	tools/dist/build.sh target/dist/programs
	tools/dist/pack.py --program target/dist/programs/gnu/allocwall --static target/dist/programs/musl/allocwall \
	    --sbom target/dist/programs/allocwall.cdx.json --zig "$$(target/tools/zig/bin/python -c 'import ziglang; print(ziglang.__path__[0])')/zig" \
	    target/dist/packages

## Installs the packages of `make dist` in bare root file systems: Debian 11, 12 and 13, and one with nothing but busybox. As root.
dist-test:
	tests/dist/run.py --install --packages target/dist/packages --suite bullseye --suite bookworm --suite trixie --bare

## The wheel, which contains the program, in target/wheels. PROGRAM=FILE: this one instead of a new build. ZIG=FILE: the extension is
## built with this zig, for the glibc that the program needs.
wheel: export ALLOCWALL_PROGRAM := $(if $(PROGRAM),$(abspath $(PROGRAM)))
wheel: export CARGO_ZIGBUILD_ZIG_PATH := $(ZIG)
wheel:
	@tools/need.sh python3=python3 cc=build-essential c++=build-essential
	@/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || tools/need.sh venv=python3-venv
	python3 -m venv target/venv
	rm -rf target/wheels
	target/venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir target/wheels \
	    $(if $(ZIG),--config-settings build-args=--zig) .

## The wheel's tests on every installed CPython from 3.9 on, and its refusals on PyPy. ENDS=1: only on the oldest and the newest CPython.
python-test: wheel
	@tools/need.sh pypy3=pypy3
	python3 python/tests/run.py $(if $(ENDS),--ends) target/wheels/*.whl

## The package under stress: CPython's own tests, servers, forks, limits, a sanitizer. About half an hour; as root.
python-reliability: wheel
	python3 python/tests/reliability/run_all.py target/wheels/*.whl

## Diagnoses on Linux 5.10, 6.1 and 6.12, emulated (tests/lab). About twenty-five minutes; LAB=ci takes three.
lab: build
	@tools/need.sh python3=python3
	tests/lab/run.py --install $(LAB)

## The program for aarch64, built here, and unit tests of its crates under QEMU's user emulation (docs/install.md, aarch64).
aarch64:
	@tools/need.sh python3=python3
	tests/aarch64.py build
	tests/aarch64.py test

## The same program on Linux 6.1 for arm64, emulated (tests/lab). About ten minutes.
aarch64-lab:
	@tools/need.sh python3=python3
	tests/aarch64.py build
	tests/lab/run.py --install --binary target/aarch64-unknown-linux-gnu/debug/allocwall arm64

## What a diagnosis costs its target. About seventeen minutes; needs a quiet machine.
bench: build
	@tools/need.sh python3=python3
	benches/overhead.py --binary $(BINARY) --json target/overhead.json

## What counting costs a program, beside other tools: docs/count-cost.md. About ten minutes; needs a quiet machine. QUICK=1: three.
count-cost: build
	@tools/need.sh python3=python3 gcc=build-essential g++=build-essential sqlite3=sqlite3
	@for one in redis-server=redis-server redis-benchmark=redis-tools heaptrack=heaptrack '/usr/lib/*/libjemalloc.so.2=libjemalloc2' \
	    '/usr/lib/*/libtcmalloc.so.4=libgoogle-perftools4'; do tools/need.sh "$$one" || :; done
	@/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || tools/need.sh venv=python3-venv
	@[ -x target/count-venv/bin/memray ] || { /usr/bin/python3 -m venv target/count-venv && \
	    target/count-venv/bin/pip install --quiet --disable-pip-version-check memray==1.20.0; } || echo "memray: not installed" >&2
	benches/count_cost.py --binary $(BINARY) --json target/count-cost.json $(if $(QUICK),--quick)

## Test suites of CPython, Redis and SQLite with and without counting: docs/count-cost.md. About half an hour with the builds.
count-suites: build
	@tools/need.sh python3=python3 dpkg-source=dpkg-dev make=build-essential tclsh=tcl '/usr/lib/*/tcl8*/tclConfig.sh=tcl-dev' xz=xz-utils
	@v=$$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    tools/need.sh "/usr/lib/python$$v/test/test_list.py=libpython$$v-testsuite" || :
	benches/count_suites.py --binary $(BINARY) --work target/count-suites --json target/count-suites.json

## How often a trial is wrong, compared with hyperfine and poop if they are installed. About six minutes; needs a quiet machine.
trial-accuracy: build
	@tools/need.sh python3=python3
	benches/trial_accuracy.py target/trial-accuracy.json --binary $(BINARY)

## Predicted and measured gains, by program and remedy: docs/prediction-accuracy.md. An hour and a half; needs a quiet machine.
accuracy: build
	@tools/need.sh python3=python3
	benches/prediction_accuracy.py --binary $(BINARY)

## Whose memory page faults are about, compared with a program's own account, with and without root. About a minute; needs a quiet
## machine; as root.
owners: build
	@tools/need.sh python3=python3 gcc=build-essential setpriv=util-linux
	benches/owners.py --binary $(BINARY)

## The collector's share, compared with the accounts of each installed CPython, JVM and Go. Half a minute for each; a JVM
## counts three times, once for each of three collectors. Needs a quiet machine; as root.
collectors: build
	@tools/need.sh python3=python3
	benches/collector_accounts.py --binary $(BINARY)

## All experiments from published accounts, and the page of their results: docs/experiments-results.md. Some hours; an hour and a
## quarter with BENCH="--blocks 6" (options of `allocwall bench all`) on two CPUs, of which rss-climb takes half. Needs a quiet machine;
## some experiments need root. If one fails, the page stays as it was; the last line below writes it from the others.
experiments: build
	@tools/need.sh python3=python3
	rm -rf target/experiments/charts
	mkdir -p target/experiments
	$(BINARY) bench all -o target/experiments/results.json --charts target/experiments/charts $(BENCH)
	benches/experiments_page.py target/experiments/results.json target/experiments/charts

build:
	@tools/need.sh cc=build-essential c++=build-essential
	@command -v $(CARGO) >/dev/null || { echo "need: Rust 1.88 or newer: https://rustup.rs" >&2; exit 1; }
	$(CARGO) build --release --locked
