"""A portable run yields the same bits on every x86-64 processor, and on every Python.

Other processors are imitated: libraries use the kernels of older ones, or an emulator pretends to
be another processor altogether. All weights are compared with committed hashes, which every machine
that runs these tests must reproduce.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from coevo_gym.core.arithmetic import PORTABLE
from coevo_gym.core.registry import METHODS
from coevo_gym.store.folder import read_json
from tests import needs
from tests.processes import run
from tests.runs.conftest import ROOT, Child

WEIGHTS: dict[str, str] = read_json(Path(__file__).with_name("portable_weights.json"))
"""The hash of each method's weights after :data:`SHORT`.

A change of learning, drawing or of the shop changes them: write the new ones with
``python -m tests.runs.test_portable`` and say why in the commit message.
"""
SHORT = (
    "warmup.n_tasks=12",
    "evaluation.n_tasks=12",
    "curriculum.initial_size=12",
    "curriculum.growth.every_groups=8",
    "curriculum.growth.max_contexts=4",
    "curriculum.growth.drafts=8",
    "curriculum.detector.n_min=8",
    "loop.groups_per_step=4",
    "loop.evaluate_every_steps=0",
    "loop.max_steps=6",
)
"""The quickstart in seconds: a warm-up, six updates and rounds between them."""


def imitations() -> dict[str, dict[str, str]]:
    """Variables that have libraries use the kernels of other processors."""
    from numpy._core._multiarray_umath import (
        __cpu_dispatch__,
        __cpu_features__,
    )

    dispatched = [name for name in __cpu_dispatch__ if __cpu_features__[name]]
    without = ",".join(f"-{name}" for name in ("AVX", "AVX2", "AVX512F", "AVX512VL", "FMA", "FMA4"))
    return {
        "mkl": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
        "onednn": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
        "openblas": {"OPENBLAS_CORETYPE": "Prescott"},
        "numpy": {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched)} if dispatched else {},
        "glibc": {"GLIBC_TUNABLES": f"glibc.cpu.hwcaps={without}"},
    }


def elsewhere(**variables: str) -> dict[str, str]:
    """The environment of a new process that has to choose its arithmetic itself."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in PORTABLE and not name.startswith("COEVO_CFG_")
    }
    return {**clean, **variables}


def trained(
    folder: Path, arms: list[str], variables: Mapping[str, str], *command: str
) -> dict[str, str]:
    """Train the arms in a new process; the hash of each arm's weights."""
    sets = [f"--set={item}" for item in (*SHORT, f"arms={','.join(arms)}")]
    train = ["-m", "coevo_gym.cli", "train", "quickstart", "--name=short", *sets]
    environment = elsewhere(**variables)
    done = (
        subprocess.run(
            [*command, *train],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if command
        else run(train, cwd=folder, env=environment)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = read_json(folder / "runs" / "short" / "summary.json")
    return {arm: summary["arms"][arm]["weights"] for arm in arms}


def every_imitation() -> dict[str, str]:
    """All of them at once."""
    return {name: value for one in imitations().values() for name, value in one.items()}


@pytest.mark.parametrize("variables", [{}, every_imitation()], ids=["as-it-is", "older-kernels"])
def test_weights_match_the_committed_hashes(tmp_path: Path, variables: dict[str, str]) -> None:
    arms = ["static", "coevolve"]
    assert trained(tmp_path, arms, variables) == {arm: WEIGHTS[arm] for arm in arms}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["as-it-is", *imitations()])
def test_weights_of_every_method_are_the_same_with_kernels_of_other_processors(
    tmp_path: Path, name: str
) -> None:
    variables = imitations().get(name, {})
    assert trained(tmp_path, list(METHODS.built_in), variables) == WEIGHTS


@pytest.mark.slow
@pytest.mark.parametrize("model", ["Nehalem", "Haswell", "EPYC"])
def test_weights_are_the_same_on_an_emulated_processor(tmp_path: Path, model: str) -> None:
    """The emulator's approximate reciprocals and roots differ from those of any real processor.

    So no step of a portable run depends on them; MKL's square roots, for example, do.
    """
    if why := needs.emulator():
        pytest.skip(why)
    arms = ["static", "coevolve"]
    python = str(Path(sys.executable).resolve())
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])}
    weights = trained(tmp_path, arms, variables, str(needs.EMULATOR), "-cpu", model, python)
    assert weights == {arm: WEIGHTS[arm] for arm in arms}


def test_a_killed_run_resumed_on_another_processor_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COEVO_CFG__ARITHMETIC", raising=False)
    sets = [f"--set={item}" for item in (*SHORT, "arms=coevolve", "store.checkpoint_every_steps=2")]
    killed = Child(tmp_path, "train", "quickstart", "--name=short", *sets)
    killed.wait_for("train coevolve: 3/6")
    killed.process.kill()
    killed.end()
    resumed = run(
        ["-m", "coevo_gym.cli", "resume", "short"], cwd=tmp_path, env=elsewhere(**every_imitation())
    )
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    summary = read_json(tmp_path / "runs" / "short" / "summary.json")
    assert summary["arms"]["coevolve"]["weights"] == WEIGHTS["coevolve"]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as at:
        weights = trained(Path(at), list(METHODS.built_in), {})
    Path(__file__).with_name("portable_weights.json").write_text(
        json.dumps(weights, indent=2) + "\n"
    )
