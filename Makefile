# make demo     installs, fetches the embedded model, trains it by self-play, ranks it against its initial self
# make test     installs, lint, types, tests
# make soak     tests that take long (kills at random moments)
# make venv     installs only, into .venv
# make clean    removes what the above made here (not the fetched model in the user's cache)
#
# Needs Python 3.11+, gcc, make and a Python package registry. PYTHON=python3.12 picks another interpreter,
# STEPS=2 makes the demo short.

PYTHON ?= python3
STEPS ?= 25
BIN := .venv/bin
STAMP := .venv/.installed
BUILD_LOCK := build/lock

.PHONY: venv demo test lint soak lock clean

venv: $(STAMP)

# The stamp is written last: an interrupted installation is taken up again.
$(STAMP): requirements/cpu.txt requirements/install.sh pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    f"llm_arena needs Python 3.11 or newer, and $(PYTHON) is {sys.version.split()[0]}. Try: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@sh requirements/install.sh $(BIN)/python
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	@$(BIN)/llm-arena train naming-demo --steps $(STEPS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest

soak: $(STAMP)
	$(BIN)/pytest -m soak

# Resolves pyproject.toml afresh and writes the lock; the comment lines at its head stay.
lock:
	rm -rf $(BUILD_LOCK)
	$(PYTHON) -m venv $(BUILD_LOCK)
	sh -c 'grep "^torch==" requirements/cpu.txt > $(BUILD_LOCK)/cpu.txt && cp requirements/install.sh $(BUILD_LOCK)/'
	sh $(BUILD_LOCK)/install.sh $(BUILD_LOCK)/bin/python
	$(BUILD_LOCK)/bin/python -m pip install -e '.[train,dev]'
	$(BUILD_LOCK)/bin/python -m pip freeze --all --exclude-editable > $(BUILD_LOCK)/freeze.txt
	grep '^#' requirements/cpu.txt > $(BUILD_LOCK)/new.txt
	sed -e '/^pip==/d' -e 's/+cpu$$//' $(BUILD_LOCK)/freeze.txt >> $(BUILD_LOCK)/new.txt
	mv $(BUILD_LOCK)/new.txt requirements/cpu.txt

clean:
	rm -rf .venv runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
