# unislab: what a newcomer, a developer and CI call.  `make help` lists the targets.
#
#   PYTHON=python3      the Python (3.11 or newer) that .venv is made from
#   VENV=.venv          where demo, test, lint and bench install
#   JOBS=<CPUs>         compilers at a time
#   PYTEST_ARGS=        more arguments for pytest, as in PYTEST_ARGS='-k ring -x'
#   TRACE=tcp_rr        the shipped trace that `make demo` runs
#
# The environment variables of setup.py (UNISLAB_WERROR, UNISLAB_DEBUG, UNISLAB_SANITIZE, CC) and
# UNISLAB_RSEQ=0|1 at run time (per-CPU queues by locks, by restartable sequences) pass through.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
PYTEST_ARGS ?=
TRACE ?= tcp_rr

VPY := $(VENV)/bin/python
SOURCES := setup.py pyproject.toml $(shell find csrc python -type f \
	-name '*.[ch]' -o -type f -name '*.py*' -not -name '*.pyc' -o -path '*/unislab/data/*' -type f)
C_FILES := $(shell find csrc tests/c bench/c -name '*.[ch]' 2>/dev/null)
export UNISLAB_JOBS = $(JOBS)
export MPLBACKEND = Agg
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test test-all bench lint sanitize sanitize-address sanitize-thread inplace clean probe
.DELETE_ON_ERROR:
.SECONDARY:

help:
	@echo "make demo      install into $(VENV) and run the main job on a real trace"
	@echo "make test      install and run the suite, with rseq and without: unified and slub in full, a core of the rest"
	@echo "make test-all  the full product: every policy, slow tests too, both modes, then the sanitizers"
	@echo "make bench     the benchmarks against their bounds, into build/bench.json"
	@echo "make lint      ruff, mypy with stubtest, clang-format, compiler warnings as errors"
	@echo "make sanitize  the C and Python suites under ASan and UBSan, the fallback under TSan"
	@echo "make inplace   build both modules into python/unislab, for PYTHONPATH=python"
	@echo "make clean     remove what was built, $(VENV) too"

# One line each where something is missing, before pip prints its pages.
probe:
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON): install Python 3.11 or newer" \
	    "(apt-get install python3), or name yours: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: $$($(PYTHON) --version) is too old: 3.11 or newer is needed; make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) has no venv module:" \
	    "apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) setup.py probe

# $(call install,VENV,EXTRAS): a virtual environment with the package built from this tree.  Several
# people may build in one tree: one at a time.
define install
@mkdir -p build
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install -q --upgrade 'pip>=24'
flock build/.lock sh -c "rm -rf build/lib.* build/bdist.* && $(1)/bin/python -m pip install -q '.$(2)'"
touch $@
endef

$(VENV)/.installed: $(SOURCES) | probe
	$(call install,$(VENV),)

$(VENV)/.installed-dev: $(SOURCES) | probe
	$(call install,$(VENV),[dev])
	touch $(VENV)/.installed

demo: $(VENV)/.installed
	$(VENV)/bin/unislab compare $(TRACE) --policies unified,slub

test: $(VENV)/.installed-dev
	$(VPY) -m pytest $(PYTEST_ARGS)
	UNISLAB_RSEQ=0 $(VPY) -m pytest -m 'not slow and not once' $(PYTEST_ARGS)

test-all: $(VENV)/.installed-dev
	UNISLAB_RSEQ=1 $(VPY) -m pytest -m '' $(PYTEST_ARGS)
	UNISLAB_RSEQ=0 $(VPY) -m pytest -m '' $(PYTEST_ARGS)
	$(MAKE) sanitize

bench: $(VENV)/.installed-dev
	mkdir -p build
	$(VPY) bench/run.py > build/bench.json

lint: $(VENV)/.installed-dev
	$(VPY) -m ruff check .
	$(VPY) -m ruff format --check .
	$(VPY) -m mypy --python-executable $(VPY)
	$(VPY) -m mypy.stubtest unislab._native unislab._model --concise $(wildcard tests/stubtest-allow.txt:%=--allowlist %)
	$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES)
	UNISLAB_WERROR=1 $(VPY) setup.py -q build_ext --build-temp build/werror --build-lib build/werror/lib
	$(MAKE) -s -C tests/c syntax

# TSan knows neither rseq nor the model's coroutines: it runs the C programs that use the fallback.
# ASan and UBSan run everything, on a build with internal checks, in a virtual environment of its own;
# libstdc++ is preloaded for them to know the exceptions that matplotlib throws.
sanitize: sanitize-address sanitize-thread

sanitize-address: export UNISLAB_SANITIZE = address,undefined
sanitize-address: export UNISLAB_DEBUG = 1
sanitize-address: build/sanitize/.installed
	LD_PRELOAD="$$($${CC:-gcc} -print-file-name=libasan.so) $$($${CC:-gcc} -print-file-name=libstdc++.so)" PYTHONMALLOC=malloc \
	    ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1 \
	    UBSAN_OPTIONS=print_stacktrace=1 \
	    build/sanitize/bin/python -m pytest -s $(PYTEST_ARGS)

sanitize-thread: $(VENV)/.installed-dev
	UNISLAB_SANITIZE=thread TSAN_OPTIONS=halt_on_error=1:suppressions=$(CURDIR)/tests/c/tsan.supp \
	    $(VPY) -m pytest tests/test_c_units.py $(PYTEST_ARGS)

build/sanitize/.installed: $(SOURCES) | probe
	$(call install,build/sanitize,[test])

inplace: probe
	@mkdir -p build
	flock build/.lock $(PYTHON) setup.py -q build_ext --inplace --build-temp build/inplace --build-lib build/inplace/lib

clean:
	rm -rf build dist $(VENV) python/unislab.egg-info python/unislab/*.so
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +
