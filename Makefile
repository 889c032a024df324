# Every target works on a fresh checkout with nothing but Python 3.11+ and make: it creates .venv and installs
# the pinned versions there, Java included. Nothing is reinstalled until pyproject.toml or constraints.txt change.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format fuzz soak warm wheel check-wheel clean FORCE
.PHONY: bench bench-full bench-report bench-peers bench-zset bench-trace bench-circuit bench-sql bench-spark bench-state

VENV     := .venv
PY       := $(VENV)/bin/python
STAMP    := $(VENV)/.installed

# The Python to create .venv with; by default the first of these that is new enough.
PYTHON  ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
             $$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && exit; done; echo python3)
# Test processes, and options for pytest: make test JOBS=4 PYTEST_ARGS="-x -v"
JOBS        ?= 2
PYTEST_ARGS ?=
SECONDS     ?= 600
SEED        ?= 1

NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
PYTEST = $(PY) -m pytest --benchmark-disable $(PYTEST_ARGS)

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP)  ## Run the main job: streams into a shop, seven views kept in one process, checked against Spark
	$(VENV)/bin/dbspark demo

# Each process has a Spark session of its own, if it needs one: tests/schedule.py says which process runs what.
test: $(STAMP) warm  ## Run all tests, in JOBS processes; ends with the slowest
	unset DBSP_BACKEND; $(PYTEST) -n $(JOBS) --dist loadfile --slowest 10 tests

lint: $(STAMP)  ## Check style, formatting and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict src

format: $(STAMP)  ## Format the code and sort imports
	$(PY) -m ruff check --select I --fix .
	$(PY) -m ruff format .

bench: $(STAMP) warm  ## Run all benchmarks at small sizes, beside the peers that are installed
	$(PY) -m benchmarks quick

bench-full: $(STAMP) warm  ## Run all benchmarks at full size, and write docs/benchmarks.md (hours)
	$(PY) -m benchmarks full

bench-report: $(STAMP)  ## Write docs/benchmarks.md from the results that are there
	$(PY) -m benchmarks.report

bench-peers: $(STAMP)  ## Install the systems that we are compared with, each into .peers/<name>
	$(PY) -m benchmarks.peers.install

bench-zset: $(STAMP) warm  ## Run the benchmarks of Z-sets
	$(PY) -m benchmarks.zset

bench-trace: $(STAMP) warm  ## Run the benchmarks of traces (ten minutes of inserts among them)
	$(PY) -m benchmarks.trace

bench-circuit: $(STAMP) warm  ## Run the benchmarks of circuits
	$(PY) -m benchmarks.circuit

bench-sql: $(STAMP) warm  ## Run the benchmarks of SQL views: TPC-H against Spark, compiling, W1 through a pipeline
	$(PY) -m benchmarks.sql

bench-spark: $(STAMP) warm  ## Run the benchmarks of ticks on shards: beside a bare Spark job, over more rows
	$(PY) -m benchmarks.spark

bench-state: $(STAMP) warm  ## Run the benchmarks of state: growth, memory, cold start
	$(PY) -m benchmarks.state

fuzz: $(STAMP) warm  ## Compare random queries with Spark for as long as wished: make fuzz SECONDS=600 SEED=1
	$(PY) -m tests.sql.fuzz --seconds $(SECONDS) --seed $(SEED)

soak: $(STAMP) warm  ## Kill processes and fail disks for as long as wished: make soak SECONDS=600 SEED=1
	$(PY) -m tests.pipeline.soak --seconds $(SECONDS) --seed $(SEED)

# Compiling the kernels once beforehand keeps timings free of it.
warm: $(STAMP)  ## Compile all kernels, on all cores
	@$(PY) -m dbspark.warm

wheel: $(STAMP)  ## Build a wheel for this platform that carries compiled kernels
	@rm -rf build/lib* build/bdist*
	@$(PY) -m dbspark.kernels.package build/kernels
	DBSPARK_COMPILED_KERNELS=$(CURDIR)/build/kernels $(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .
	@ls -l dist/*.whl

check-wheel: wheel  ## Install the wheel into an empty environment and see that nothing is compiled there
	$(PY) -m tests.kernels.check_wheel dist

clean:  ## Remove .venv and everything generated
	rm -rf $(VENV) .peers build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks spark-warehouse
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	find . -name __pycache__ -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation is taken up again. A .venv that has lost its Python
# (an upgraded or removed one) or has no pip is made anew.
ALIVE := $(shell $(PY) -c '' 2>/dev/null && echo yes)
FORCE:

$(STAMP): pyproject.toml constraints.txt $(if $(ALIVE),,FORCE)
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { \
	  echo "dbspark needs Python 3.11 or newer, and '$(PYTHON)' is not: $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PY) -c '$(NEW_ENOUGH)' 2>/dev/null && $(PY) -m pip --version >/dev/null 2>&1 \
	  || $(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local,dev]'
	@touch $@
