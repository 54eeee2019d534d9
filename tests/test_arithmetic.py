"""The arithmetic of a process: when it can still be chosen, and what is said where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.arithmetic import (
    PORTABLE,
    Arithmetic,
    arithmetic_environment,
    freeze_arithmetic,
    processor_name,
    request_arithmetic,
    warn_if_other_arithmetic,
)
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.runs.config import RunConfig, load_config
from coevo_gym.runs.manifest import arithmetic_in, check_and_record_arithmetic
from coevo_gym.store.folder import RunFolder, read_json, write_json
from tests.processes import run
from tests.runs.conftest import ROOT, TOY

OLD_PROCESSOR = Arithmetic("native", "Old CPU, cpu family 6, model 1, x86_64", "AVX2")


def clean(**variables: str) -> dict[str, str]:
    """This environment without what chooses the arithmetic, and with the variables."""
    own = {name: value for name, value in os.environ.items() if name not in PORTABLE}
    own.pop("COEVO_CFG__ARITHMETIC", None)
    return {**own, **variables}


def last_line_of(code: str, *arguments: str, cwd: Path | None = None, **variables: str) -> Any:
    """Run a program; the last line that it prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=clean(PYTHONPATH=str(ROOT), **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


CHOOSES = """
import json, logging, os, sys
from coevo_gym.core.arithmetic import *
said = []
class Keeps(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("coevo_gym").addHandler(Keeps())
if "import" in sys.argv:
    import torch
if "compute" in sys.argv:
    torch.ones(8, 8) @ torch.ones(8, 8)
request_arithmetic("portable")
here = freeze_arithmetic()
kept = {name: os.environ.get(name) for name in PORTABLE}
warn_if_other_arithmetic("portable", here)
print(json.dumps([here.kind, kept, said]))
"""


@pytest.mark.parametrize("before", [[], ["import"]], ids=["not-imported", "imported"])
def test_arithmetic_can_be_chosen_until_pytorch_computes(before: list[str]) -> None:
    assert last_line_of(CHOOSES, *before) == ["portable", dict(PORTABLE), []]


def test_choosing_arithmetic_after_pytorch_computed_changes_nothing_and_warns() -> None:
    kind, environment, (sentence,) = last_line_of(CHOOSES, "import", "compute", MKL_CBWR="AUTO")
    assert kind == "native"
    assert environment == {"ATEN_CPU_CAPABILITY": None, "MKL_CBWR": "AUTO"}
    assert sentence.startswith("PyTorch has already computed something in this process")
    assert "ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE" in sentence


def test_portable_arithmetic_on_another_architecture_logs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    here = freeze_arithmetic()
    assert here.kind == "native"
    warn_if_other_arithmetic("portable", here)
    (sentence,) = caplog.messages
    assert "needs an x86-64 processor and PyTorch with MKL" in sentence
    assert "aarch64" in sentence


def test_arithmetic_on_a_gpu_is_native_and_includes_its_name() -> None:
    assert freeze_arithmetic("NVIDIA H200")[:2] == ("native", "NVIDIA H200")


def test_native_arithmetic_does_not_change_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in PORTABLE.items():
        monkeypatch.setenv(name, value)
    request_arithmetic("native")
    assert PORTABLE.items() <= os.environ.items()
    assert arithmetic_environment() == PORTABLE
    warn_if_other_arithmetic("native", Arithmetic("portable", "any", "DEFAULT"))
    assert "which is slower" in caplog.text
    monkeypatch.delenv("MKL_CBWR")
    assert arithmetic_environment() == {}


def test_only_portable_arithmetic_gives_equal_bits_on_two_processors() -> None:
    one, other = (Arithmetic("portable", name, "DEFAULT") for name in ("one", "other"))
    assert one.computes_same_bits_as(other)
    native = OLD_PROCESSOR
    assert native.computes_same_bits_as(Arithmetic(*native))
    assert not native.computes_same_bits_as(native._replace(processor="New CPU"))
    assert not native.computes_same_bits_as(native._replace(kernels="AVX512"))
    assert not native.computes_same_bits_as(one)


def test_the_processor_name_includes_its_model() -> None:
    assert processor_name().count(",") >= 1
    assert "unknown" not in processor_name()


SPY = """
import json, os, sys
from importlib.abc import MetaPathFinder

class Spy(MetaPathFinder):
    seen = None
    def find_spec(self, name, path, target=None):
        if name == "torch" and Spy.seen is None:
            Spy.seen = {one: os.environ.get(one) for one in ("ATEN_CPU_CAPABILITY", "MKL_CBWR")}

sys.meta_path.insert(0, Spy())
from coevo_gym import cli
from tests import toy
toy.register()
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(Spy.seen))
"""


def test_commands_choose_the_arithmetic_before_they_import_pytorch(tmp_path: Path) -> None:
    table = (ROOT / "tests" / "runs" / "experiments" / "toy_table.toml").read_text()
    (tmp_path / "table.toml").write_text(table)
    (tmp_path / "toy.toml").write_text(Path(TOY).read_text())
    sets = ["--set=arms=static", "--set=loop.max_steps=1", "--set=loop.evaluate_every_steps=0"]
    for command in (
        ["train", TOY, "--name=run", *sets],
        ["eval", "run"],
        ["experiment", "table.toml", "--seeds=1", "--rows=static", *sets[1:]],
    ):
        assert last_line_of(SPY, *command, cwd=tmp_path) == PORTABLE, command
    manifest = read_json(tmp_path / "runs" / "run" / "manifest.json")
    assert manifest["config"]["arithmetic"] == "portable"
    (stored,) = manifest["arithmetic"]
    assert (stored["kind"], stored["processor"]) == ("portable", processor_name())
    (tmp_path / "runs" / "run" / "summary.json").unlink()
    assert last_line_of(SPY, "resume", "run", cwd=tmp_path) == PORTABLE
    assert read_json(tmp_path / "runs" / "run" / "manifest.json") == manifest


def test_the_default_is_portable_for_the_tiny_policy_and_native_for_language_models() -> None:
    def default(**settings: str) -> str:
        sets = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
        return load_config(None, sets=sets, environ={}).config.arithmetic

    assert default() == RunConfig().arithmetic == "portable"
    assert default(policy__kind="transformers") == default(policy__kind="vllm") == "native"
    assert default(policy__kind="transformers", arithmetic="portable") == "portable"
    (row,) = (
        row
        for row in load_config("quickstart", environ={}).list_settings()
        if row[0] == "arithmetic"
    )
    assert row[1:] == ("portable", "policy.kind")


@pytest.mark.parametrize(
    "stored", [None, 7, ["native"], [{"kind": "native"}], {"kind": "native"}], ids=repr
)
def test_a_damaged_arithmetic_record_in_a_manifest_is_an_error(stored: object) -> None:
    with pytest.raises(StoreError, match="'arithmetic' in the manifest is not valid"):
        arithmetic_in({"arithmetic": stored})


class TestResume:
    """Resuming a run on another processor."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> RunFolder:
        folder = RunFolder(tmp_path / "mine")
        folder.path.mkdir()
        return folder

    def note(self, folder: RunFolder, before: Arithmetic, **options: bool) -> list[str]:
        manifest = {"arithmetic": [before._asdict()]}
        write_json(folder.manifest, manifest)
        return list(check_and_record_arithmetic(folder, manifest, self.here, **options))

    here = Arithmetic("native", "New CPU", "AVX512")

    def stored(self, folder: RunFolder) -> list[str]:
        return [one["processor"] for one in read_json(folder.manifest)["arithmetic"]]

    def test_the_same_processor_gives_no_message(self, folder: RunFolder) -> None:
        assert self.note(folder, self.here) == []
        assert self.stored(folder) == ["New CPU"]

    def test_a_processor_that_rounds_differently_is_refused_unless_ignored(
        self, folder: RunFolder
    ) -> None:
        with pytest.raises(ConfigError) as refused:
            self.note(folder, OLD_PROCESSOR)
        assert str(refused.value) == (
            "mine was computed with native arithmetic (Old CPU, cpu family 6, model 1, x86_64, "
            "AVX2), but this process has native arithmetic (New CPU, AVX512). They round "
            "differently, so the rest of the run would differ from that of an uninterrupted run, "
            "as if random numbers had been drawn again. To continue anyway, run: coevo resume "
            f"{folder.path} --ignore-arithmetic"
        )
        assert self.stored(folder) == ["Old CPU, cpu family 6, model 1, x86_64"]
        (message,) = self.note(folder, OLD_PROCESSOR, ignore=True)
        assert message.endswith("as if random numbers had been drawn again.")
        assert self.stored(folder) == ["Old CPU, cpu family 6, model 1, x86_64", "New CPU"]

    def test_a_portable_run_resumes_on_any_processor(self, folder: RunFolder) -> None:
        self.here = Arithmetic("portable", "New CPU", "DEFAULT")
        assert self.note(folder, self.here._replace(processor="Old CPU")) == []
        assert self.stored(folder) == ["Old CPU", "New CPU"]


def test_coevo_resume_on_another_processor_needs_ignore_arithmetic(
    tmp_path: Path,
) -> None:
    def coevo(*arguments: str, code: int = 0) -> str:
        done = run(["-m", "tests.runs.child", *arguments], cwd=tmp_path, env=clean())
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    sets = ["arms=static", "loop.max_steps=1", "loop.evaluate_every_steps=0", "arithmetic=native"]
    coevo("train", TOY, "--name=run", *(f"--set={item}" for item in sets))
    folder = RunFolder(tmp_path / "runs" / "run")
    folder.summary.unlink()
    manifest = read_json(folder.manifest)
    manifest["arithmetic"] = [OLD_PROCESSOR._asdict()]
    write_json(folder.manifest, manifest)
    assert "--ignore-arithmetic" in coevo("resume", "run", code=2)
    assert "They round differently" in coevo("resume", "run", "--ignore-arithmetic")
    assert folder.summary.is_file()
    assert len(read_json(folder.manifest)["arithmetic"]) == 2
