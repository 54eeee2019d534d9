"""The GPU benchmark's parts, with a tiny model on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as a script finds it, in a process that is left as it was."""
    monkeypatch.syspath_prepend(ROOT / "bench")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    import gpu_grpo

    yield gpu_grpo
    torch.set_num_threads(threads)
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] in ("gpu_grpo", "gpu_multiturn", "gpu_parts", "shapes")
    ]:
        del sys.modules[name]


def run(bench: Any, out: Path, *arguments: str) -> dict[str, Any]:
    tiny = ("--device", "cpu", "--shape", "tiny", "--out", str(out))
    assert bench.main([*tiny, *arguments]) == 0
    results: dict[str, Any] = json.loads((out / "gpu_grpo.json").read_text())
    return results


@pytest.fixture
def trained(bench: Any, tmp_path: Path) -> Path:
    """A folder with a tiny model that counts as trained."""
    from gpu_parts.subjects import save_random_model

    return Path(save_random_model("tiny", tmp_path / "trained").folder)


def picture_text(out: Path) -> str:
    elements = ElementTree.parse(out / "gpu_grpo.svg").getroot().iter(f"{SVG}text")
    return " ".join(text for element in elements for text in element.itertext())


@pytest.mark.slow
def test_all_parts_are_measured_and_written_to_a_page(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = run(bench, tmp_path, "--parts", "equal,train,rollout")
    assert results["command"].startswith("python bench/gpu_grpo.py --device cpu")
    assert {"python", "driver", "cuda", "torch", "transformers", "vllm"} <= results[
        "software"
    ].keys()
    assert results["peaks"]["flops"] > 0
    assert results["peaks"]["bandwidth"] > 0

    exact, half = results["equal"]
    assert (exact["dtype"], exact["loss_off"], exact["gradient_off"]) == ("float32", 0, 0)
    assert (half["dtype"], half["ok"]) == ("bfloat16", True)
    assert half["gradient_off"] > 0
    assert abs(half["loss"]) > 1e-4

    assert {(row["budget_tokens"], row["checkpointing"]) for row in results["train"]} == {
        (budget, on) for budget in (128, 256) for on in (False, True)
    }
    for row in results["train"]:
        assert row["padding"] == 0
        assert 0 < row["mfu"] < 1
        assert 0 < row["tokens_per_s"] <= row["step_tokens_per_s"]

    rows = results["rollout"]
    assert [(r["engine"], r["batch"]) for r in rows if r["engine"] != "vllm"] == [
        (engine, batch) for engine in ("generate", "coevo_gym") for batch in (2, 4)
    ]
    assert {r["against_generate"] for r in rows if r["engine"] == "generate"} == {1.0}

    met = {target["name"]: target["met"] for target in results["targets"]}
    assert met["equal to the CPU, share of precisions"] is True
    assert met["padding in training"] is True
    assert met["training MFU from 1B weights on"] is None
    picture = ElementTree.parse(tmp_path / "gpu_grpo.svg").getroot()
    assert picture.tag == f"{SVG}svg"
    assert len(list(picture.iter(f"{SVG}svg"))) == 1 + 2 * 2  # each chart in a frame
    assert "padding 0.0%" in capsys.readouterr().out
    assert results["models"] == [{"name": "random tiny", "random": True, "parameters": 94208}]
    assert "all of them random" in picture_text(tmp_path)
    assert results["seconds"].keys() == {"equal", "train", "rollout"}
    page = (tmp_path / "gpu_grpo.md").read_text()
    assert page.count("| random tiny |") == 2 + 4 + len(rows)


def test_a_missing_model_is_replaced_by_random_weights_with_a_note(
    bench: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COEVO_HOME", str(tmp_path / "home"))
    results = run(bench, tmp_path, "--parts", "equal", "--model", "smollm2")
    (note,) = results["notes"]
    assert note.startswith("The model smollm2 is not in ")
    assert note.endswith("In its place: random tiny.")
    page = (tmp_path / "gpu_grpo.md").read_text()
    for text in (page, capsys.readouterr().out, picture_text(tmp_path)):
        assert "In its place: random tiny." in text


def test_the_measured_models_follow_from_the_model_and_shape_options(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_parts import subjects

    monkeypatch.setenv("COEVO_HOME", str(tmp_path))
    small = {**subjects.SHAPES["tiny"][1], "num_hidden_layers": 1}
    monkeypatch.setitem(subjects.SHAPES, "smollm2", ("llama", small))
    monkeypatch.setitem(subjects.SHAPES, "1.5b", ("llama", small))

    def names(model: str, shape: str) -> tuple[str, list[str], int]:
        checked, timed, notes = subjects.choose_models(model, shape, tmp_path / "made")
        return checked.name, [subject.name for subject in timed], len(notes)

    assert names("none", "1.5b") == ("random 1.5b", ["random 1.5b"], 0)
    for missing in ("smollm2", "Qwen/Qwen3-4B", str(tmp_path / "nothing")):
        assert names(missing, "1.5b") == ("random smollm2", ["random 1.5b"], 1)
    assert names("smollm2", "none") == ("random smollm2", ["random smollm2"], 1)
    there = str(tmp_path / "made" / "1.5b")
    assert names(there, "tiny") == ("1.5b", ["1.5b", "random tiny"], 0)


def test_a_failing_part_is_reported_and_the_others_still_run(
    bench: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gpu_parts import training

    def fails(*args: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(training, "measure_training", fails)
    arguments = ("--device", "cpu", "--out", str(tmp_path), "--parts", "train,rollout")
    assert bench.main(arguments) == 1
    assert "Traceback" in capsys.readouterr().err
    results = json.loads((tmp_path / "gpu_grpo.json").read_text())
    assert results["train"] == "failed: RuntimeError: CUDA error: an illegal memory access"
    assert len(results["rollout"]) >= 4
    assert results["train"] in (tmp_path / "gpu_grpo.md").read_text()
    assert results["train"] in picture_text(tmp_path)


def gpu_check(out: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Run ``make gpu-check`` at tiny shapes with an interpreter that sees only these paths.

    With -S, no .pth file is read, so an editable installation is not found.
    """
    python = out / "a folder" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["make", "gpu-check", f"PYTHON={python}", f"ARGS=--device cpu --shape tiny --out {out}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_the_gpu_check_runs_in_an_interpreter_without_the_package(tmp_path: Path) -> None:
    process = gpu_check(tmp_path, Path(torch.__file__).parents[1])
    assert process.returncode == 0, process.stderr
    results = json.loads((tmp_path / "gpu_grpo.json").read_text())
    assert all(isinstance(results[part], list) for part in ("equal", "train", "rollout"))
    assert "| random tiny | float32 |" in (tmp_path / "gpu_grpo.md").read_text()
    assert "random tiny" in picture_text(tmp_path)


def test_the_gpu_check_lists_missing_packages_for_each_skipped_part(tmp_path: Path) -> None:
    process = gpu_check(tmp_path)
    assert process.returncode != 0
    assert "Traceback" not in process.stdout + process.stderr
    page = (tmp_path / "gpu_grpo.md").read_text()
    for part in ("equal", "train", "rollout"):
        (line,) = (row for row in process.stdout.splitlines() if row.startswith(f"{part}: "))
        assert line.startswith(f"{part}: skipped: accelerate, gymnasium, ")
        assert line.endswith("torch, transformers not installed")
        assert f"## {part}\n\n{line.removeprefix(f'{part}: ')}" in page


def test_a_device_outside_the_tolerance_fails_the_benchmark(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_parts import equal

    nothing = equal.Tolerance(0, 0, 0)
    monkeypatch.setitem(equal.TOLERANCES, "bfloat16", nothing)
    out = ["--device", "cpu", "--out", str(tmp_path), "--parts", "equal"]
    assert bench.main(out) == 1
    results = json.loads((tmp_path / "gpu_grpo.json").read_text())
    assert [row["ok"] for row in results["equal"]] == [True, False]
    assert ElementTree.parse(tmp_path / "gpu_grpo.svg").getroot().tag == f"{SVG}svg"


def test_flops_and_ideal_decode_time_match_hand_computed_values(bench: Any) -> None:
    from gpu_parts.rollouts import ideal_decode_s
    from gpu_parts.training import training_flops

    from coevo_gym.agents.lm.model_shape import ModelShape

    tied = ModelShape(
        layers=2,
        hidden=4,
        heads=2,
        kv_heads=1,
        head_dim=2,
        intermediate=8,
        vocabulary=10,
        tied=True,
    )
    blocks = 2 * (4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 8)
    assert training_flops(tied, tokens=100, sampled=7) == 6 * (blocks * 100 + 40 * 7)
    untied = tied._replace(tied=False)
    assert training_flops(untied, tokens=100, sampled=7) == 6 * (blocks * 100 + 40 * 7)

    # Two steps; the first answer reads 5 + 1 and 5 + 2 tokens of cache, the second 3 + 1.
    numbers = 2 * (blocks + 40) + (2 * 2 * 1 * 2) * (6 + 7 + 4)
    assert ideal_decode_s(tied, [(5, 3), (3, 2)], 100.0, 2) == pytest.approx(numbers * 2 / 100)
    assert ideal_decode_s(untied, [(5, 3), (3, 2)], 100.0, 2) == pytest.approx(numbers * 2 / 100)


def test_planned_memory_has_the_constant_part_computed_by_hand(bench: Any, tmp_path: Path) -> None:
    """The constant part is fp32 weights, gradients and moments, and bf16 reference and casts."""
    from gpu_parts.subjects import save_random_model
    from gpu_parts.training import planned_memory

    tiny = save_random_model("tiny", tmp_path)
    small, large = (planned_memory(tiny, budget, False) for budget in (1024, 2048))
    assert 2 * small - large == (4 + 4 + 8 + 2 + 2) * tiny.shape.n_parameters


def test_targets_are_evaluated_from_the_measured_values(bench: Any) -> None:
    from gpu_parts.targets import evaluate_targets

    training = {"parameters": 2e9, "padding": 0.06, "mfu": 0.41}
    small = {"parameters": 1e8, "padding": 0.0, "mfu": 0.9}
    lost = {"parameters": 2e9, "out_of_memory": True}
    rows = [
        {"engine": "generate", "against_generate": 1.0, "roofline_share": 0.9},
        {"engine": "coevo_gym", "against_generate": 1.2, "roofline_share": 0.8},
        {"engine": "vllm", "against_generate": 6.0, "roofline_share": 0.4},
    ]
    goals = evaluate_targets(
        {"equal": "not run", "train": [training, small, lost], "rollout": rows}
    )
    assert [(target.value, target.met) for target in goals] == [
        (None, None),
        (0.41, True),
        (0.06, False),
        (6.0, True),
        (0.4, False),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_cuda_without_a_gpu_is_an_error(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--device", "cuda"]) == 1
    message = "ConfigError: device is 'cuda', but PyTorch cannot find a GPU."
    assert message in capsys.readouterr().err


def test_results_are_rendered_as_a_markdown_page(bench: Any) -> None:
    from gpu_parts.table import to_markdown

    lost = {"model": "m", "budget_tokens": 8192, "checkpointing": True, "compiled": False}
    lost["out_of_memory"] = True
    results = {
        "card": "H100",
        "date": "2026-01-02",
        "command": "python x",
        "software": {"torch": "2", "vllm": None},
        "peaks": {"dtype": "bfloat16", "flops": 5e14, "data_sheet": 1e15, "bandwidth": 3e12},
        "models": [{"name": "m", "random": False, "parameters": 1_500_000_000}],
        "notes": [],
        "seconds": {"train": 61.2, "rollout": 3.0},
        "equal": "not run",
        "train": [lost],
        "rollout": [{"model": "m", "engine": "vllm", "remark": "failed: a|b\nc"}],
        "targets": [{"name": "speed", "wanted": "> 1", "value": 0.5, "met": False}],
    }
    lines = to_markdown(results).splitlines()
    for line in (
        "# H100, 2026-01-02",
        "- reached: 500.00 TFLOP/s in bfloat16 (50% of the data sheet), 3,000 GB/s",
        "- model m: 1,500.0 M weights",
        "- software: torch 2",
        "## train (61 s)",
        "| m | 8,192 | yes | no | – | – | – | – | out of memory | – |",
        r"| m | vllm | – | – | – | – | failed: a\|b c |",
        "| speed | > 1 | 0.5 | **no** |",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--parts", "equal,tran"], "there is no part 'tran'"), (["--shape", "9b"], "invalid choice")],
)
def test_invalid_options_are_usage_errors(
    bench: Any, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        bench.main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def multiturn(bench: Any) -> Any:
    import gpu_multiturn

    return gpu_multiturn


def run_multiturn(multiturn: Any, out: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    tiny = ("--device", "cpu", "--shape", "tiny", "--out", str(out))
    code = multiturn.main([*tiny, *arguments])
    return code, json.loads((out / "gpu_multiturn.json").read_text())


@pytest.mark.slow
def test_all_parts_with_many_turns_are_measured(multiturn: Any, tmp_path: Path) -> None:
    code, results = run_multiturn(multiturn, tmp_path)
    assert code == 0
    assert set(results["ended"].values()) == {""}
    assert results["seconds"].keys() == set(multiturn.LIMITS)

    whole, adapter = results["mismatch"]
    assert (whole["trained"], adapter["trained"]) == ("all weights", "adapter")
    for row in (whole, adapter):
        assert row["tokens"] > 500
        assert abs(row["kl"]) < row["mean_off"] <= row["max_off"] < 0.1

    small, ample = results["sampling"]
    for row in (small, ample):
        assert (row["episodes"], row["turns"], row["complete"]) == (4, 8, True)
        assert row["fed"] == row["read"] + row["sampled"] - row["turns"]
        assert (row["captures"], row["graphless_share"], row["peak_memory"]) == (0, 1.0, None)
    assert small["read"] > ample["read"]
    assert ample["read"] <= ample["must_read"]
    assert small["planned_memory"] < ample["planned_memory"]

    (update,) = results["update"]
    assert (update["episodes"], update["captures"]) == (4, [0, 0, 0])
    assert update["tokens"] > update["tokens_sampled"] > 0

    assert [(row["seed"], row["old_logprobs"]) for row in results["learning"]] == [
        (1, "recorded"),
        (1, "recomputed"),
    ]
    for row in results["learning"]:
        assert row["ended"] == "complete", row["message"]
        assert [step for step, _ in row["success"]] == [0, 1]

    page = (tmp_path / "gpu_multiturn.md").read_text()
    assert page.count("| random tiny |") == 2 + 2 + 1 + 2
    met = {target["name"]: target["met"] for target in results["targets"]}
    assert met == {
        "k3 of sampler and learner": True,
        "prompt tokens read, largest cache": True,
        "peak memory to the plan": None,
    }


@pytest.mark.slow
def test_a_failing_or_slow_part_keeps_the_results_of_the_others(
    multiturn: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trained / "model.safetensors").write_bytes(b"torn")
    monkeypatch.setitem(multiturn.LIMITS, "update", multiturn.Limit(0, 0))
    arguments = ("--parts", "mismatch,update,sampling", "--model", str(trained))
    code, results = run_multiturn(multiturn, tmp_path / "out", *arguments)
    assert code == 1
    assert results["mismatch"].startswith("failed: ModelError: ")
    assert results["update"] == "stopped by its time limit of 0 s"
    assert len(results["sampling"]) == 2
    assert results["learning"] == "not run"
    page = (tmp_path / "out" / "gpu_multiturn.md").read_text()
    assert "stopped by its time limit of 0 s" in page


def test_tokens_of_conversations_are_counted_once_by_hand(bench: Any) -> None:
    from gpu_parts.conversations import Conversation, Turn, tokens_once

    one = Conversation(0, 10, (Turn(2, 3), Turn(4, 5)))
    assert (one.sampled, one.length) == (6, 10 + 2 + 3 + 4)
    other = Conversation(0, 10, (Turn(1, 7),))
    assert tokens_once([one, other, other._replace(group=1)]) == (10 + 8) + 0 + (10 + 0)


def test_conversations_have_the_drawn_lengths_and_groups_share_a_first_prompt(bench: Any) -> None:
    from gpu_parts.conversations import Lengths, Range, random_conversations

    lengths = Lengths(Range(100, 0.5), Range(10, 1.0, 20), Range(30))
    conversations = random_conversations(40, 5, lengths, group_size=4)
    assert conversations == random_conversations(40, 5, lengths, group_size=4)
    assert [one.group for one in conversations] == [i // 4 for i in range(40)]
    for group in range(10):
        assert len({one.first for one in conversations if one.group == group}) == 1
    assert len({one.first for one in conversations}) > 5
    turns = [turn for one in conversations for turn in one.turns]
    assert {turn.observation for turn in turns} == {30}
    assert max(turn.answer for turn in turns) == 20
    assert min(turn.answer for turn in turns) < 5


def test_the_quick_check_ends_within_six_minutes(bench: Any, tmp_path: Path) -> None:
    import gpu_multiturn
    from gpu_parts.quick import list_checks

    checks = {check.name: check for check in list_checks("cuda", "1.5b", tmp_path)}
    assert list(checks) == ["graphs", "multi-turn", "rollout"]
    assert sum(check.limit_s for check in checks.values()) <= 355
    parts = sum(limit.quick for limit in gpu_multiturn.LIMITS.values())
    assert parts < checks["multi-turn"].limit_s
    assert "--shape" not in checks["multi-turn"].command  # its own default is larger


def test_a_check_is_stopped_at_its_limit_with_the_processes_that_it_started(
    bench: Any, tmp_path: Path
) -> None:
    from gpu_parts.quick import Check, _run

    assert _run(Check("fast", 60, ("-c", "")), 60) == "complete"
    assert _run(Check("wrong", 60, ("-c", "raise SystemExit(4)")), 60) == "failed: code 4"
    assert _run(Check("slow", 1, ("-c", "import time; time.sleep(600)")), 1) == (
        "stopped by its time limit of 1 s"
    )


@pytest.mark.slow
def test_the_quick_check_measures_a_tiny_model_on_a_cpu(
    bench: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny = ["--quick", "--device", "cpu", "--shape", "tiny", "--out", str(tmp_path)]
    assert bench.main(tiny) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[-3] == "graphs: not run: it needs a GPU"
    assert lines[-2].startswith("multi-turn: complete")
    assert lines[-1].startswith("rollout: complete")
    assert {path.name for path in tmp_path.iterdir()} == {
        *(f"gpu_grpo.{ending}" for ending in ("json", "md", "svg")),
        *(f"gpu_multiturn.{ending}" for ending in ("json", "md")),
    }
