from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from coevo_gym import cli
from tests.agents.tiny_llama import make_tiny_llama
from tests.processes import start
from tests.toy import PROMPT

ROOT = Path(__file__).parents[2]
TOY = str(Path(__file__).with_name("toy.toml"))


class Child:
    """A ``coevo`` process with the toy benchmark; it is told apart by what it prints."""

    def __init__(self, cwd: Path, *arguments: str, module: str = "tests.runs.child") -> None:
        self.lines: list[str] = []
        self.process = start(["-m", module, *arguments], cwd)

    def wait_for(self, text: str) -> None:
        """Read on until a line holds the text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return
        pytest.fail(f"{text!r} was never printed:\n{''.join(self.lines)}")

    def end(self) -> int:
        """Read the rest; the exit code."""
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        return self.process.wait(timeout=600)

    @property
    def text(self) -> str:
        return "".join(self.lines)


def train_tiny_llama(
    folder: Path, settings: Mapping[str, object], prompt: str = PROMPT
) -> list[str]:
    """The arguments that train a tiny Llama, made in the folder, on the toy benchmark."""
    (folder / "toy.j2").write_text(prompt)
    model = make_tiny_llama(folder / "llama")
    chosen = {**settings, "policy.model.path": model, "policy.prompt": folder / "toy.j2"}
    return ["train", TOY, *(f"--set={key}={value}" for key, value in chosen.items())]


@pytest.fixture
def child(tmp_path: Path) -> Callable[..., Child]:
    return lambda *arguments, **keywords: Child(tmp_path, *arguments, **keywords)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run on the toy benchmark that nothing disturbed."""
    cwd = tmp_path_factory.mktemp("finished")
    done = Child(cwd, "train", TOY)
    assert done.end() == 0, done.text
    (cwd / "output.txt").write_text(done.text)
    return cwd / "runs" / "toy-run"


Coevo = Callable[..., str]


@pytest.fixture
def beside(finished: Path) -> Path:
    """The folder that commands run in; a module may have another."""
    return finished.parents[1]


@pytest.fixture
def coevo(
    beside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Coevo:
    """Runs the command; returns what it printed, of JSON that alone."""
    monkeypatch.chdir(beside)

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["coevo", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        done = capsys.readouterr()
        assert exit_.value.code == code, done.out + done.err
        return done.out if "--json" in arguments else done.out + done.err

    return run
