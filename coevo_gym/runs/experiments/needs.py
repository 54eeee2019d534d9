"""The requirements of an experiment, and checks that this machine meets them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import coevo_gym
from coevo_gym.agents.lm.stored_models import resolve_model
from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.core.errors import CoevoError, ConfigError
from coevo_gym.core.waiting import forbid_setup
from coevo_gym.provision import Installation
from coevo_gym.runs.config import ArmConfig, RunConfig, arm_configs
from coevo_gym.runs.config.derived import LANGUAGE_MODELS
from coevo_gym.runs.experiments.cells import Cell, Chosen, resolve_cell
from coevo_gym.runs.experiments.definition import Experiment, Size
from coevo_gym.runs.planning.device import is_for_gpu

OFFICIAL = "official"
"""Word in an installation's ``data`` that stands for official data instead of built-in data."""


class Need(NamedTuple):
    """A requirement for running an experiment, such as a benchmark or a GPU.

    Attributes:
        what: a short description of the requirement.
        missing: the reason why it is not met, or ""; always "" for an endpoint, which is not
            checked.
    """

    what: str
    missing: str = ""


def needs_of(experiment: Experiment, benchmark: str, budget: Size) -> list[Need]:
    """Return the requirements for running an experiment, without duplicates.

    Raises:
        ConfigError: if a row's settings are invalid, or the budget does not exist.
    """
    needs = dict[Need, None]()
    for row in experiment.select_rows():
        if not row.shows:
            config = resolve_cell(
                experiment, row, experiment.seeds[0], benchmark=benchmark, budget=budget
            ).config
            needs |= dict.fromkeys(_run_needs(config))
    if experiment.official:
        needs[_benchmark_need(benchmark, official=True)] = None
    for other in {experiment.others.get(benchmark, "").partition("/")[0]} - {""}:
        needs[_benchmark_need(other)] = None
    return list(needs)


def omit_rows_lacking_language_model(chosen: Chosen) -> tuple[Chosen, list[Cell], str]:
    """Omit the rows that need a language model when the tiny policy is used.

    Returns:
        The rest of the table, its cells, and a sentence about what was left out, or "".

    Raises:
        ConfigError: if no row with runs is left.
    """
    cells, rows = chosen.cells(), chosen.rows
    tiny = {cell.row.name for cell in cells if cell.config.policy.kind == "tiny"}
    source_row_of = chosen.experiment.source_row_of
    left_out = [
        row for row in rows if row.needs_language_model and source_row_of(row, rows) in tiny
    ]
    if not left_out:
        return chosen, cells, ""
    why = (
        f"Left out: {', '.join(row.label or row.name for row in left_out)}. They need a language "
        "model, but the policy at this budget is the tiny one."
    )
    rows = tuple(row for row in rows if row not in left_out)
    if all(row.shows for row in rows):
        raise ConfigError(f"{why} Choose a different --budget or different --rows.")
    return replace(chosen, rows=rows), [cell for cell in cells if cell.row in rows], why


def _run_needs(config: RunConfig) -> Iterator[Need]:
    yield _benchmark_need(config.benchmark.name)
    kind, path = config.policy.kind, config.policy.model.path
    if kind in LANGUAGE_MODELS:
        yield from _model_needs(kind, path)
        if is_for_gpu(config.policy):
            yield _gpu_need()
    for arm in arm_configs(config).values():
        yield from _explorer_needs(config, arm)


def _explorer_needs(config: RunConfig, arm: ArmConfig) -> Iterator[Need]:
    for settings in (config, arm):
        model = settings.explorer.model
        if settings.explorer.kind != "model" or model.kind == "policy":
            continue
        if model.kind == "openai":
            yield Need(f"an endpoint with {model.endpoint.model or 'a model'}")
        else:
            yield from _model_needs(model.kind, model.model.path)
            if model.kind == "vllm":
                yield _gpu_need()


def _model_needs(kind: str, path: str) -> Iterator[Need]:
    yield Need(path, "" if _is_model_here(path) else "it is not on this machine")
    if kind in ("vllm", "vllm_server") and find_spec("vllm") is None:
        yield Need("vLLM", "it is not installed (pip install coevo_gym[vllm])")


def _gpu_need() -> Need:
    import torch

    return Need("a GPU", "" if torch.cuda.is_available() else "there is none")


def _is_model_here(path: str) -> bool:
    """Return True if a model is in a local folder or in the Hugging Face cache."""
    try:
        folder = Path(resolve_model(path))
    except CoevoError:
        return False
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    return folder.is_dir() or (cache / f"models--{path.replace('/', '--')}").is_dir()


def _benchmark_need(name: str, *, official: bool = False) -> Need:
    spec = next((spec for spec in benchmark_specs() if spec.name == name), None)
    if spec is not None and spec.setup:
        installation: Installation = import_module(spec.setup).installation()
        if official:
            lacks = "" if OFFICIAL in installation.data else f"{installation.data} are in use"
            return Need(f"the official data of {name}", lacks)
        return Need(name, "" if installation.ready else installation.engine)
    try:
        with forbid_setup():
            coevo_gym.tasks(name, "train")
    except CoevoError as error:
        return Need(name, str(error).partition(".")[0])
    return Need(name)
