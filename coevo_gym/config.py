"""The settings of a run: one typed tree, and where each value came from.

A value is taken from, in this order, the defaults below, a preset or TOML file, the environment
(``COEVO_CFG__SECTION__KEY``) and the command line (``--set section.key=value``); later ones win.
A section with a name may be given by its name alone: ``benchmark=bfcl``.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import (
    BaseModel,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from coevo_gym.agents.chat.agent import ChatConfig
from coevo_gym.agents.endpoint.endpoint import EndpointConfig
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.vllm_engine import VLLMConfig
from coevo_gym.agents.tiny.policy import TinyConfig
from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel
from coevo_gym.curricula.methods.coevolve import CoEvolveConfig
from coevo_gym.curricula.registry import PRESETS as CURRICULA
from coevo_gym.trainers.parts import LoopConfig
from coevo_gym.trainers.settings import GRPOConfig, ImitationConfig

DEFAULT_ENV_STEPS = 100_000
ENVIRONMENT = "COEVO_CFG__"
PRESETS = Path(__file__).parent / "presets"


class BenchmarkSettings(FrozenModel):
    """What is practised."""

    name: str = "webshop"
    """Name of the benchmark; see `coevo envs`."""
    subset: str | None = None
    """The benchmark's own name for a part of each split; none for all of it."""
    max_steps: int | None = Field(default=None, ge=1)
    """Most steps of an episode; none for the benchmark's default."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        names = [spec.name for spec in benchmark_specs()]
        if name not in names:
            raise ValueError(f"there is no benchmark {name!r}. {_suggest(name, names)}")
        return name


class PolicySettings(FrozenModel):
    """Who learns."""

    kind: Literal["tiny", "transformers", "vllm", "openai"] = "tiny"
    """``tiny`` is a small scorer of candidate actions, trained from scratch. The others are
    language models that are talked to: sampled by transformers or by vLLM, or behind an
    ``openai`` endpoint, which can be evaluated but not trained."""
    tiny: TinyConfig = TinyConfig()
    """Size of the tiny policy."""
    model: ModelConfig = ModelConfig()
    """The language model of ``transformers`` and ``vllm``."""
    vllm: VLLMConfig = VLLMConfig()
    """How vLLM shares the machine with the learner."""
    endpoint: EndpointConfig = EndpointConfig()
    """The endpoint of ``openai``."""
    chat: ChatConfig = ChatConfig()
    """How a language model is talked to."""
    prompt: str | None = None
    """Prompt file to use instead of the benchmark's own."""


class WarmupSettings(ImitationConfig):
    """Imitation of reference solutions before any curriculum, once for all arms."""

    n_tasks: int = Field(default=100, ge=0)
    """Native training tasks to imitate, drawn by the seed; 0 for no warm-up."""


class ExplorerSettings(FrozenModel):
    """Who goes back into the environment in a round."""

    kind: Literal["scripted"] = "scripted"
    """``scripted`` repeats part of the agent's way and goes on at random."""
    walks: int = Field(default=2, ge=1)
    """Walks for each context."""
    max_steps: int = Field(default=18, ge=1)
    """Most steps of a walk."""


class RolloutSettings(FrozenModel):
    """How training episodes run."""

    group_size: int = Field(default=8, ge=2)
    """K, episodes of one task that are judged against each other."""
    max_envs: int | None = Field(default=None, ge=1)
    """Most episodes alive at once; None for what the benchmark's engine bears."""


class EvaluationSettings(FrozenModel):
    """What arms are compared on."""

    split: Literal["val", "test"] = "val"
    """Held-out split; ``test`` is for the last word on a method."""
    n_tasks: int = Field(default=200, ge=1)
    """Held-out tasks, the same ones for every seed; all of them if there are fewer."""


class StoreSettings(FrozenModel):
    """What is kept of a run."""

    record: Literal["signals", "all", "none"] = "signals"
    """Training episodes to keep: those of groups that fired a signal, all, or none."""
    checkpoint_every_steps: int = Field(default=5, ge=1)
    """Steps of the learner between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Latest checkpoints to keep of each arm."""


