# What a person types; CMake does the work (CMakePresets.json). `make help` lists it all. What the machine lacks is
# installed by tools/setup, which is silent when nothing is missing.
.DEFAULT_GOAL := all
SHELL := /bin/bash
# How many compilers run at once; seconds for each fuzzer, and how many of them run at once.
JOBS ?= $(shell nproc)
# How many tests: one more, for some wait. OpenMP's threads give way to them instead of waiting busily.
TEST_JOBS ?= $(shell echo $$(($(JOBS) + 1)))
FUZZ_SECONDS ?= 60
FUZZ_JOBS ?= $(shell nproc)

# The layout of the code is that of clang-format 14; another version would move lines.
CLANG_FORMAT = clang-format-14
CODE = $(shell find src tests bench tools -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort)

.PHONY: all program demo test test-slow test-browser bench fuzz format format-check clean help setup setup-demo setup-test setup-browser setup-slow check-format-only

all: program  ## build build/release/trireme
	@echo 'the program is build/release/trireme; in this shell as trireme: export PATH="$(CURDIR)/build/release:$$PATH"'
	@echo 'next: make demo (five minutes), trireme help, or your own text: README.md'

program: build/release/build.ninja
	@cmake --build build/release -j $(JOBS) --target trireme

demo: program setup-demo  ## the main job on this machine, from text to trained model (DEMO_TEXT=folder: your own text, into runs/demo-text)
	@build/release/trireme demo $(if $(DEMO_TEXT),--text "$(DEMO_TEXT)" --dir runs/demo-text) $(DEMO_ARGS)

test: build/release/with-tests build/asan/with-tests  ## all fast tests, optimised and under the address sanitizer
	@cmake --build build/release -j $(JOBS)
	@cmake --build build/asan -j $(JOBS)
	@if command -v $(CLANG_FORMAT) >/dev/null; then $(MAKE) --no-print-directory check-format-only; fi
	@printf 'subdirs(asan release)\n' >build/CTestTestfile.cmake
	@rm -rf build/release/refused
	@OMP_WAIT_POLICY=passive ctest --test-dir build -j $(TEST_JOBS) -L fast --output-on-failure --no-tests=error
	@cat build/release/refused/*

test-slow: build/clang/with-tests build/tsan/with-tests build/asan-all/with-tests build/release/with-tests build/fuzz/with-tests  ## clang, the thread sanitizer, long tests, fuzzers for seconds
	@$(MAKE) --no-print-directory format-check
	@cmake --build build/clang -j $(JOBS)
	@cmake --build build/tsan -j $(JOBS)
	@cmake --build build/asan-all -j $(JOBS)
	@cmake --build build/release -j $(JOBS) --target all benches
	@cmake --build build/fuzz -j $(JOBS) --target fuzzers
	@ctest --test-dir build/clang -L fast --output-on-failure --no-tests=error
	@OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1 TSAN_OPTIONS=suppressions=$(CURDIR)/tests/testing/tsan.supp ctest --test-dir build/tsan -L fast --output-on-failure --no-tests=error
	@ctest --test-dir build/asan-all -L 'fast|whole' --output-on-failure --no-tests=error
	@ctest --test-dir build/fuzz -L slow --output-on-failure --no-tests=error
	@rm -rf build/release/refused
	@ctest --test-dir build/release -L slow --output-on-failure
	@cat build/release/refused/*

test-browser: program setup-browser  ## opens every page of the report in headless Chromium; screenshots in build/browser
	@/usr/bin/python3 tests/browser/pages.py build/release/trireme build/browser

bench: program  ## training steps, ops and start-up, as a table (PEER_PYTHON=python-with-torch, BENCH_ARGS="--threads 2")
	@cmake --build build/release -j $(JOBS) --target benches
	@python3 bench/report.py $(if $(PEER_PYTHON),--peer-python "$(PEER_PYTHON)") $(BENCH_ARGS)

fuzz: build/fuzz/with-tests  ## hostile files against every parser, FUZZ_SECONDS=60 each, FUZZ_JOBS at once
	@cmake --build build/fuzz -j $(JOBS) --target fuzzers
	@tools/fuzz --seconds $(FUZZ_SECONDS) --jobs $(FUZZ_JOBS)

format: setup-slow  ## lay out the code with clang-format 14
	@$(CLANG_FORMAT) -i $(CODE)

format-check: setup-slow check-format-only  ## fail if clang-format 14 would change a file

check-format-only:
	@$(CLANG_FORMAT) --dry-run -Werror $(CODE) && echo "format: $(words $(CODE)) files are as they should be"

clean:  ## remove what was built
	rm -rf build

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/  make \1\t\2/p' Makefile | expand -t 20

setup:
	@tools/setup build
setup-demo:  # without the package the demo learns from Python's sources
	@$(if $(DEMO_TEXT),true,tools/setup demo) || true
setup-test:
	@tools/setup build test
setup-browser:
	@tools/setup browser
setup-slow:
	@tools/setup build test slow

build/release/build.ninja: | setup
	@cmake --preset release

# A folder configured before GoogleTest was there knows no tests yet, so the mark is a file of its own.
build/release/with-tests: | setup-test
	@cmake --preset release -DTRIREME_TESTS=ON
	@touch $@
# Tests are compiled once, by the release build; what they test is compiled for both.
build/asan/with-tests: build/release/with-tests
	@cmake --preset asan -DTRIREME_TESTS=ON -DTRIREME_TEST_OBJECTS=$(CURDIR)/build/release
	@touch $@
build/fuzz/with-tests: | setup-slow
	@cmake --preset fuzz
	@touch $@
build/clang/with-tests build/tsan/with-tests build/asan-all/with-tests: build/%/with-tests: | setup-slow
	@cmake --preset $* -DTRIREME_TESTS=ON
	@touch $@
