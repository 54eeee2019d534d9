"""A trained language model as a folder that transformers loads, with a card that tells of it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
from safetensors import SafetensorError

from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.runs.assembly import load_evaluation_weights
from coevo_gym.runs.config import Resolved, load_config
from coevo_gym.runs.folders.model_folder import ORIGIN, export_model
from coevo_gym.runs.manifest import make_manifest
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.folder import RunFolder, append_line, read_json, write_json
from tests.agents.tiny_llama import make_tiny_llama
from tests.runs.conftest import TOY, Coevo
from tests.toy import PROMPT

IDS = [5, 17, 40, 41, 9]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("base") / "tiny-llama")


def make_run(folder: RunFolder, base: Path, *, lora_rank: int, steps: tuple[int, ...]) -> Resolved:
    """A run as it lies there after some steps, made without training."""
    import torch

    (base.parent / "toy.j2").write_text(PROMPT)
    resolved = load_config(
        TOY,
        sets=[
            "arms=static",
            "policy.kind=transformers",
            f"policy.model.path={base}",
            f"policy.model.lora_rank={lora_rank}",
            f"policy.prompt={base.parent / 'toy.j2'}",
        ],
    )
    folder.path.mkdir(parents=True)
    write_json(folder.manifest, make_manifest(resolved, task_sets={}))
    model = TransformersPolicy(resolved.config.policy.model)
    checkpoints = Checkpoints(folder.checkpoints / "static")
    for step in steps:
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(
                    0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(step))
                )
        state = {"state": {"step": step, "env_steps": 100 * step}}
        saved = {"policy": model.state_dict(), "learner": {}, "loop": json.dumps(state)}
        checkpoints.save(step, saved)
        numbers = {"success_rate": 0.1 * step, "mean_score": 0.2, "tasks": 10}
        place = {"event": "eval", "arm": "static", "step": step, "env_steps": 100 * step}
        append_line(folder.metrics, place | {f"eval.{k}": v for k, v in numbers.items()})
    return resolved


@pytest.fixture(scope="module", params=[0, 4], ids=["all weights", "adapter"])
def either(
    request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory
) -> RunFolder:
    """A run of all weights, and one of an adapter."""
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "toy-run")
    make_run(folder, base, lora_rank=request.param, steps=(2, 4))
    return folder


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("whole") / "toy-run")
    make_run(folder, base, lora_rank=0, steps=(2, 4))
    return folder


@pytest.fixture
def run(whole: RunFolder, tmp_path: Path) -> RunFolder:
    """A run of all weights, which a test may change."""
    shutil.copytree(whole.path, tmp_path / "runs" / "toy-run")
    return RunFolder(tmp_path / "runs" / "toy-run")


def logits(model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(input_ids=torch.tensor([IDS])).logits


def trained(folder: RunFolder, base: Path, step: int) -> TransformersPolicy:
    rank = read_json(folder.manifest)["config"]["policy"]["model"]["lora_rank"]
    model = TransformersPolicy(ModelConfig(path=str(base), lora_rank=rank))
    load_evaluation_weights(model, Checkpoints(folder.checkpoints / "static").load_at(step).state)
    return model


def test_transformers_loads_an_export_with_the_trained_weights(
    either: RunFolder, base: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    card = export_model(either, tmp_path / "out")
    assert (card.step, card.env_steps) == (4, 400)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(
        logits(loaded), logits(trained(either, base, 4).model), atol=1e-5, rtol=1e-5
    )
    before = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    assert not torch.allclose(logits(loaded), logits(before), atol=1e-3)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "You stand in a kitchen."
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "<|im_start|>user" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False
    )
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.slow
def test_an_earlier_step_can_be_exported(run: RunFolder, base: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    export_model(run, tmp_path / "out", step=2)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(
        logits(loaded), logits(trained(run, base, 2).model), atol=1e-5, rtol=1e-5
    )
    with pytest.raises(StoreError, match=r"no checkpoint for step 3\. Available: 4, 2"):
        export_model(run, tmp_path / "never", step=3)
    assert not (tmp_path / "never").exists()


@pytest.mark.slow
def test_an_adapter_can_be_exported_alone(base: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = RunFolder(tmp_path / "runs" / "toy-run")
    make_run(folder, base, lora_rank=4, steps=(1,))
    export_model(folder, tmp_path / "out", adapter=True)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(
        logits(loaded), logits(trained(folder, base, 1).model), atol=1e-5, rtol=1e-5
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert "library_name: peft" in (tmp_path / "out" / "README.md").read_text()


def test_the_model_card_lists_evaluations_and_leaves_the_licence_open(
    run: RunFolder, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = export_model(run, tmp_path / "out").weights
    for name, of in (("tested", weights), ("of-others", "0" * 64)):
        folder = Path("evals") / name
        folder.mkdir(parents=True)
        config = {"weights": of, "benchmark": "toy", "policy": "static"}
        summary = {"split": "test", "n_tasks": 30, "samples": 2, "score": 0.5}
        write_json(folder / "config.json", config)
        write_json(folder / "summary.json", {**summary, "success": 0.25, "low": 0.1, "high": 0.4})
    append_line(
        run.metrics,
        {"event": "eval", "arm": "static", "step": 0, "eval.success_rate": 0.05,
         "eval.mean_score": 0.1, "eval.tasks": 10},
    )  # fmt: skip
    card = export_model(run, tmp_path / "out", overwrite=True)
    text = (tmp_path / "out" / "README.md").read_text()
    assert re.search(r"^license:  # choose one", text, re.MULTILINE)
    assert "| warm-up | val | 5.0% |" in text or "| warm-up | val | 5.0%" in text
    assert "| static | val | 40.0% |" in text
    assert "| static | test | 25.0% | 10.0% – 40.0% | 0.500 | 30 | 2 | evals/tested |" in text
    assert "of-others" not in text
    assert "| benchmark | toy |" in text
    assert "| preset | toy.toml |" in text
    assert "| terms of the benchmark's data | not stated |" in text
    assert str(tmp_path) not in text
    assert str(base) not in text
    origin = read_json(tmp_path / "out" / ORIGIN)
    assert origin["weights"] == card.weights == weights
    assert origin["manifest"]["config"]["seed"] == 3


def test_the_card_of_a_model_without_evaluations_claims_no_results(
    run: RunFolder, tmp_path: Path
) -> None:
    run.metrics.unlink()
    export_model(run, tmp_path / "out")
    assert "were not evaluated" in (tmp_path / "out" / "README.md").read_text()


def test_a_full_disk_raises_and_leaves_no_partial_export(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(TransformersPolicy, "save_pretrained", full)
    with pytest.raises(StoreError, match=r"Cannot write .*No space left.*Check the free space"):
        export_model(run, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_folder_that_is_not_an_export_is_not_overwritten(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years")
    with pytest.raises(ConfigError, match="is not an earlier export"):
        export_model(run, tmp_path / "out", overwrite=True)
    (tmp_path / "out" / "thesis.tex").rename(tmp_path / "thesis.tex")
    export_model(run, tmp_path / "out")
    with pytest.raises(ConfigError, match="already contains an export"):
        export_model(run, tmp_path / "out")
    with pytest.raises(ConfigError, match="is a file"):
        export_model(run, tmp_path / "thesis.tex")


class TestCommand:
    """``coevo model export`` of a tiny policy and of a language model."""

    @pytest.fixture
    def beside(self, finished: Path) -> Path:
        return finished.parents[1]

    def test_exporting_a_tiny_policy_is_refused(self, coevo: Coevo, tmp_path: Path) -> None:
        text = coevo("model", "export", "toy-run", str(tmp_path / "out"), code=2)
        assert "trains a tiny policy, which is not a language model" in text
        assert "has no policy 'x'" in coevo(
            "model", "export", "toy-run", str(tmp_path / "out"), "--policy", "x", code=2
        )
        assert not (tmp_path / "out").exists()

    def test_the_command_prints_where_the_model_is(
        self, coevo: Coevo, run: RunFolder, tmp_path: Path
    ) -> None:
        text = coevo("model", "export", str(run.path), str(tmp_path / "out"))
        assert "static of toy-run, step 4, is in" in text
        assert "choose a licence" in text
