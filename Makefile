# Everything runs from a fresh clone with Python, pip and make: the environment is made on first use.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow check site fuzz faults format clean

demo: .venv/installed
	$(BIN)/qll demo

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow

# Minutes of new damaged files for every reader, of random graphs and of forged certificates; for a
# scheduled run.
fuzz: .venv/installed
	QLL_FUZZ=$${QLL_FUZZ:-2000} $(BIN)/python -m pytest tests/test_fuzz_readers.py tests/test_fuzz_graphs.py
	QLL_FORGERIES=$${QLL_FORGERIES:-10000} $(BIN)/python -m pytest -s -m slow tests/test_audit_forgeries.py

faults: .venv/installed
	$(BIN)/python -m pytest tests/test_faults.py tests/test_faults_load.py

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) site
	$(MAKE) test

# The documentation as a site, in build/site; a link that leads nowhere is an error.
site: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .hypothesis
