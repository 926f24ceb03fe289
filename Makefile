# Two commands on a fresh machine: `make quickstart` and `make test`. Both build .venv in the checkout first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PINNED := --constraint .ci/constraints.txt --editable '.[all,dev,docs]'  # by uv, in a tenth of the time; by pip where uv finds no registry

.PHONY: quickstart test bench window budgets test-slow docs lint types wheel clean

quickstart: $(READY)  ## the main job on the embedded models: bias and utility before and after
	$(BIN)/vldebias quickstart

test: $(READY)  ## the default test run: offline, on the CPU; eval/results/house.json has its seconds
	$(BIN)/python -m pytest -n auto --dist loadfile --junitxml .pytest_cache/tests.xml

budgets: $(READY)  ## lines, names and, after `make test`, seconds against .ci/budgets.yaml
	$(BIN)/python -m tests.robust.house --check --junit .pytest_cache/tests.xml

test-slow: $(READY)  ## the longer tests
	$(BIN)/python -m pytest -m slow -n auto --dist loadfile

bench: $(READY)  ## what users wait for, against what they would use instead: docs/explanation/speed.md, in half an hour
	$(BIN)/python -m eval.benchmarks.speed --json eval/results/bench_speed.json
	$(BIN)/python -m eval.benchmarks.whole --json eval/results/bench_whole.json
	$(BIN)/python -m eval.readme

window: $(READY)  ## what a newcomer meets, made anew with the models and results that are here: outputs, pictures, first hours
	$(BIN)/python -m eval.notebooks
	VLDEBIAS_REWRITE=1 $(BIN)/python -m pytest -q -m slow tests/experiments/test_readme.py -k beneath
	$(BIN)/python -m tests.robust.first_hours --json eval/results/first_hours.json
	$(BIN)/python -m tests.robust.cold_start --json eval/results/cold_start.json
	$(BIN)/python -m eval.social
	$(BIN)/python -m eval.readme
	$(BIN)/python -m eval.evidence

docs: $(READY)  ## the documentation, in site/
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .mkdocs.yml

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy
	$(BIN)/mypy apps --explicit-package-bases

wheel: $(READY)
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

$(READY): pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(PINNED) || $(BIN)/pip install --quiet $(PINNED)
	touch $@

clean:
	rm -rf .venv dist build site .pytest_cache .ruff_cache .mypy_cache
