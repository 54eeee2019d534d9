"""Each command of `bench/` in the documentation runs to its end, at its smallest size."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md")),
]
TINY_RUN = (
    "--set loop.max_env_steps=300 --set curriculum.initial_size=4 --set warmup.n_tasks=4 "
    "--set evaluation.n_tasks=4"
)
SMALLEST = {
    "alfworld_learning": f"--seeds 1 --jobs 1 {TINY_RUN}",
    "alfworld_speed": "",
    "alfworld_spread": "--budget smoke --seeds 1 --repeats 2 --settings anneal",
    "appworld_found": "--seeds 1-1 --env-steps 200 --tasks 12",
    "appworld_speed": "--episodes 20",
    "attribution": "--tasks 3",
    "bfcl": "",
    "bfcl_choices": "",
    "bfcl_suspects": "",
    "curriculum_cost": "--tasks 3000",
    "evolve_vs_static": f"--seeds 2 {TINY_RUN}",
    "experiences": "--n 2000 --queries 10",
    "failure_modes": "--tasks 4 --each 2",
    "export": "--episodes 400 --formats jsonl messages",
    "feedback_overlap": "--steps 3 --slowness 0.05",
    "foresight": "",
    "forgetting": "",
    "full_collections": "--env-steps 300",
    "grpo_vs_trl": "--updates 2 --groups 1 --group-size 2 --rows 1 --longest 64",
    "honest_drafts": "--n 2",
    "lm_sampling": "--turns 2 --layers 1 --conversations 2 --repeats 1",
    "lm_step": "--shape tiny --repeats 1",
    "many_envs": "--envs 8 --modes lock_step --stock 0",
    "navigating": "--steps 2 --seeds 1 --last 1",
    "panels": "",
    "resume": "--steps 300 --kills 1",
    "rollout": "--live 4 --seconds 0.5",
    "rows": "--rows 500",
    "seal_labels": "--quick",
    "serve": "--pairs 10 --clients 1 --seconds 1",
    "session_faults": "--episodes 24 --workers 2 --kill-every 2",
    "simulate": "--worlds plain --rows static random_append --seeds 1-2 --jobs 1",
    "soak": "--amount 1000",
    "viewer": "--episodes 400",
    "webshop": "",
    "webshop_difficulty": "--goals 20",
    "workers": "--envs 2 --rounds 2 --steps 3",
}
"""By script, options that are added to a command; the last of two equal options counts."""
MISSES = {
    *("curriculum_cost", "experiences", "feedback_overlap", "grpo_vs_trl", "lm_sampling"),
    *("lm_step", "rollout"),
    "failure_modes",  # so few tasks have no example of some modes
    "forgetting",  # reads finished cells, and there are none
    "soak",
}
"""Scripts that may end with 1, because a bound is meant for the documented size and a quiet
machine."""
ELSEWHERE = {
    **dict.fromkeys(("gpu_grpo", "gpu_multiturn"), "tests/test_bench_gpu.py"),
    "lm_replay": "tests/test_bench_replay.py",
}
"""Scripts that other tests run."""


def documented() -> Iterator[str]:
    """The commands on the pages, without what only stands for an argument."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for match in re.finditer(r"(?:python )?bench/\w+\.py[^\n`#|]*", text):
            command = match[0].removeprefix("python ").strip()
            yield re.sub(r"\s+--\w+ …$", "", command)


COMMANDS = sorted({*documented()})


def test_each_documented_script_has_options_for_its_smallest_run() -> None:
    scripts = {Path(command.split()[0]).stem for command in COMMANDS}
    assert len(COMMANDS) > 35
    assert scripts - ELSEWHERE.keys() == SMALLEST.keys()
    assert all((ROOT / "bench" / f"{script}.py").is_file() for script in scripts)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "command", [one for one in COMMANDS if Path(one.split()[0]).stem not in ELSEWHERE]
)
def test_a_documented_command_runs_to_completion(
    command: str, tmp_path: Path, engine: Callable[[str], None]
) -> None:
    file, *arguments = shlex.split(command)
    script = Path(file).stem
    for benchmark in ("bfcl", "alfworld", "appworld"):
        if benchmark in command:
            engine(benchmark)
    if script == "grpo_vs_trl":
        pytest.importorskip("trl")
    done = subprocess.run(
        [sys.executable, str(ROOT / file), *arguments, *shlex.split(SMALLEST[script])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if "Run `coevo model fetch" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode in ((0, 1) if script in MISSES else (0,)), done.stderr[-3000:]
    assert not re.search("Traceback|did different work", done.stderr), done.stderr[-3000:]
    assert done.stdout.strip() or script in MISSES
