"""The sections of a run's settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from coevo_gym.agents.chat.agent import ChatConfig
from coevo_gym.agents.endpoint.endpoint import EndpointConfig
from coevo_gym.agents.lm.language_model import LocalModelConfig, ModelConfig
from coevo_gym.agents.lm.vllm_engine import VLLMConfig
from coevo_gym.agents.lm.vllm_launch import VLLMServersConfig
from coevo_gym.agents.tiny.policy import TinyConfig
from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.panel import is_panel_file
from coevo_gym.core.registry import suggest
from coevo_gym.core.setting_sections import flatten
from coevo_gym.core.task import FrozenDict, FrozenModel, JsonObject
from coevo_gym.curricula.explore.explorer import ExplorerConfig
from coevo_gym.envs.rows.benchmark import RowsBenchmark
from coevo_gym.envs.rows.registration import (
    from_rows,
    may_be_rows,
    name_of_rows,
    register_lazily,
    registered_source,
)
from coevo_gym.envs.rows.source import MEMORY, RowsSource
from coevo_gym.store.approvals import Permission, require_approval
from coevo_gym.trainers.settings import ImitationConfig


def rows_permissions(rows: RowsSource) -> list[Permission]:
    """Return the permissions to run the Python code that a benchmark of rows needs."""
    return [Permission(code) for code in rows.code_origins]


def _make_rows_benchmark(name: str, rows: RowsSource) -> RowsBenchmark:
    """Create the rows benchmark that the settings describe.

    Raises:
        ConfigError: if the file or a function cannot be loaded, or the user has not approved it.
    """
    if rows.file == MEMORY:
        raise ConfigError(
            f"The rows or functions of {name!r} only exist in Python. First call from_rows with "
            f"the same rows and functions and name={name!r}; then coevo_gym.resume continues a run."
        )
    require_approval(*rows_permissions(rows))
    settings = rows.model_dump(include={"max_turns", "timeout_s", "shares"})
    return from_rows(rows.file, name=name, **rows.load_functions(), **settings)


class BenchmarkSettings(FrozenModel):
    """The benchmark and the tasks to train on."""

    name: str = "webshop"
    """Name of the benchmark; see `coevo envs`."""
    subset: str | None = None
    """Name of a part of each split, as the benchmark defines it; none uses the whole split."""
    hold_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training scenarios to set aside as the split ``held_out``, chosen by a fixed
    hash of their names. The run never trains on tasks in this split or explores from them."""
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum steps per episode; none uses the benchmark's default."""
    rows: RowsSource = RowsSource()
    """Your own rows and the functions that judge answers to them, in place of an installed
    benchmark. Without a ``name``, the benchmark has the name of the file."""

    @model_validator(mode="before")
    @classmethod
    def _register_rows(cls, data: Any) -> Any:
        """Register the rows benchmark, which is created on first use."""
        if not isinstance(data, Mapping):
            return data
        try:
            rows = RowsSource.model_validate(data.get("rows", {}))
        except ValidationError:
            return data  # the field's own validation explains the problem
        if rows.file:
            name = str(data.get("name", ""))
            if not may_be_rows(name):  # none, or that of the preset
                name = name_of_rows(rows.file)
            register_lazily(name, partial(_make_rows_benchmark, name, rows))
            return {**data, "name": name}
        source = registered_source(str(data.get("name")))
        return data if source is None else {**data, "rows": source}

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        names = [spec.name for spec in benchmark_specs()]
        if name not in names:
            raise ValueError(f"there is no benchmark {name!r}. {suggest(name, names)}")
        return name


class PolicySettings(FrozenModel):
    """The policy to train."""

    kind: Literal["tiny", "transformers", "vllm", "vllm_server", "openai"] = "tiny"
    """``tiny`` is a small model that scores candidate actions and is trained from scratch. The
    other kinds are chat language models: ``transformers`` and ``vllm`` run them in this process,
    ``vllm_server`` trains them here and samples with vLLM servers, and ``openai`` uses an endpoint,
    whose model can be evaluated but not trained."""
    tiny: TinyConfig = TinyConfig()
    """Size of the tiny policy."""
    model: ModelConfig = ModelConfig()
    """The language model for the kinds ``transformers``, ``vllm`` and ``vllm_server``."""
    vllm: VLLMConfig = VLLMConfig()
    """Settings for sharing the machine between vLLM and the learner."""
    servers: VLLMServersConfig = VLLMServersConfig()
    """The vLLM servers for the kind ``vllm_server``."""
    endpoint: EndpointConfig = EndpointConfig()
    """The endpoint for the kind ``openai``."""
    chat: ChatConfig = ChatConfig()
    """Settings for chatting with a language model."""
    prompt: str | None = None
    """Prompt to use instead of the benchmark's own: a name, such as ``webshop_short`` for small
    models, or the path to a .j2 file."""