class RunConfig(FrozenModel):
    """All settings of a run.

    Every arm is a curriculum that trains its own copy of one warmed-up policy, from one initial
    task set and with one budget, so that arms differ in nothing but how tasks evolve.
    """

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the folder under runs/."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything in the run."""
    arms: tuple[str, ...] = Field(default=("static", "coevolve"), min_length=1)
    """Curricula to train with, in order; the run is about the last one."""
    benchmark: BenchmarkSettings = BenchmarkSettings()
    policy: PolicySettings = PolicySettings()
    warmup: WarmupSettings = WarmupSettings()
    explorer: ExplorerSettings = ExplorerSettings()
    curriculum: CoEvolveConfig = CoEvolveConfig()
    rollout: RolloutSettings = RolloutSettings()
    learner: GRPOConfig = GRPOConfig()
    loop: LoopConfig = LoopConfig(max_env_steps=DEFAULT_ENV_STEPS)
    evaluation: EvaluationSettings = EvaluationSettings()
    store: StoreSettings = StoreSettings()

    @model_validator(mode="before")
    @classmethod
    def _complete_loop(cls, data: Any) -> Any:
        """``loop.seed`` is the run's seed unless it is set, and there is always an end."""
        if not isinstance(data, Mapping):
            return data
        loop = data.get("loop", {})
        loop = loop.model_dump(exclude_unset=True) if isinstance(loop, LoopConfig) else loop
        if not isinstance(loop, Mapping):
            return data
        end = {} if "max_steps" in loop else {"max_env_steps": DEFAULT_ENV_STEPS}
        return {**data, "loop": {"seed": data.get("seed", 0), **end, **loop}}

    @field_validator("arms")
    @classmethod
    def _known_arms(cls, arms: tuple[str, ...]) -> tuple[str, ...]:
        for arm in arms:
            if arm not in CURRICULA:
                raise ValueError(f"there is no curriculum {arm!r}. {_suggest(arm, CURRICULA)}")
        if len(set(arms)) != len(arms):
            raise ValueError("each curriculum may be named once")
        return arms

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if "evolve" in self.curriculum.model_fields_set:
            raise ValueError(
                "curriculum.evolve is decided by each arm. List the curricula in arms: "
                f"{', '.join(CURRICULA)}"
            )
        if self.loop.max_steps is None and self.loop.max_env_steps is None:
            raise ValueError("loop: set max_steps, max_env_steps, or both; training needs an end")
        return self

    def to_json(self) -> dict[str, Any]:
        """The tree as JSON; ``RunConfig.model_validate`` reads it back."""
        return self.model_dump(mode="json", exclude={"curriculum": {"evolve"}})


class Setting(NamedTuple):
    """A value and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Resolved:
    """A config with the origin of each value.

    Attributes:
        config: the tree.
        origins: where each value that is not a default came from, by dotted key.
    """

    config: RunConfig
    origins: Mapping[str, str]

    def rows(self) -> list[tuple[str, Any, str]]:
        """Dotted key, value and origin of every setting, in the order of the tree."""
        values = dict(_flat(self.config.to_json()))
        origins = {"loop.seed": "seed", **self.origins}
        return [
            (key, values[key], origins.get(key, "default"))
            for key in _leaves(RunConfig)
            if key in values
        ]


def load_config(
    source: str | None, *, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Resolved:
    """Resolve the settings of a run.

    Args:
        source: name of a preset, or path of a TOML file; None for neither.
        sets: ``"section.key=value"`` each, as on the command line.
        environ: environment variables; default: those of this process.

    Raises:
        ConfigError: naming the key, its origin and what may have been meant.
    """
    merged = {
        **(_from_file(source) if source else {}),
        **_from_environment(os.environ if environ is None else environ),
        **_from_command_line(sets),
    }
    origins = {key: setting.origin for key, setting in merged.items()}
    tree: dict[str, Any] = {}
    for key, setting in merged.items():
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = setting.value
    try:
        return Resolved(RunConfig.model_validate(tree), origins)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, merged))) from None


def preset_names() -> list[str]:
    """Names of the presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def _from_file(source: str) -> dict[str, Setting]:
    is_file = source.endswith(".toml") or os.sep in source
    path = Path(source) if is_file else PRESETS / f"{source}.toml"
    if not is_file and not path.is_file():
        raise ConfigError(
            f"There is no preset {source!r}. {_suggest(source, preset_names())} "
            "A file of your own is named with its .toml."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason}.") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    origin = str(path) if is_file else f"preset {source}"
    inherited = _from_preset(data.pop("extends", None), origin)
    settings = inherited | dict(_settings_of(data, "", origin))
    if "name" not in data:
        settings["name"] = Setting(path.stem, origin)
    return settings


