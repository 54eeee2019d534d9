"""The GPU benchmark's parts, with a tiny model on a CPU."""

from __future__ import annotations

import json
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
        name for name in sys.modules if name.partition(".")[0] in ("gpu_grpo", "gpu_parts")
    ]:
        del sys.modules[name]


def run(bench: Any, out: Path, *arguments: str) -> dict[str, Any]:
    tiny = ("--device", "cpu", "--shape", "tiny", "--out", str(out))
    assert bench.main([*tiny, *arguments]) == 0
    found: dict[str, Any] = json.loads((out / "gpu_grpo.json").read_text())
    return found


def test_speed_and_equality(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(bench, tmp_path, "--parts", "equal,train,rollout")
    assert found["learn"] == "not run"
    assert found["command"].startswith("python bench/gpu_grpo.py --device cpu")
    assert {"python", "driver", "cuda", "torch", "transformers", "vllm"} <= found["software"].keys()
    assert found["peaks"]["flops"] > 0
    assert found["peaks"]["bandwidth"] > 0

    exact, half = found["equal"]
    assert (exact["dtype"], exact["loss_off"], exact["gradient_off"]) == ("float32", 0, 0)
    assert (half["dtype"], half["ok"]) == ("bfloat16", True)
    assert half["gradient_off"] > 0
    assert abs(half["loss"]) > 1e-4

    assert {(row["budget_tokens"], row["checkpointing"]) for row in found["train"]} == {
        (budget, on) for budget in (128, 256) for on in (False, True)
    }
    for row in found["train"]:
        assert row["padding"] == 0
        assert 0 < row["mfu"] < 1
        assert 0 < row["tokens_per_s"] <= row["step_tokens_per_s"]

    rows = found["rollout"]
    assert [(r["engine"], r["batch"]) for r in rows if r["engine"] != "vllm"] == [
        (engine, batch) for engine in ("generate", "padded") for batch in (2, 4)
    ]
    assert {r["against_generate"] for r in rows if r["engine"] == "generate"} == {1.0}

    met = {target["name"]: target["met"] for target in found["targets"]}
    assert met["equal to the CPU, share of precisions"] is True
    assert met["padding in training"] is True
    assert met["training MFU from 1B weights on"] is None
    picture = ElementTree.parse(tmp_path / "gpu_grpo.svg").getroot()
    assert picture.tag == f"{SVG}svg"
    assert len(list(picture.iter(f"{SVG}svg"))) == 1 + 2 * 2  # each chart in a frame
    assert "padding 0.0%" in capsys.readouterr().out


def test_an_unequal_device_fails(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_parts import equal

    nothing = equal.Tolerance(0, 0, 0)
    monkeypatch.setitem(equal.TOLERANCES, "bfloat16", nothing)
    out = ["--device", "cpu", "--out", str(tmp_path), "--parts", "equal"]
    assert bench.main(out) == 1
    found = json.loads((tmp_path / "gpu_grpo.json").read_text())
    assert [row["ok"] for row in found["equal"]] == [True, False]
    assert ElementTree.parse(tmp_path / "gpu_grpo.svg").getroot().tag == f"{SVG}svg"


def test_formulas_by_hand(bench: Any) -> None:
    from gpu_parts.rollouts import decode_s
    from gpu_parts.training import training_work

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
    assert training_work(tied, tokens=100, sampled=7) == 6 * (blocks * 100 + 40 * 7)
    untied = tied._replace(tied=False)
    assert training_work(untied, tokens=100, sampled=7) == 6 * (blocks * 100 + 40 * 7)

    # Two steps; the first answer reads 5 + 1 and 5 + 2 tokens of cache, the second 3 + 1.
    numbers = 2 * (blocks + 40) + (2 * 2 * 1 * 2) * (6 + 7 + 4)
    assert decode_s(tied, [(5, 3), (3, 2)], 100.0, 2) == pytest.approx(numbers * 2 / 100)
    assert decode_s(untied, [(5, 3), (3, 2)], 100.0, 2) == pytest.approx(numbers * 2 / 100)


def test_targets(bench: Any) -> None:
    from gpu_parts.targets import targets

    training = {"parameters": 2e9, "padding": 0.06, "mfu": 0.41}
    small = {"parameters": 1e8, "padding": 0.0, "mfu": 0.9}
    lost = {"parameters": 2e9, "out_of_memory": True}
    rows = [
        {"engine": "generate", "against_generate": 1.0, "roofline_share": 0.9},
        {"engine": "padded", "against_generate": 1.2, "roofline_share": 0.8},
        {"engine": "vllm", "against_generate": 6.0, "roofline_share": 0.4},
    ]
    found = targets({"equal": "not run", "train": [training, small, lost], "rollout": rows})
    assert [(target.value, target.met) for target in found] == [
        (None, None),
        (0.41, True),
        (0.06, False),
        (6.0, True),
        (0.4, False),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "ConfigError: device is 'cuda', but PyTorch finds no GPU."),
        (["--device", "cpu", "--model", "smollm2"], "Run `coevo model fetch smollm2`"),
    ],
)
def test_what_is_missing(
    bench: Any, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available() and "cuda" in arguments:
        pytest.skip("there is a GPU")
    assert bench.main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--parts", "equal,tran"], "there is no part 'tran'"), (["--shape", "9b"], "invalid choice")],
)
def test_usage(
    bench: Any, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        bench.main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


LEARN = (
    *("--parts", "learn", "--minutes", "30"),
    *("--set", "warmup.n_tasks=2", "--set", "warmup.max_epochs=1"),
    *("--set", "evaluation.n_tasks=2", "--set", "curriculum.initial_size=3"),
    *("--set", "benchmark.max_steps=8", "--set", "benchmark.subset=builtin"),
    *("--set", "rollout.group_size=2", "--set", "loop.groups_per_step=1"),
    *("--set", "policy.chat.max_answer_tokens=4", "--set", "learner.minibatches=1"),
)


@pytest.mark.slow
def test_learning_until_the_time_is_over(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first arm is stopped after a step; the second has its env steps."""
    from gpu_parts import learning

    from coevo_gym.trainers.loop import Loop

    steps: list[int] = []
    step = Loop.step

    def counted(loop: Loop) -> Any:
        steps.append(loop.state.step)
        return step(loop)

    stops = iter([lambda: bool(steps), lambda: False])
    monkeypatch.setattr(Loop, "step", counted)
    monkeypatch.setattr(learning, "Deadline", lambda seconds, tell: next(stops))
    static, coevolve = run(bench, tmp_path, *LEARN)["learn"]
    assert (static["arm"], static["steps"], static["stopped_by_clock"]) == ("static", 1, True)
    assert (coevolve["arm"], coevolve["stopped_by_clock"]) == ("coevolve", False)
    assert 0 < static["env_steps"] <= coevolve["env_steps"] < 2 * static["env_steps"]
    for row in (static, coevolve):
        assert row["split"] == "val"
        for numbers in (row["before"], row["after"]):
            assert 0 <= numbers["low"] <= numbers["success"] <= numbers["high"] <= 1
            assert numbers["n_tasks"] == 2


@pytest.mark.slow
def test_no_time_to_learn(bench: Any, tmp_path: Path) -> None:
    for row in run(bench, tmp_path, *LEARN, "--minutes", "0")["learn"]:
        assert row["stopped_by_clock"]
        assert (row["steps"], row["before"], row["after"]) == (0, None, None)


def test_the_clock(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_parts import learning

    now, said = [100.0], list[str]()
    monkeypatch.setattr(learning, "monotonic", lambda: now[0])
    stop = learning.Deadline(600, said.append)
    assert (stop(), said) == (False, [])
    now[0] += 150
    assert (stop(), stop(), said) == (False, False, ["learn: 2.5 of 10.0 minutes"])
    now[0] += 450
    assert stop()
    assert learning.Deadline(0, said.append)()