class WarmupSettings(ImitationConfig):
    """Settings for the warm-up (imitation of reference solutions), which all arms share."""

    n_tasks: int = Field(default=100, ge=0)
    """Number of native training tasks to imitate, drawn with the run's seed; 0 for none."""
    demonstrations: str | None = None
    """A file of tasks whose solutions are imitated as well, such as the episodes that `coevo play`
    saves for a user. These solutions replace the reference solutions of the same tasks. In a TOML
    file, the path is relative to that file."""


class RolloutSettings(FrozenModel):
    """Settings for running training episodes."""

    group_size: int = Field(default=8, ge=2)
    """Number of episodes per task (K). These episodes are compared with each other."""
    max_envs: int | None = Field(default=None, ge=1)
    """Maximum number of simultaneous episodes; None for the limit of the benchmark's engine, or for
    as many conversations as fit into a language model's key-value caches, if these are fewer. The
    plan (``--dry-run``) shows the number."""
    workers: int = Field(default=0, ge=0)
    """Number of worker processes that run engines in parallel; 0 runs engines in the training
    process. The results are the same either way. Workers speed up ALFWorld on machines with spare
    cores."""


def task_set_name(entry: str) -> str:
    """Return the name of a task set in ``evaluation.final``.

    Example:
        >>> task_set_name("test"), task_set_name("/home/me/my-panel.json")
        ('test', 'my-panel')
    """
    return Path(entry).stem if is_panel_file(entry) else entry


class EvaluationSettings(FrozenModel):
    """The tasks and episodes on which arms are compared."""

    split: Literal["val", "test", "held_out"] = "val"
    """Split to evaluate on. ``test`` is for final results; ``held_out`` contains the training
    scenarios that ``benchmark.hold_out`` sets aside."""
    panel: str | None = None
    """A panel to evaluate on, by name (`coevo panel list`) or as the path of its .json file. Its
    tasks must belong to ``split``, must not be test tasks, and are all played, so ``n_tasks`` and
    ``per_scenario`` do not apply. In a TOML file, a path is relative to that file."""
    n_tasks: int = Field(default=200, ge=1)
    """Maximum number of held-out tasks. The tasks are the same for every seed."""
    per_scenario: int | None = Field(default=None, ge=1)
    """Maximum number of held-out tasks from the same scenario, such as a product or a scene, so
    that no scenario dominates the success rate; none for no limit."""
    n_trained: int = Field(default=0, ge=0)
    """Number of warm-up tasks, and of tasks from an arm's current pool, on which each evaluation
    also measures success, to reveal forgetting and overfitting; 0 for none."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the policy in evaluations; 0 is greedy. Sampling in evaluations does
    not affect sampling in training."""
    samples: int = Field(default=1, ge=1)
    """Episodes per task in each evaluation of a run, including the random baseline's; more than 1
    requires a temperature above 0. For the success rate and its interval, each task's share of
    successful episodes counts as one observation. For `coevo eval`, use --samples instead."""
    last: int = Field(default=1, ge=1)
    """Number of evaluations, counted from the end, that are averaged into an arm's result,
    excluding the warm-up's. A value of 1 uses only the last evaluation."""
    final: tuple[str, ...] = ()
    """Task sets on which the warm-up and each arm are scored once, after the last step: ``test``, a
    subset of the benchmark's test tasks, such as ``test_normal``, ``val`` or ``held_out`` if
    evaluations use another split, or a panel (a name, or the path of its .json file). All tasks of
    each set are played."""

    @field_validator("final")
    @classmethod
    def _check_final(cls, final: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if len(set(map(task_set_name, final))) != len(final):
            raise ValueError("each set of tasks may be listed only once")
        if "train" in final:
            raise ValueError("'train' is not allowed: the policy trains on it. Choose another set.")
        if (split := info.data.get("split")) in final:
            raise ValueError(
                f"{split} tasks are already used for evaluation during training "
                "(evaluation.split). Choose tasks that are evaluated only at the end."
            )
        return final

    @property
    def final_set_names(self) -> tuple[str, ...]:
        """The names of the sets in :attr:`final`; a panel file goes by its file name."""
        return tuple(map(task_set_name, self.final))

    def describe_sampling(self) -> str:
        """Describe how the policy samples, for example ``"greedily, in one episode per task"``."""
        how = f"at temperature {self.temperature:g}" if self.temperature else "greedily"
        episodes = "one episode" if self.samples == 1 else f"{self.samples} episodes"
        return f"{how}, in {episodes} per task"

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"{self.samples} samples from a greedy policy would be identical. Set "
                "evaluation.temperature to a value such as 1.0, or evaluation.samples to 1."
            )
        return self


