# Each target installs what it needs (Debian packages, only the missing ones) and says so in one line.
# Builds go to target/ alone.

CARGO ?= cargo
NIGHTLY ?= nightly
BINARY := target/release/allocwall

.PHONY: demo test fuzz faults lab models miri tsan wheel python-test python-reliability bench trial-accuracy accuracy build

## A Python service with a wall in it, under load, diagnosed: under a minute after the build.
demo: build
	@tools/need.sh python3=python3
	@tools/demo.sh $(BINARY)

## Unit tests, subjects with a known truth, the bill beside perf record, then real programs under real load; the pool library's
## models, and the Python package on every CPython that is here. Goes on after a failure, and ends with how many passed, failed
## and were skipped.
test:
	@tools/need.sh python3=python3
	@python3 tests/run.py

## The pool library's protocols in every order that the memory model allows.
models:
	RUSTFLAGS='--cfg loom' $(CARGO) test -p allocwall-pool --release --locked --test loom --target-dir target/loom -- --show-output

## The same under Miri: what the language allows of pointers, and weak memory by chance. Nightly Rust; takes minutes.
miri:
	@tools/nightly.sh $(NIGHTLY) miri miri rust-src || exit 0; set -ex; export MIRIFLAGS=-Zmiri-strict-provenance; \
	$(CARGO) +$(NIGHTLY) miri test -p allocwall-pool --locked --no-fail-fast --target-dir target/miri \
	    --test model --test threads --test request -- --show-output; \
	$(CARGO) +$(NIGHTLY) miri test -p allocwall-pool --locked --target-dir target/miri --lib memory::tests -- --show-output

## Its threads under ThreadSanitizer, the standard library included. Nightly Rust.
tsan:
	@tools/nightly.sh $(NIGHTLY) tsan rust-src || exit 0; set -ex; \
	export RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS=allocator_may_return_null=1; \
	$(CARGO) +$(NIGHTLY) test -p allocwall-pool --locked --no-fail-fast --target-dir target/tsan -Zbuild-std \
	    --target $(shell rustc -vV | sed -n 's/host: //p') --test threads --test request -- --show-output

## Every reader of foreign bytes under libFuzzer: a minute of it, and with LONG=1 ten minutes a reader. Nightly Rust.
fuzz:
	@tools/need.sh python3=python3 c++=build-essential
	@tools/nightly.sh $(NIGHTLY) fuzz || exit 0; set -e; \
	cargo fuzz --version >/dev/null 2>&1 || { echo "installing: cargo-fuzz" >&2; $(CARGO) install --quiet --locked cargo-fuzz@0.13.2; }; \
	python3 fuzz/run.py --toolchain $(NIGHTLY) --seconds $(if $(LONG),600,3)

## Every system call of a short diagnosis and a short trial fails once, or is the last before somebody is killed. Hours; with
## FAULTS_SECONDS=120 what fits into two minutes, by chance. As root.
faults:
	@tools/need.sh python3=python3 cc=build-essential
	$(CARGO) build --locked
	python3 tests/faults/run.py --binary target/debug/allocwall $(if $(FAULTS_SECONDS),--seconds $(FAULTS_SECONDS))

## The wheel, with the program in it, under target/wheels.
wheel:
	@tools/need.sh python3=python3 cc=build-essential c++=build-essential
	@/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || tools/need.sh venv=python3-venv
	python3 -m venv target/venv
	rm -rf target/wheels
	target/venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir target/wheels .

## The wheel's tests on every CPython from 3.9 on that is installed, and its refusals on PyPy.
python-test: wheel
	@tools/need.sh pypy3=pypy3
	python3 python/tests/run.py target/wheels/*.whl

## The package under stress: CPython's own tests, servers, forks, limits, a sanitizer. About half an hour; as root.
python-reliability: wheel
	python3 python/tests/reliability/run_all.py target/wheels/*.whl

## Diagnoses on Linux 5.10, 6.1 and 6.12, emulated: tests/lab. About twenty-five minutes; LAB=ci takes three.
lab: build
	@tools/need.sh python3=python3
	tests/lab/run.py --install $(LAB)

## What a diagnosis costs its target. About seventeen minutes; wants a quiet machine.
bench: build
	@tools/need.sh python3=python3
	benches/overhead.py --binary $(BINARY) --json target/overhead.json

## How often a trial is wrong, beside hyperfine and poop where they are installed. About six minutes; wants a quiet machine.
trial-accuracy: build
	@tools/need.sh python3=python3
	benches/trial_accuracy.py target/trial-accuracy.json --binary $(BINARY)

## Predicted gains beside measured ones, by program and remedy: docs/prediction-accuracy.md. About forty minutes; wants a quiet machine.
accuracy: build
	@tools/need.sh python3=python3
	benches/prediction_accuracy.py --binary $(BINARY)

build:
	@tools/need.sh cc=build-essential c++=build-essential
	@command -v $(CARGO) >/dev/null || { echo "need: Rust 1.88 or newer: https://rustup.rs" >&2; exit 1; }
	$(CARGO) build --release --locked
