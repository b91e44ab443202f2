# The front door. `make help` says what there is; `make run` and `make test` start from a bare Debian 12.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help configure build run test bench package python format tidy odr clean setup

help:
	@printf '%s\n' \
	  'Slipstream' \
	  '' \
	  '  make run               install what is missing, build, and run a model in a third of its weights'\'' memory' \
	  '  make test              install what is missing, build, and run all tests' \
	  '  make bench             build and run the benchmarks; results in build/bench/*.json' \
	  '  make bench ONLY=area   one of them (a folder of bench/); QUICK=1: few samples' \
	  '  make package           build a .deb and a tarball with program, library and docs; in build/' \
	  '  make python            build the Python package as a wheel; in build/' \
	  '  make format            lay out all C++ with clang-format 14' \
	  '  make tidy              check src/ with clang-tidy and the thread-safety analysis of clang' \
	  '  make odr               link with -flto -Werror=odr: finds types of the same name that differ' \
	  '  make clean             remove build/' \
	  '' \
	  'Other builds: cmake --preset dev|tsan|cuda, then cmake --build --preset ..., ctest --preset ...'

setup:
	@scripts/setup.sh

# Whether the benchmarks are built. Tests do not need them.
BENCH ?= OFF

configure: setup
	@cmake --preset release --log-level=NOTICE -DSLIP_BUILD_BENCH=$(BENCH)

build: configure
	@cmake --build --preset release

run: configure
	@cmake --build --preset release --target slip_cli   # the tests are not needed for a first look
	@scripts/demo.sh

test:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@ctest --preset release --output-on-failure

bench:
	@$(MAKE) --no-print-directory build BENCH=ON
	@scripts/bench.sh $(ONLY)

package: setup
	@cmake --preset release --log-level=NOTICE -DCMAKE_CUDA_ARCHITECTURES='80-real;90-real;90-virtual'
	@cmake --build --preset release --target slip slip_cli slip_texts
	@cpack --config build/release/CPackConfig.cmake
	@ls -1 build/*.deb build/*.tar.gz

python: setup
	@cmake --preset release --log-level=NOTICE -DSLIP_PYTHON=ON
	@cmake --build --preset release --target slip_wheel

format: setup
	@format=$$(command -v clang-format-14 || command -v clang-format); \
	scripts/list_sources.sh . cpp | xargs -0 -r "$$format" --style=file -i

tidy:
	@scripts/setup.sh tidy
	@scripts/check_tidy.py

odr: setup
	@cmake --preset odr --log-level=NOTICE
	@cmake --build --preset odr

clean:
	rm -rf build
