"""The comparison with TRL: both sides get one batch, and it fails if they do not do the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

BENCH = Path(__file__).parents[2] / "bench"
SMALL = {"groups": 2, "group_size": 2, "longest": 60, "rows": 2, "epochs": 1, "updates": 2}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(BENCH)
    import grpo_sides
    import grpo_vs_trl

    return SimpleNamespace(sides=grpo_sides, main=grpo_vs_trl)


def job(bench: SimpleNamespace, folder: Path, **settings: Any) -> Any:
    fields = SMALL | {"device": "cpu", "equal": False, "threads": 1, "seed": 0} | settings
    return bench.sides.Job(folder=str(folder), **fields)


@pytest.fixture
def folder(bench: SimpleNamespace, tmp_path: Path) -> Path:
    bench.sides.save_model("tiny", str(tmp_path))
    return tmp_path


def test_both_sides_draw_the_same_batch_of_whole_groups(
    bench: SimpleNamespace, folder: Path
) -> None:
    rows = job(bench, folder, groups=8, longest=200).random_batch()
    assert rows == job(bench, folder, groups=8, longest=200).random_batch()
    lengths = {len(r.ids) for r in rows}
    assert len(lengths) > 4
    assert max(lengths) <= 200
    assert [r.success for r in rows[:4]] == [True, False, True, False]
    assert all(r.first_sampled == 25 and r.sampled[-1] for r in rows)
    assert all(3 <= token < 300 for r in rows for token in r.ids)
    same = job(bench, folder, groups=8, longest=200, equal=True).random_batch()
    assert len({r.sampled for r in same}) == 1


def test_decisions_contain_the_answers_and_their_whole_context(
    bench: SimpleNamespace, folder: Path
) -> None:
    from coevo_gym.trainers.segments import segments

    for rollout in job(bench, folder, groups=8, longest=200).random_batch():
        (segment,) = segments(bench.sides.decisions(rollout))
        assert (segment.ids, segment.sampled) == (rollout.ids, rollout.sampled)


@pytest.mark.parametrize("whole", [False, True])
def test_updates_of_our_learner_are_measured_and_reported(
    bench: SimpleNamespace, folder: Path, whole: bool
) -> None:
    messages: list[Any] = []
    channel = SimpleNamespace(send=messages.append, recv=lambda: "go")
    task = job(bench, folder, whole=whole)
    bench.sides.run_ours(task, channel)
    assert messages[0] == "ready"
    assert [type(update) for update in messages[1:]] == [bench.sides.Update] * 2
    for update in messages[1:]:
        assert update.seconds > 0
        assert update.update_cpu_seconds > 0
        assert (update.sampling_cpu_seconds > 0) == whole
        assert update.tokens == sum(len(rollout.ids) for rollout in task.random_batch())
        assert update.grad_norm > 0
        assert update.peak_bytes >= update.resident_bytes > 0
    facts = bench.main.make_report(task, "tiny", {"ours": messages[1:], "trl": messages[1:]})
    assert facts["agree"]
    assert facts["ratios"]["seconds"]["ratio"] == facts["ratios"]["peak_bytes"]["ratio"] == 1
    table = bench.main.format_report(json.loads(json.dumps(facts)))
    assert "ours/TRL" in table
    assert ("scoring and update" in table) == whole
    assert bench.main.missed_bounds(facts) == (
        ["cpu_seconds", "peak_bytes"] if whole else ["seconds"]
    )


def test_a_whole_step_samples_answers_of_full_length(bench: SimpleNamespace, folder: Path) -> None:
    from coevo_gym.agents.lm.language_model import ModelConfig
    from coevo_gym.agents.lm.transformers_policy import TransformersPolicy

    policy = TransformersPolicy(ModelConfig(path=str(folder), device="cpu"))
    task = job(bench, folder, whole=True)
    bench.sides.remove_stop_tokens(policy)
    asked = bench.sides.random_prompts(task, policy.tokenizer)
    rows = bench.sides.sample_rollouts(policy, asked, task)
    assert [r._replace(ids=()) for r in rows] == [r._replace(ids=()) for r in task.random_batch()]
    assert [len(r.ids) for r in rows] == [60] * 4
    prompts = [r.ids[:-16] for r in rows]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]


def test_a_conversation_has_answers_and_observations_of_equal_length(
    bench: SimpleNamespace, folder: Path
) -> None:
    from coevo_gym.agents.lm.language_model import ModelConfig
    from coevo_gym.agents.lm.transformers_policy import TransformersPolicy

    policy = TransformersPolicy(ModelConfig(path=str(folder), device="cpu"))
    task = job(bench, folder, whole=True, turns=3, longest=400)
    bench.sides.remove_stop_tokens(policy)
    asked = bench.sides.random_prompts(task, policy.tokenizer)
    rows = bench.sides.sample_rollouts(policy, asked, task)
    assert [r._replace(ids=()) for r in rows] == [r._replace(ids=()) for r in task.random_batch()]
    assert [(len(r.ids), sum(r.sampled)) for r in rows] == [(400, 48)] * 4


@pytest.mark.parametrize(("loss", "norm"), [(0.5002, 1.0), (0.5, 1.01), (float("nan"), 1.0)])
def test_sides_with_different_loss_gradient_or_tokens_are_detected(
    bench: SimpleNamespace, folder: Path, loss: float, norm: float
) -> None:
    task = job(bench, folder)
    tokens = sum(len(rollout.ids) for rollout in task.random_batch())

    def update(loss: float, norm: float, tokens: int = tokens) -> Any:
        return bench.sides.Update(1.0, 1.0, 0.0, 1.0, tokens, loss, norm, 2, 1, "")

    right = update(0.5, 1.0)
    for wrong in (update(loss, norm), update(0.5, 1.0, tokens - 1)):
        assert not bench.main.did_same_work({"ours": [wrong], "trl": [right]}, task)
    assert bench.main.did_same_work({"ours": [right], "trl": [right]}, task)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["update", "whole", "conversations"])
def test_the_bench_on_a_tiny_model_prints_json(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("trl")
    flags = "--updates 2 --groups 1 --group-size 2 --rows 1 --threads 1 "
    flags += {
        "update": "--longest 60 --epochs 2",
        "whole": "--longest 60 --whole",
        "conversations": "--longest 1400 --whole --turns 3",
    }[kind]
    whole = kind != "update"
    command = [sys.executable, str(BENCH / "grpo_vs_trl.py"), *flags.split(), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert facts["agree"]
    assert facts["versions"].keys() == {"python", "torch", "transformers", "trl", "accelerate"}
    for side in ("ours", "trl"):
        assert len(facts["sides"][side]) == 2
        assert all(update["peak_bytes"] > 50e6 for update in facts["sides"][side])
        assert all((update["sampling_cpu_seconds"] > 0) == whole for update in facts["sides"][side])
    assert facts["ratios"]["seconds"]["least"] <= facts["ratios"]["seconds"]["most"]
    if whole:
        one_turn = {"seconds": None, "cpu_seconds": 0.42, "peak_bytes": 0.8}
        assert facts["wanted"] == (one_turn if kind == "whole" else dict.fromkeys(one_turn))
        return
    losses = [facts["sides"][side][0]["loss"] for side in ("ours", "trl")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert facts["wanted"] == {"seconds": 0.8, "cpu_seconds": None, "peak_bytes": 1.0}