def _from_preset(name: Any, origin: str) -> dict[str, Setting]:
    """The settings of the preset that a file extends, if it extends one."""
    if name is None:
        return {}
    if name not in preset_names():
        hint = _suggest(str(name), preset_names())
        raise ConfigError(f"{origin} extends {name!r}, which is no preset. {hint}")
    return _from_file(name)


def _settings_of(
    data: Mapping[str, Any], prefix: str, origin: str
) -> Iterator[tuple[str, Setting]]:
    """The values of a parsed file by dotted key."""
    leaves = _leaves(RunConfig)
    for name, value in data.items():
        key = f"{prefix}{name}" if isinstance(value, Mapping) else _full(f"{prefix}{name}")
        if key in leaves:
            yield key, Setting(_typed(key, _parse(key, value), origin), origin)
        elif isinstance(value, Mapping) and any(leaf.startswith(f"{key}.") for leaf in leaves):
            yield from _settings_of(value, f"{key}.", origin)
        else:
            raise _unknown(key, origin)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    settings = {}
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT):
            key = _full(name.removeprefix(ENVIRONMENT).lower().replace("__", "."))
            origin = f"environment variable {name}"
            settings[key] = Setting(_parse(key, environ[name], origin), origin)
    return settings


def _from_command_line(sets: Sequence[str]) -> dict[str, Setting]:
    settings = {}
    for item in sets:
        key, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"--set takes section.key=value, actual: {item!r}.")
        key, origin = _full(key.strip()), "command line"
        settings[key] = Setting(_parse(key, text.strip(), origin), origin)
    return settings


def _full(key: str) -> str:
    """The dotted key of a value; that of a section stands for the section's name."""
    named = f"{key}.name"
    return named if named in _leaves(RunConfig) else key


def _parse(key: str, value: Any, origin: str = "") -> Any:
    """``none`` and comma-separated lists; the model reads everything else."""
    leaves = _leaves(RunConfig)
    if key not in leaves:
        raise _unknown(key, origin)
    if not isinstance(value, str):
        return value
    annotation = leaves[key]
    if type(None) in get_args(annotation) and value.lower() == "none":
        return None
    if get_origin(annotation) is tuple:
        items = (item.strip(" \"'") for item in value.strip("[]() ").split(","))
        return tuple(item for item in items if item)
    return value


def _typed(key: str, value: Any, origin: str) -> Any:
    """A value of a file, which must be of its setting's type: true is no 1, and "3" no 3.

    The command line and the environment know texts only, so the model reads those as it can.
    """
    try:
        TypeAdapter(_leaves(RunConfig)[key]).validate_json(
            json.dumps(value, default=str), strict=True
        )
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise ConfigError(f"{key} = {value!r} (from {origin}): {problem}") from None
    return value


def _unknown(key: str, origin: str) -> ConfigError:
    leaves = list(_leaves(RunConfig))
    last = key.rpartition(".")[2]
    close = get_close_matches(key, leaves, n=1, cutoff=0.75)
    close = close or [leaf for leaf in leaves if leaf.rpartition(".")[2] == last]
    close = close or get_close_matches(key, leaves, n=1)
    hint = "`coevo config show quickstart` lists all settings."
    if close:
        hint = f"Did you mean {' or '.join(close)}?"
    return ConfigError(f"There is no setting {key!r} (from {origin}). {hint}")


def _suggest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Choose one of: {', '.join(known)}."


def _explain(error: ValidationError, merged: Mapping[str, Setting]) -> Iterator[str]:
    """One line for each problem: the key, its value, where it came from and what is wrong.

    A problem of a value that nobody set follows from another one, and is left out beside that.
    """
    consequences = []
    named = False
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ")
        key = next((k for k in _prefixes(problem["loc"]) if k in merged), None)
        key = key or next((k for k in merged if message.startswith(k)), None)
        if key is None:
            consequences.append(message)
        else:
            named = True
            value, origin = merged[key]
            yield f"{key} = {value!r} (from {origin}): {message}"
    if not named:
        yield from consequences


def _prefixes(location: Sequence[int | str]) -> Iterator[str]:
    """Dotted keys of a place in the tree, the longest first."""
    parts = [str(part) for part in location]
    for length in range(len(parts), 0, -1):
        yield ".".join(parts[:length])


def _leaves(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Annotations of all settings by dotted key."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found |= _leaves(annotation, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = annotation
    return found


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
