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
    drawn = job(bench, folder, groups=8, longest=200).batch()
    assert drawn == job(bench, folder, groups=8, longest=200).batch()
    lengths = {len(r.ids) for r in drawn}
    assert len(lengths) > 4
    assert max(lengths) <= 200
    assert [r.success for r in drawn[:4]] == [True, False, True, False]
    assert all(r.start == 25 and r.sampled[-1] for r in drawn)
    assert all(3 <= token < 300 for r in drawn for token in r.ids)
    same = job(bench, folder, groups=8, longest=200, equal=True).batch()
    assert len({r.sampled for r in same}) == 1


def test_decisions_are_the_answers_and_their_whole_context(
    bench: SimpleNamespace, folder: Path
) -> None:
    from coevo_gym.trainers.segments import segments

    for rollout in job(bench, folder, groups=8, longest=200).batch():
        (segment,) = segments(bench.sides.decisions(rollout))
        assert (segment.ids, segment.sampled) == (rollout.ids, rollout.sampled)


def test_an_update_of_this_learner_is_measured(bench: SimpleNamespace, folder: Path) -> None:
    sent: list[Any] = []
    channel = SimpleNamespace(send=sent.append, recv=lambda: "go")
    bench.sides.run_ours(job(bench, folder), channel)
    assert sent[0] == "ready"
    assert [type(update) for update in sent[1:]] == [bench.sides.Update] * 2
    for update in sent[1:]:
        assert update.seconds > 0
        assert update.grad_norm > 0
        assert update.peak_bytes >= update.resident_bytes > 0
    told = bench.main.facts(job(bench, folder), "tiny", {"ours": sent[1:], "trl": sent[1:]})
    assert told["agree"]
    assert told["ratios"]["seconds"]["ratio"] == told["ratios"]["peak_bytes"]["ratio"] == 1
    assert "ours/TRL" in bench.main.table(json.loads(json.dumps(told)))


@pytest.mark.parametrize(("loss", "norm"), [(0.5002, 1.0), (0.5, 1.01), (float("nan"), 1.0)])
def test_sides_that_do_not_do_the_same_are_found(
    bench: SimpleNamespace, loss: float, norm: float
) -> None:
    def update(loss: float, norm: float) -> Any:
        return bench.sides.Update(1.0, 1.0, loss, norm, 2, 1, "")

    found = {"ours": [update(loss, norm)], "trl": [update(0.5, 1.0)]}
    assert not bench.main.agrees(found, "cpu")
    assert bench.main.agrees({"ours": found["trl"], "trl": found["trl"]}, "cpu")


@pytest.mark.slow
def test_the_bench_on_a_tiny_model_prints_json(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    flags = "--updates 2 --groups 1 --group-size 2 --rows 1 --longest 60 --threads 1 --epochs 2"
    command = [sys.executable, str(BENCH / "grpo_vs_trl.py"), *flags.split(), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["agree"]
    assert told["versions"].keys() == {"python", "torch", "transformers", "trl", "accelerate"}
    for side in ("ours", "trl"):
        assert len(told["sides"][side]) == 2
        assert all(update["peak_bytes"] > 50e6 for update in told["sides"][side])
    losses = [told["sides"][side][0]["loss"] for side in ("ours", "trl")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert told["ratios"]["seconds"]["least"] <= told["ratios"]["seconds"]["most"]
    assert told["wanted"] == {"seconds": 0.8, "cpu_seconds": None, "peak_bytes": 1.0}
