# Everything a developer types. Each target makes the environment it needs, once; later runs are quick.
#
#   make demo            install into .venv and train a GraphSAGE model on a small real graph, which two
#                        storage servers on this machine hold (DEMO="--mode colocated" for worker processes)
#   make test            install with the test extras, then lint and format check, and the tests that are not
#                        slow beside the check of types, in a process per core and one more (JOBS=1: in one)
#   make test-all        the same with all tests
#   make test-slice      a fifth of the slow tests, chosen by the commit (SLICE=3: that of 0 to 4)
#   make test-device     on a machine with CUDA: batches on the device beside those of the CPU, transfers, rows that stay
#                        there, dequantisation; within 3 minutes on 16 cores
#   make mutations       put 172 seeded faults into a copy, one after the other: which tests see them?
#                        (NAMES="lease fence": these alone)
#   make bench           measure on the common workload (BENCH="--quick" for seconds instead of minutes)
#   make sanitize        the native tests under the address and undefined-behaviour sanitizers; with
#                        SANITIZER=thread the data port and shared slots under traffic (TRAFFIC_SECONDS=60)
#   make fuzz            throw damaged bytes at the frame parser (FUZZ_SECONDS=60), then hostile bytes at live
#                        ports (FUZZ_REQUESTS=1000000, FUZZ_SEED=1) while honest trainers run, then fuzz-port
#   make fuzz-port       coverage-guided fuzzing of the data port and its TLS (FUZZ_SECONDS=60 each); needs clang
#   make chaos           commit faults by seed in every mode and compare every batch (FAULTS=1000, CHAOS_SEED=1);
#                        CHAOS="--bursts" those of a moment only, of which none may be raised
#   make docs            the documentation as a site in build/site, with a reference from the docstrings
#   make torch-versions  one wheel, the native tests under several versions of torch
#   make release         source distribution, wheels, checks, a trained model from the wheel, SBOM and checksums
#                        in dist/ (PYTHONS="python3.10 python3.11 python3.12": a wheel for each)
#   make format          let ruff rewrite what it can
#   make clean           remove environments, builds and caches

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
# Tests of processes wait for a third of their time: one more of them than there are cores fills it.
JOBS ?= $(shell expr $$(nproc) + 1)
BIN := $(VENV)/bin
PIP_SHOWN = -m pip install --disable-pip-version-check --root-user-action=ignore
PIP_INSTALL = $(PIP_SHOWN) -q
# Large downloads, and the steps of an install that take longer than seconds, a line each.
SHOWN = | sed -un -e 's/^ *Downloading \([^ ]*\) (\([0-9][0-9][0-9.]* [MG]B\)).*/  downloads \1, \2/p' \
  -e 's/^ *Building editable for gigl-loader .*started$$/  compiles the native core: 1 to 3 minutes/p' \
  -e 's/^ *Building editable for gigl-loader .*status .done.$$/  compiled/p' \
  -e 's/^Installing collected packages: \([^,]*\),.*/  unpacks packages/p'
RUN_TESTS = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile
CONSTRAINED = $(PIP_SHOWN) -c constraints.txt

