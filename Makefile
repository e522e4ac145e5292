# Each target creates the virtual environment it needs, from locked requirements, on its first run;
# later runs reuse it.

PYTHON ?= python3
LOCK_TOOL := uv==0.12.24

BIN := .venv/bin
READY := .venv/.ready
BENCHMARK_READY := .venv-benchmark/.ready
DEMO_ENV := $(if $(wildcard $(READY)),.venv,.venv-demo)
INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-fast test-long test-docs test-audit test-engines test-clients test-torch test-prereleases lint docs release-check dist lock benchmark reproduce clean

help:
	@echo "make demo       run the three-owner demo on digits; writes an HTML report"
	@echo "make test       run the tests and the examples in the documentation; ARGS are passed to pytest"
	@echo "make test-fast  run those that take least, in less than a minute on two cores"
	@echo "make test-long  run those that take several seconds each: kills, interrupts, fuzzing, real data"
	@echo "make test-docs  build the documentation, and run the commands on its pages and the example programs"
	@echo "make test-audit audit what private releases show, and see that audits find weakened noise"
	@echo "make test-engines  run the tests with real Flower deployments, Dask clusters and a browser"
	@echo "make test-clients  run the tests with Spark, plink2, scanpy, onnxruntime, river and R; installs them"
	@echo "make test-torch run the tests of rows in torch tensors; installs torch, which is large"
	@echo "make lint       check style, types and the direction of imports"
	@echo "make docs       build the documentation site, build/docs/index.html"
	@echo "make release-check  build the wheel, install it with every extra in clean environments, use it"
	@echo "make test-prereleases  run the fast tests with pre-releases of numpy, scipy and scikit-learn"
	@echo "make dist       build the sdist and the wheel twice, and compare them byte by byte"
	@echo "make lock       regenerate the files of requirements/ with hashes; UPGRADE=1 updates every pin"
	@echo "make benchmark  run the benchmarks, in an environment of their own; ARGS are passed on, as in ARGS=--compare"
	@echo "make reproduce  compute the paper's figures and tables again; ARGS are passed on, as in ARGS=--quick"
	@echo "make clean      remove all that these targets made"

demo: $(DEMO_ENV)/.locked
	PYTHONPATH=src $(DEMO_ENV)/bin/python examples/demo.py
	@echo "Open in a browser: $(CURDIR)/build/demo/index.html"

PYTEST := $(BIN)/pytest --numprocesses auto
HERE := not long and not engine and not client and not docs and not audit
FAST := $(HERE) and not slow

test: $(READY)
	$(PYTEST) --dist worksteal -m "$(HERE)" $(ARGS)

test-fast: $(READY)
	$(PYTEST) --dist worksteal -m "$(FAST)" $(ARGS)

test-long: $(READY)
	$(PYTEST) --dist worksteal -m "long and not engine and not client and not docs and not audit" $(ARGS)

test-docs: $(READY)
	$(PYTEST) --dist worksteal -m "docs and not engine" $(ARGS)

test-audit: $(READY)
	$(PYTEST) --dist worksteal -m audit $(ARGS)

test-engines: $(READY)
	@scripts/install-program chromium "tests of reports in a browser" chromium chromium-browser google-chrome google-chrome-stable
	$(PYTEST) --dist loadfile -m engine $(ARGS)

# What users have beside fedpca: large packages, and Debian's plink2 and R.
test-clients: $(READY)
	$(BIN)/python $(INSTALL) --require-hashes --requirement requirements/clients.txt \
	    --constraint requirements/clients.txt
	@scripts/install-program plink2 "tests of its scores" plink2
	@scripts/install-program openjdk-17-jre-headless "tests with Spark" java
	@Rscript -e "library(jsonlite)" >/dev/null 2>&1 || scripts/install-program r-cran-jsonlite "tests of the reader in R"
	$(PYTEST) --dist loadfile -m client $(ARGS)

# Rows in torch tensors, on a GPU if there is one. What needs no torch has run in `make test`.
test-torch: $(READY)
	$(BIN)/python $(INSTALL) --requirement requirements/torch.txt
	$(BIN)/pytest -k "not array_api_strict" tests/trackers/test_devices.py tests/trackers/test_tensor_cores.py \
	    src/fedpca/parallel.py docs/how-to/embeddings-on-a-gpu.md $(ARGS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q -d build/doctrees docs build/docs
	@echo "Open in a browser: $(CURDIR)/build/docs/index.html"

benchmark: $(BENCHMARK_READY)
	.venv-benchmark/bin/python -m benchmarks $(ARGS)

reproduce: $(READY)
	$(BIN)/python -m reproduction $(ARGS)

# Needs the network, and some minutes.
release-check: $(READY)
	FEDPCA_REAL_INSTALL=1 $(BIN)/pytest tests/docs/test_packaging.py

# The fast tests with the newest numpy, scipy and scikit-learn, pre-releases included.
test-prereleases: .venv-prereleases/.locked
	.venv-prereleases/bin/python $(INSTALL) --pre --upgrade numpy scipy scikit-learn
	.venv-prereleases/bin/python $(INSTALL) --no-deps --no-build-isolation --editable .
	.venv-prereleases/bin/pytest --numprocesses auto --dist worksteal -m "$(FAST)" $(ARGS)

# Built twice, in folders of other names and at other times: what is published can be built again.
dist: $(READY)
	@git diff --quiet HEAD || { echo "commit first: what is built a second time is the last commit"; exit 1; }
	rm -rf dist build/again
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation
	git clone --quiet . build/again/fedpca
	cd build/again/fedpca && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(abspath $(BIN))/python -m build --no-isolation
	cd dist && for file in *; do cmp "$$file" "../build/again/fedpca/dist/$$file" || exit 1; done
	@cd dist && sha256sum *

# Pins and hashes that suit every supported Python and platform. The demo has the pins of dev.txt.
COMPILE := .venv-lock/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 \
    --generate-hashes --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

lock:
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python $(INSTALL) $(LOCK_TOOL)
	$(COMPILE) --group dev --output-file requirements/dev.txt pyproject.toml
	$(COMPILE) --group demo --constraint requirements/dev.txt --output-file requirements/demo.txt pyproject.toml
	$(COMPILE) --group clients --constraint requirements/dev.txt --output-file requirements/clients.txt pyproject.toml

clean:
	rm -rf .venv .venv-benchmark .venv-demo .venv-lock .venv-prereleases build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# As constraints the pins hold for `name[extra]`, too: pip takes its newest release otherwise, and misses the hash.
define CREATE_ENV
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedpca needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another, as in: make test PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python $(INSTALL) $(1) --require-hashes --requirement $< --constraint $<
	@touch $@
endef

%/.locked: requirements/dev.txt
	$(call CREATE_ENV)

# To compile all of it takes longer than the demo.
.venv-demo/.locked: requirements/demo.txt
	$(call CREATE_ENV,--no-compile)

$(READY): .venv/.locked pyproject.toml
	.venv/bin/python $(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# What the tests run on, and on top of it the libraries that fedpca is compared with.
$(BENCHMARK_READY): .venv-benchmark/.locked requirements/benchmarks.txt pyproject.toml
	.venv-benchmark/bin/python $(INSTALL) --requirement requirements/benchmarks.txt
	.venv-benchmark/bin/python $(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@
