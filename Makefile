# Commands. Each makes .venv by itself; needed beforehand: Python 3.11 or later with venv, and make.
#
# Use it
#   make run       broker and name server in the foreground, data in ./var/store
#   make demo      336,776 real flights through a broker that is killed in between
#   make pipeline-demo  the same flights through Spark: an archive job that is killed, figures, a plot
#   make places-demo  234,908 real places archived as columns, counted by polars, one of them erased
#
# Test a change
#   make test      the test suite: about three minutes, four files at a time, in a random order
#   make check     style, types, the Dockerfiles, layers and other rules of the architecture
#   make test-slow  the tests above half a CPU second, two seconds of waiting, or 40 MiB
#   make test-pure  without the compiled kernel: the tests of what has a twin in it
#   make test-spark  the tests that start a JVM: the Spark connector and its jobs
#
# Before a release
#   make nightly   all of the above and below in one go, each with a limit and a log, then one table
#   make test-busy  the tests that a busy machine could break, beside busy processes
#   make faults    kills, crashes and disk errors at their full amounts; power cuts when root
#   make failover  three replicas are broken for half an hour, and nothing that was acknowledged may
#                  be missing; needs root, or ARGS=--loopback
#   make interop   RocketMQ's own clients and Prometheus at a live broker; needs Maven, npm, Go, promtool
#   make image-test  the container image is built and run; needs root, podman and debootstrap
#   make mutants   192 lines of the product are written wrong, one at a time: which does no test see?
#   make spark-oldest  the tests of the Spark connector on the oldest PySpark it works with
#   make wheel     source distribution and wheel into ./dist, each installed elsewhere and tried
#   make release   what is published: the same for each Python that is here, with a bill of materials,
#                  the changes and checksums; ARGS=--rehearse before all is ready
#   make docs      the documentation with the API pages as one site, in ./var/docs
#
# Measure
#   make bench     how fast, beside echo servers on the same machine; also with several processes, and with a slave
#   make bench-store  how fast the store alone is: growth, recovery, reads, the key index
#   make bench-broker  filters, many topics, groups and queues, a million timers, connections
#   make bench-peers  the same load on RocketMQ's own broker, in turns; needs Java and Maven;
#                  with ARGS='--peers nats redis kafka' on these
#   make bench-failover  what replicas that elect their master cost a send, with 0, 1 and 2 followers
#   make bench-spark  source, sink, commit-log reader and triggers, beside the same without Spark
#
# Write files anew
#   make docs-reference  the generated pages of docs/reference
#   make schema    protocol/v5/schema.proto, compiled, after a change in it
#   make boards    Grafana's boards, after a change in deploy/grafana
#   make clean     removes the environments and caches
#
# ARGS goes to the command: make run ARGS='--set flushDiskType=SYNC_FLUSH', make test ARGS='-k frame'.
# The first lines of a test run name the seed of its order: make test ARGS='--randomly-seed=7' has it again.

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
# What marks a test that other machines, root or a JVM are needed for, or hours.
ELSEWHERE := not spark and not interop and not image and not fault and not fault_root and not soak
# Tests start hundreds of processes: without bytecode each would compile the product again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run help test test-slow test-pure test-spark test-busy nightly faults failover mutants check demo pipeline-demo places-demo bench bench-store bench-broker bench-peers bench-failover bench-spark spark-oldest interop image-test wheel release docs docs-reference schema boards clean

run: $(VENV)/.core
	exec $(BIN)/skylarkmq serve --dev $(ARGS)

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# Tests wait for half of their time, so there are more files at a time than processors.
test: $(VENV)/.dev
	$(BIN)/pytest -n 4 --dist loadfile --ignore tests/architecture $(ARGS)

test-slow: $(VENV)/.dev
	$(BIN)/pytest -n 6 --dist loadfile -m 'slow and $(ELSEWHERE)' $(ARGS)

# Whose code takes another road where the kernel is. TWINS=tests for the whole suite.
TWINS ?= tests/kernel tests/store tests/protocol tests/remoting tests/property tests/broker/processor \
	tests/spark/log tests/spark/reading tests/spark/test_batches.py tests/spark/test_spark_columns.py
test-pure: $(VENV)/.dev
	SKYLARKMQ_PURE=1 $(BIN)/pytest -n 3 --dist loadfile $(TWINS) $(ARGS)

