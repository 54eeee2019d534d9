"""The benchmark of a GRPO step on a CPU, with a tiny model."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module as a script finds it; short episodes, in a process that is left as it was."""
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    threads = torch.get_num_threads()
    import lm_step

    monkeypatch.setattr(lm_step, "TURNS", 2)
    yield lm_step
    torch.set_num_threads(threads)
    del sys.modules["lm_step"]


def test_the_before_way_computes_all_tokens_and_the_now_way_only_the_needed_ones(
    bench: Any, tmp_path: Path
) -> None:
    bench.save_model("tiny", str(tmp_path))
    tokens = {}
    for whole, policy in ((way[1], one) for way, one in bench.load_policies(str(tmp_path)).items()):
        seen: list[int] = []
        policy.model.model.register_forward_pre_hook(
            lambda _, args, kwargs, seen=seen: seen.append(kwargs["input_ids"].numel()),
            with_kwargs=True,
        )
        step = bench.measure_step(policy, bench.Way("float32", 1, whole=whole))
        played = sum(seen)
        assert [len(g.trajectories) for g in step.groups] == [4, 4]
        assert [t.success for t in step.groups[0].trajectories] == [True, False, True, False]
        assert not any(t.success for t in step.groups[1].trajectories)
        answers = [d for g in step.groups for t in g.trajectories for d in bench.decisions(t)]
        assert {len(answer.ids) for answer in answers} == {7}
        assert [len(answer.prompt_ids) for answer in answers[:2]] == [150, 205]
        seen.clear()
        bench.update_policy(policy, bench.Way("float32", 1, whole=whole), step.groups)
        tokens[whole] = step.read, played, sum(seen)
    trajectory = 150 + 55 + 7 - 1  # the last token predicts nothing
    assert tokens[True][0] == 8 * (150 + 205)
    assert tokens[True][2] == 8 * trajectory
    shared = 150 - tokens[False][2] + 4 * (trajectory - 150)
    assert -7 * 4 <= shared <= 0  # first answers may begin alike, too
    assert 2 * 150 < tokens[False][0] < 3 * 150 + 8 * 55
    assert tokens[False][1] < tokens[True][1]


def test_the_table_has_a_row_per_way_and_compares_answers_and_gradients(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--shape", "tiny", "--repeats", "1"]) == 0
    printed = capsys.readouterr().out
    assert [row.split(" | ")[0] for row in printed.splitlines() if row[:2] == "| "][1:] == [
        f"| {name}" for name in bench.WAYS
    ]
    assert "of 16 answers are the same" in printed
    cosine = re.search(r"cosine (\S+) to that in fp32", printed)
    assert cosine is not None
    assert 0.99 < float(cosine[1]) <= 1


def test_different_weights_make_the_benchmark_fail(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench.MAX_APART, "weights", 0.0)
    assert bench.main(["--shape", "tiny", "--repeats", "1"]) == 1


def test_bounds_are_checked_against_medians(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def steps(*seconds: float) -> list[Any]:
        return [bench.Measured(one / 2, one / 2, 100, []) for one in seconds]

    timings = dict.fromkeys(bench.WAYS, steps(1.0, 1.0, 1.0))
    timings |= {"before, fp32": steps(10.0, 10.0, 20.0), "now, fp32": steps(4.4, 9.9, 4.6)}
    assert bench.print_table(timings) == ["now, fp32"]
    assert "| 2.3 s | 2.3 s | 4.6 s | 0.46 (0.23 to 0.99) | 0.45 |" in capsys.readouterr().out
    assert bench.print_table(timings | {"now, fp32": steps(4.4, 9.9, 4.4)}) == []


def test_a_missing_model_is_replaced_by_random_weights_of_its_shape(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(bench.SHAPES, "135m", bench.SHAPES["tiny"])
    for name, way in bench.WAYS.items():
        monkeypatch.setitem(bench.WAYS, name, way._replace(bound=None))
    assert bench.main(["--model", "smollm2", "--repeats", "1"]) == 0
    output = capsys.readouterr().err
    assert "coevo model fetch smollm2" in output
    assert "Random weights of SmolLM2's shape are measured." in output