# What the installed package depends on. Python sources are not here, but for the version: the install is editable.
INPUTS := pyproject.toml constraints.txt gigl_loader/__init__.py $(wildcard gigl_loader/csrc/*)

# Where an environment forbids bytecode, each interpreter that tests start would compile this project: 0.3 s.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-slice test-device lint lint-native types fast unit bench docs sanitize sanitize-address sanitize-thread sanitize-slots fuzz fuzz-port chaos torch-versions release format clean

demo: $(VENV)/.installed
	@$(BIN)/gigl-loader demo --mode graph-store $(DEMO)

# One core checks types for a minute while tests begin.
test: lint
	+@$(MAKE) --no-print-directory -j2 fast types

test-all: lint
	+@$(MAKE) --no-print-directory -j2 unit types

SLICES := 5
SLICE ?= $(shell commit=$$(git rev-parse HEAD 2>/dev/null || echo 0); echo $$((16#$${commit:0:8} % $(SLICES))))

test-slice: $(VENV)/.installed-test
	@echo "slice $(SLICE) of the slow tests; again: SLICE=$(SLICE) make test-slice"
	$(RUN_TESTS) -m slow --slice $(SLICE)/$(SLICES) $(PYTEST)

# A test process takes 0.5 GB of the device.
DEVICE_JOBS ?= $(shell jobs=$$(nproc); echo $$(( jobs > 12 ? 12 : jobs )))

# Only these files: collecting all tests in each process takes longer than running these.
DEVICE_TESTS = $(shell grep -rl 'mark\.device' tests --include='test_*.py')

test-device: $(VENV)/.installed-test
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
	  || { echo "test-device: nothing was tested, torch $$($(BIN)/python -c 'import torch; print(torch.__version__)') sees no CUDA device"; exit 0; }; \
	$(BIN)/python -m pytest -n $(DEVICE_JOBS) -m device $(DEVICE_TESTS) $(PYTEST)

lint: $(VENV)/.installed-test
	+@$(MAKE) --no-print-directory -j$(JOBS) lint-native
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Warnings of the C++ sources, those of locks among them, and the checks of .clang-tidy. A file is looked at again when
# it changes. Bindings are left out: the headers of nanobind lie in the environment of the build alone.
LINT_FLAGS := -std=c++20 -Wall -Wextra -Wthread-safety
LINT_WITH := $(shell command -v clang-tidy || command -v clang++)
LINT_SOURCES := $(filter-out %/bindings.cc $(wildcard gigl_loader/csrc/bind_*.cc),$(wildcard gigl_loader/csrc/*.cc))

ifdef LINT_WITH
lint-native: $(LINT_SOURCES:%.cc=build/lint/%.done)
else
lint-native:
	@echo "C++ is not linted: neither clang-tidy nor clang++ is installed (apt-get install clang-tidy)"
endif

build/lint/%.done: %.cc .clang-tidy $(wildcard gigl_loader/csrc/*.h)
	@mkdir -p $(@D)
ifeq ($(notdir $(LINT_WITH)),clang-tidy)
	@$(LINT_WITH) --quiet $< -- $(LINT_FLAGS) 2>$@.log || { cat $@.log; exit 1; }
else
	@$(LINT_WITH) -fsyntax-only -Werror $(LINT_FLAGS) $<
endif
	@touch $@

types: $(VENV)/.installed-test
	$(BIN)/mypy

fast: $(VENV)/.installed-test
	$(RUN_TESTS) -m "not slow" $(PYTEST)

unit: $(VENV)/.installed-test
	$(RUN_TESTS) $(PYTEST)

mutations: $(VENV)/.installed-test
	$(BIN)/python -m tests.mutations.check $(NAMES)

bench: $(VENV)/.installed-test
	$(BIN)/gigl-loader bench $(BENCH)

# Diagrams are drawn in the reader's browser. Without npm, the site asks for Mermaid elsewhere.
build/mermaid.min.js:
	@mkdir -p build/mermaid && cd build/mermaid && npm pack --silent mermaid@11 >/dev/null \
	  && tar -xzf mermaid-*.tgz package/dist/mermaid.min.js && mv package/dist/mermaid.min.js ../mermaid.min.js \
	  || echo "no npm: pages with diagrams will load Mermaid from the network"
	@rm -rf build/mermaid

# The plugin warns of a version to come, which is none of a reader's business.
docs: $(VENV)/.installed-test build/mermaid.min.js
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir build/site
	@echo "build/site/index.html"

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(INPUTS) | $(BIN)/python
	@echo "installing into $(VENV): finds packages, downloads them, compiles; minutes the first time"
	@$(BIN)/python $(CONSTRAINED) -e '.[demo]' $(SHOWN)
	@touch $@

# The test extras include all others, so this install serves `make demo` as well. Ray Train and torch_frame need
# pandas, which torch would import in every process, 0.6 s each time: they lie apart, for the two tests of that.
# TorchFT has nightly builds alone: its test is skipped where there is none.
$(VENV)/.installed-test: $(INPUTS) | $(BIN)/python
	@echo "installing into $(VENV): finds packages, downloads them, compiles; minutes the first time"
	@$(BIN)/python $(CONSTRAINED) -e '.[test]' $(SHOWN)
	@rm -rf build/pandas && $(BIN)/python $(PIP_INSTALL) --no-deps --target build/pandas pandas pytorch-frame
	@rm -rf build/torchft && { $(BIN)/python $(PIP_INSTALL) -q --no-deps --target build/torchft torchft-nightly || true; }
	@touch $(VENV)/.installed $@

# --- sanitizers -------------------------------------------------------------------------------------

# An environment of its own, without torch, whose native module is built with the sanitizers. The
# interpreter is not: libasan must be loaded first, and libstdc++ with it, or it misses __cxa_throw.
SANITIZE_VENV ?= .venv-sanitize
SANITIZE_BIN := $(SANITIZE_VENV)/bin
NATIVE_TEST_NEEDS := numpy scipy cryptography protobuf pytest pytest-timeout hypothesis psutil
LIBRARY = $$(realpath "$$($(or $(CXX),g++) -print-file-name=$(1))")

SANITIZER ?= address
TRAFFIC_SECONDS ?= 60

sanitize: sanitize-$(SANITIZER)

sanitize-address: $(SANITIZE_VENV)/.installed
	LD_PRELOAD="$(call LIBRARY,libasan.so) $(call LIBRARY,libstdc++.so)" \
	ASAN_OPTIONS=abort_on_error=1 LSAN_OPTIONS=suppressions=tests/native/leaks.txt:print_suppressions=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	$(SANITIZE_BIN)/python -m pytest tests/native --timeout 600 -p no:cacheprovider $(PYTEST)

$(SANITIZE_VENV)/.installed: $(INPUTS)
	[ -x $(SANITIZE_BIN)/python ] || $(PYTHON) -m venv $(SANITIZE_VENV)
	$(SANITIZE_BIN)/python $(PIP_INSTALL) $(NATIVE_TEST_NEEDS)
	$(SANITIZE_BIN)/python $(PIP_INSTALL) --no-deps -e . \
	  -C build-dir=build/sanitize -C cmake.define.GIGL_SANITIZE=ON -C cmake.define.GIGL_WERROR=ON -C install.strip=false
	@touch $@

# The data port as a program of its own: no interpreter hides its threads from ThreadSanitizer, or its code from
# the coverage that guides libFuzzer. It loads the OpenSSL of this machine, which has no part in either.
PORT_SOURCES := $(wildcard gigl_loader/csrc/data_*.cc) \
  $(addprefix gigl_loader/csrc/,crc32c.cc listening.cc openssl.cc resolver.cc stop.cc tls.cc) tests/fuzz/tls_peer.cc
PORT_HEADERS := $(wildcard gigl_loader/csrc/*.h tests/fuzz/*.h)
PORT_FLAGS := -std=c++20 -O1 -g -fno-omit-frame-pointer -Wall -Wextra
PORT_LIBRARIES := -l:libssl.so.3 -l:libcrypto.so.3 -ldl -pthread
CLANGXX ?= clang++

# ThreadSanitizer of older compilers does not know the addresses that newer kernels choose at random.
FIXED_ADDRESSES = $(shell setarch -R true 2>/dev/null && echo setarch -R)

sanitize-thread: build/thread/data_port_traffic sanitize-slots
	TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 $(FIXED_ADDRESSES) $< $(TRAFFIC_SECONDS)

sanitize-slots: build/thread/shared_slots_traffic
	TSAN_OPTIONS=halt_on_error=1 $(FIXED_ADDRESSES) $< $(TRAFFIC_SECONDS)

# The sanitizer knows no fences, as its compiler warns: without them there is no race either, only older values.
NO_FENCE_WARNINGS = $(shell $(CXX) --version 2>/dev/null | grep -q clang || echo -Wno-tsan)
SLOT_SOURCES := $(addprefix gigl_loader/csrc/,cache_index.cc shared_slots.cc) tests/native/shared_slots_traffic.cc
build/thread/shared_slots_traffic: $(SLOT_SOURCES) gigl_loader/csrc/cache_index.h gigl_loader/csrc/shared_slots.h
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -g -Wall -Wextra $(NO_FENCE_WARNINGS) -fsanitize=thread $(SLOT_SOURCES) -o $@

build/thread/%.o: %.cc $(PORT_HEADERS)
	@mkdir -p $(@D)
	$(CXX) $(PORT_FLAGS) -fsanitize=thread -c $< -o $@

build/thread/data_port_traffic: $(patsubst %.cc,build/thread/%.o,$(PORT_SOURCES) tests/native/data_port_traffic.cc)
	$(CXX) -fsanitize=thread $^ $(PORT_LIBRARIES) -o $@

# --- fuzzing ----------------------------------------------------------------------------------------

FUZZ_SECONDS ?= 60
FUZZ_REQUESTS ?= 1000000
FUZZ_SEED ?= 1

fuzz: $(VENV)/.installed-fuzz
	mkdir -p build
	$(BIN)/python tests/fuzz/fuzz_frame.py build/corpus -max_total_time=$(FUZZ_SECONDS)
	$(BIN)/python -m tests.fuzz.live --requests $(FUZZ_REQUESTS) --seed $(FUZZ_SEED) --json build/fuzz.json
	$(MAKE) fuzz-port

PORT_TARGETS := fuzz_data_heads fuzz_data_tls
FUZZ_OPTIONS ?= -max_len=2048 -timeout=25 -rss_limit_mb=1024

fuzz-port: $(PORT_TARGETS:%=build/fuzz/%)
	for target in $(PORT_TARGETS); do \
	  mkdir -p build/corpus-$$target; \
	  ASAN_OPTIONS=quarantine_size_mb=16 build/fuzz/$$target build/corpus-$$target -max_total_time=$(FUZZ_SECONDS) $(FUZZ_OPTIONS) \
	    -artifact_prefix=build/ -print_final_stats=1; \
	done

build/fuzz/%.o: %.cc $(PORT_HEADERS)
	@command -v $(CLANGXX) >/dev/null || { echo "coverage-guided fuzzing needs clang: apt-get install clang"; exit 1; }
	@mkdir -p $(@D)
	$(CLANGXX) $(PORT_FLAGS) -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -c $< -o $@

build/fuzz/%: $(patsubst %.cc,build/fuzz/%.o,$(PORT_SOURCES) tests/fuzz/port_harness.cc) build/fuzz/tests/fuzz/%.o
	$(CLANGXX) -fsanitize=fuzzer,address,undefined -Wl,--wrap=recv $^ $(PORT_LIBRARIES) -o $@

.PRECIOUS: build/thread/%.o build/fuzz/%.o build/address/%.o

# The same targets by the compiler that is there, without coverage: for the suite.
build/address/%.o: %.cc $(PORT_HEADERS)
	@mkdir -p $(@D)
	$(CXX) $(PORT_FLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all -c $< -o $@

build/address/%: $(patsubst %.cc,build/address/%.o,$(PORT_SOURCES) tests/fuzz/port_harness.cc tests/fuzz/fuzz_main.cc) \
    build/address/tests/fuzz/%.o
	$(CXX) -fsanitize=address,undefined -Wl,--wrap=recv $^ $(PORT_LIBRARIES) -o $@

# Without memory, and without a resolver that answers.
build/address/data_port_faults: $(patsubst %.cc,build/address/%.o,$(PORT_SOURCES) tests/native/data_port_faults.cc)
	$(CXX) -fsanitize=address,undefined -Wl,--wrap=getaddrinfo $^ $(PORT_LIBRARIES) -o $@

$(VENV)/.installed-fuzz: $(VENV)/.installed-test
	$(BIN)/python $(PIP_INSTALL) atheris
	@touch $@

# --- faults -----------------------------------------------------------------------------------------

FAULTS ?= 1000
CHAOS_SEED ?= 1
CHAOS ?=

chaos: $(VENV)/.installed-test
	mkdir -p build
	$(BIN)/python -m tests.chaos $(CHAOS) --faults $(FAULTS) --seed $(CHAOS_SEED) --json build/chaos.json

# --- one wheel, every torch -------------------------------------------------------------------------

# The wheel is built once. It must name no torch library among those it needs (tests/unit/test_packaging.py
# reads that), and the native tests and those of the loader must pass beside each version of torch. Tests
# run from a copy, so that they meet the wheel and not the sources. An environment that exists is used as
# it is: to avoid a large download, make .venv-torch-X with a torch of your choice beforehand.
TORCH_VERSIONS ?= 2.4.1 2.13.0
TORCH_TESTS ?= tests/native tests/contract tests/unit/test_packaging.py tests/unit/test_neighbor_loader.py \
  tests/integration/test_equality.py tests/integration/test_models.py
WHEELS := build/wheels

torch-versions: $(addprefix torch-,$(TORCH_VERSIONS))

$(WHEELS)/.built: $(INPUTS) $(shell find gigl_loader servers clients -name '*.py') | $(BIN)/python
	rm -rf $(WHEELS) && mkdir -p $(WHEELS)
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w $(WHEELS) .
	@touch $@

.SECONDARY: $(TORCH_VERSIONS:%=.venv-torch-%/.ready)
.venv-torch-%/.ready:
	[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -c 'import torch' 2>/dev/null || $(@D)/bin/python $(PIP_INSTALL) torch==$*
	@touch $@

torch-%: $(WHEELS)/.built .venv-torch-%/.ready
	.venv-torch-$*/bin/python $(PIP_INSTALL) "$$(echo $(WHEELS)/*.whl)[train,kaminpar]" $(NATIVE_TEST_NEEDS) safetensors
	.venv-torch-$*/bin/python $(PIP_INSTALL) --no-deps --force-reinstall $(WHEELS)/*.whl
	rm -rf build/torch-$* && mkdir -p build/torch-$* && cp -r tests pyproject.toml build/torch-$*
	cd build/torch-$* && $(CURDIR)/.venv-torch-$*/bin/python -c \
	  'import torch, gigl_loader.native._core as core; print("torch", torch.__version__, "with", core.__file__)'
	cd build/torch-$* && $(CURDIR)/.venv-torch-$*/bin/python -m pytest -q -p no:cacheprovider $(TORCH_TESTS)

# --- a release --------------------------------------------------------------------------------------

release:
	PYTHONS="$(or $(PYTHONS),$(PYTHON))" deploy/release.sh

clean:
	rm -rf .venv .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find gigl_loader servers clients tests -name __pycache__ -type d -prune -exec rm -rf {} +