class StoreSettings(FrozenModel):
    """Settings for the data that a run stores."""

    record: Literal["signals", "all", "none"] = "signals"
    """Episodes whose steps are stored. ``signals``: training episodes of groups that emitted a
    signal. ``all``: all training and evaluation episodes. ``none``: no episodes."""
    checkpoint_every_steps: int = Field(default=5, ge=1)
    """Learner steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of latest checkpoints to keep per arm."""


class PluginSettings(FrozenModel):
    """The user's own plugins."""

    methods: str | None = None
    """Folder of .py files with methods. In a TOML file, the path is relative to that file."""


class ArmSettings(FrozenModel):
    """An arm's method, and the settings that are specific to the arm."""

    method: str = ""
    """Name of the arm's method; defaults to the name of the arm."""
    set: JsonObject = FrozenDict()
    """The arm's own settings by dotted key: ``{"learner.epochs" = 2}``."""

    @field_validator("set")
    @classmethod
    def _flatten(cls, value: JsonObject) -> JsonObject:
        return FrozenDict(flatten(value))


class ExplorerModelSettings(FrozenModel):
    """The language model that explores; used only with ``explorer.kind = model``."""

    kind: Literal["openai", "transformers", "vllm", "policy"] = "openai"
    """``openai`` is an OpenAI-compatible endpoint, ``transformers`` and ``vllm`` run a model on
    this machine, and ``policy`` is the policy being trained, with its weights at the start of a
    round."""
    model: LocalModelConfig = LocalModelConfig()
    """The language model for the kinds ``transformers`` and ``vllm``; it is not trained."""
    vllm: VLLMConfig = VLLMConfig()
    """Settings for sharing the machine between vLLM and the learner."""
    endpoint: EndpointConfig = EndpointConfig()
    """The endpoint for the kind ``openai``."""


class ExplorerSettings(ExplorerConfig):
    """Settings for the explorer, which looks for new tasks in the environment."""

    model: ExplorerModelSettings = ExplorerModelSettings()
    """The explorer's model. This setting and those below apply only to ``kind = model``."""
    history_turns: int | None = Field(default=None, ge=0)
    """Number of past exploration steps that the model sees at each step. With None, the model sees
    as many of the latest steps as fit into 24,000 characters."""
    max_action_tokens: int = Field(default=1024, ge=1)
    """Maximum number of tokens per answer while exploring, including thinking tokens."""
    thinking: bool = True
    """Let the model think before it acts."""


class AnalystModelSettings(ExplorerModelSettings):
    """The language model that answers a method's questions about episodes."""

    kind: Literal["openai", "transformers", "vllm", "policy"] = "policy"
    """``policy`` is the policy being trained, with its current weights, ``openai`` is an
    OpenAI-compatible endpoint, and ``transformers`` and ``vllm`` run a model on this machine."""


class AnalystSettings(FrozenModel):
    """The model that answers a method's questions, such as why an episode failed.

    Only methods that ask a model about episodes use the analyst. Its answers are recorded according
    to ``tape``. The caps in ``advisor`` apply to the explorer and the analyst combined.
    """

    model: AnalystModelSettings = AnalystModelSettings()
    """The model that answers the questions."""
    temperature: float = Field(default=0.5, ge=0)
    """Sampling temperature for the answers."""
    max_answer_tokens: int = Field(default=1_024, ge=1)
    """Maximum number of tokens per answer, including thinking tokens."""
    thinking: bool = False
    """Let the model think before it answers. For the policy being trained,
    ``policy.chat.thinking`` applies instead."""


class EvolverSettings(FrozenModel):
    """Settings for running evolution rounds."""

    overlap: bool = False
    """Run rounds in parallel with training, and apply each round at the first step boundary after
    it finishes. The stream of training tasks then depends on the speed of the machine; a resumed or
    replayed run applies each round at the same step as the original run."""


class TapeSettings(FrozenModel):
    """Settings for recording and replaying model answers in runs that query models."""

    mode: Literal["off", "record", "replay", "fill"] = "fill"
    """``off`` queries the model without storing answers. ``record`` queries the model and stores
    the answers. ``replay`` uses only stored answers. ``fill`` uses stored answers where they
    exist; otherwise, it queries the model and stores the answer."""
    file: str | None = None
    """A JSON Lines file to use instead of the run's own database; for replays, also the ``run.db``
    of another run. In a TOML file, the path is relative to that file."""