test-spark: $(VENV)/.dev
	$(BIN)/pytest -n 3 --dist loadfile -m 'spark and not interop and not soak' $(ARGS)

test-busy: $(VENV)/.dev
	$(BIN)/pytest -m 'timing and $(ELSEWHERE)' --busy 4 $(ARGS)

nightly: $(VENV)/.dev
	$(BIN)/python -m tests.nightly $(ARGS)

faults: $(VENV)/.dev
	$(BIN)/pytest -rs -m 'fault or fault_root' $(ARGS)

failover: $(VENV)/.dev
	$(BIN)/python -m tests.failover $(ARGS)

mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants $(ARGS)

# With -k all tests are collected, which compiles them: each process of `make test` would do it itself.
check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@if [ -x $(BIN)/hadolint ]; then set -x; $(BIN)/hadolint Dockerfile deploy/spark/Dockerfile; \
	else echo 'Dockerfiles not checked: PyPI has no hadolint for this machine'; fi
	@echo '$(BIN)/pyright; meanwhile $(BIN)/mypy and $(BIN)/pytest -q -k architecture'
	@($(BIN)/mypy && $(BIN)/pytest -q -k architecture) & rest=$$!; \
	told=$$($(BIN)/pyright); code=$$?; wait $$rest || code=$$?; echo "$$told"; exit $$code

demo: $(VENV)/.demo
	$(BIN)/python -m examples.flights $(ARGS)

pipeline-demo: $(VENV)/.demo $(VENV)/.spark
	$(BIN)/python -m examples.pipeline $(ARGS)

places-demo: $(VENV)/.demo $(VENV)/.spark
	$(BIN)/python -m examples.places $(ARGS)

bench: $(VENV)/.core
	$(BIN)/python -m tests.bench $(ARGS)
	$(BIN)/python -m tests.bench.scaling
	$(BIN)/python -m tests.bench.replication
	$(BIN)/python -m tests.bench.inside
	$(BIN)/python -m tests.bench.testkit
	$(BIN)/python -m tests.bench.embedded
	$(BIN)/python -m tests.bench.client_send
	$(BIN)/python -m tests.bench.client_consume

bench-store: $(VENV)/.core
	$(BIN)/python -m tests.bench.store $(ARGS)

bench-broker: $(VENV)/.core
	$(BIN)/python -m tests.bench.semantics $(ARGS)

bench-peers: $(VENV)/.core
	$(BIN)/python -m tests.bench.rocketmq $(ARGS)
	$(BIN)/python -m tests.bench.v5

bench-failover: $(VENV)/.dev
	$(BIN)/python -m tests.bench.failover $(ARGS)

bench-spark: $(VENV)/.core $(VENV)/.spark
	$(BIN)/python -m tests.bench.spark $(ARGS)
	$(BIN)/python -m tests.bench.spark_columns

interop: $(VENV)/.dev
	$(BIN)/pytest -rs -m interop tests/interop tests/behaviour tests/monitoring tests/deploy $(ARGS)

image-test: $(VENV)/.dev
	$(BIN)/pytest -rs -m image tests/deploy $(ARGS)

spark-oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/pytest -m 'not interop and not soak' tests/spark $(ARGS)

wheel: $(VENV)/.wheel
	$(BIN)/python -m tests.release --wheel

release: $(VENV)/.wheel
	$(BIN)/python -m tests.release $(ARGS)

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs var/docs $(ARGS)

docs-reference: $(VENV)/.core
	$(BIN)/python docs/generate.py

schema: $(VENV)/.dev
	$(BIN)/python -m tests.protocol.v5.schema_code

boards: $(VENV)/.dev
	$(BIN)/python -m deploy.grafana.write

clean:
	rm -rf $(VENV) $(OLDEST) build dist *.egg-info kernel/compiled.c kernel/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis

INSTALLS := Installing into $(VENV), and compiling where a C compiler is: once, up to some minutes ...

# A stamp for each set of packages; newer settings, or a newer kernel, install again.
$(VENV)/.core: pyproject.toml setup.py $(wildcard kernel/*.p[xy][xi]) | $(BIN)/python
	@echo '$(INSTALLS)'
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.%: pyproject.toml setup.py $(wildcard kernel/*.p[xy][xi]) | $(BIN)/python
	@echo '$(INSTALLS)'
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --editable '.[$*]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # on all processors, which pip does not
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(OLDEST)/.ready: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]' 'pyspark==4.2.*'
	@touch $@
