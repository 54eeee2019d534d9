"""The sections of a run's settings."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from coevo_gym.agents.chat.agent import ChatConfig
from coevo_gym.agents.endpoint.endpoint import EndpointConfig
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.vllm_engine import VLLMConfig
from coevo_gym.agents.tiny.policy import TinyConfig
from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.core.registry import suggest
from coevo_gym.core.sections import flat
from coevo_gym.core.task import FrozenDict, FrozenModel, JsonObject
from coevo_gym.curricula.explore.explorer import ExplorerConfig
from coevo_gym.runs.config.keys import current
from coevo_gym.trainers.settings import ImitationConfig


class BenchmarkSettings(FrozenModel):
    """The benchmark and the tasks to practise."""

    name: str = "webshop"
    """Name of the benchmark; see `coevo envs`."""
    subset: str | None = None
    """The benchmark's own name for a part of each split; none for all of it."""
    hold_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training scenarios to set aside, chosen by a fixed hash of their names. Their
    tasks form the split ``held_out``; the run never trains on them or explores from them."""
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum steps of an episode; none for the benchmark's default."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        names = [spec.name for spec in benchmark_specs()]
        if name not in names:
            raise ValueError(f"there is no benchmark {name!r}. {suggest(name, names)}")
        return name


class PolicySettings(FrozenModel):
    """The policy to train."""

    kind: Literal["tiny", "transformers", "vllm", "openai"] = "tiny"
    """``tiny`` is a small scorer of candidate actions, trained from scratch. The others are
    language models that chat: transformers or vLLM sample them, or an ``openai`` endpoint serves
    them. A model behind an endpoint can be evaluated but not trained."""
    tiny: TinyConfig = TinyConfig()
    """Size of the tiny policy."""
    model: ModelConfig = ModelConfig()
    """The language model of ``transformers`` and ``vllm``."""
    vllm: VLLMConfig = VLLMConfig()
    """Settings for sharing the machine between vLLM and the learner."""
    endpoint: EndpointConfig = EndpointConfig()
    """The endpoint of ``openai``."""
    chat: ChatConfig = ChatConfig()
    """Settings of the chat with a language model."""
    prompt: str | None = None
    """Prompt to use instead of the benchmark's own: a name, such as ``webshop_short`` for small
    models, or the path of a .j2 file."""


class WarmupSettings(ImitationConfig):
    """Imitation of reference solutions before any curriculum, once for all arms."""

    n_tasks: int = Field(default=100, ge=0)
    """Native training tasks to imitate, drawn by the seed; 0 for none."""
    demonstrations: str | None = None
    """A file of tasks with solutions to imitate as well, such as the episodes of people that `coevo
    play` stores. For a task in this file, no other reference is imitated. In a TOML file, a path
    relative to that file."""


class RolloutSettings(FrozenModel):
    """Settings for running training episodes."""

    group_size: int = Field(default=8, ge=2)
    """K, episodes per task that are compared with each other."""
    max_envs: int | None = Field(default=None, ge=1)
    """Maximum number of live episodes; None for the limit of the benchmark's engine."""
    workers: int = Field(default=0, ge=0)
    """Worker processes in which engines run in parallel; 0 runs them in the training process. The
    results of episodes are the same. Workers pay off for ALFWorld on machines with spare cores."""


class EvaluationSettings(FrozenModel):
    """The tasks and episodes on which arms are compared."""

    split: Literal["val", "test", "held_out"] = "val"
    """Split to evaluate on. ``test`` is for final results; ``held_out`` contains the training
    scenarios that ``benchmark.hold_out`` sets aside."""
    n_tasks: int = Field(default=200, ge=1)
    """Number of held-out tasks, the same for every seed; all of them if there are fewer."""
    n_trained: int = Field(default=0, ge=0)
    """Number of warm-up tasks, and of tasks from an arm's current pool, to try at each evaluation
    as well. They show what is forgotten and what is overfitted; 0 for none."""
    temperature: float = Field(default=0.0, ge=0)
    """Temperature at which the policy acts in evaluations; 0 is greedy. The random draws of
    evaluations do not change those of training."""
    samples: int = Field(default=1, ge=1)
    """Episodes per task in each evaluation of a run, the random baseline included; more than 1
    needs a temperature above 0. Success is the mean over tasks of the share of episodes that
    succeed, and each task counts once in its interval. `coevo eval` takes --samples instead."""
    last: int = Field(default=1, ge=1)
    """Number of last evaluations whose mean is an arm's result; evaluations of the warm-up do not
    count. With 1 it is the last evaluation."""
    final: tuple[str, ...] = ()
    """Tasks on which the warm-up and each arm are scored once, after the last step: ``test``, or
    the benchmark's own name for a subset of its test tasks, such as ``test_normal``; also ``val``
    or ``held_out``, where evaluations use another split. All tasks of each name are played."""

    @field_validator("final")
    @classmethod
    def _untouched(cls, final: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if len(set(final)) != len(final):
            raise ValueError("each set of tasks may be named only once")
        if "train" in final:
            raise ValueError("train tasks are trained on. Name tasks that training never sees.")
        if info.data.get("split") in final:
            raise ValueError(
                f"{info.data['split']} tasks are evaluated during training (evaluation.split), so "
                "their scores are not final. Name other tasks."
            )
        return final

    @property
    def manner(self) -> str:
        """Describe the policy's sampling, such as ``"greedily, in one episode per task"``."""
        how = f"at temperature {self.temperature:g}" if self.temperature else "greedily"
        episodes = "one episode" if self.samples == 1 else f"{self.samples} episodes"
        return f"{how}, in {episodes} per task"

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"{self.samples} samples of a greedy policy would be the same. Set "
                "evaluation.temperature, such as 1.0, or evaluation.samples = 1."
            )
        return self


class StoreSettings(FrozenModel):
    """Settings for the data that a run stores."""

    record: Literal["signals", "all", "none"] = "signals"
    """Episodes to store step by step. signals: training episodes of groups that fired a signal;
    all: every training and evaluation episode; none."""
    checkpoint_every_steps: int = Field(default=5, ge=1)
    """Steps of the learner between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of latest checkpoints to keep for each arm."""


class PluginSettings(FrozenModel):
    """The user's own plugins."""

    methods: str | None = None
    """Folder of methods: each of its .py files may define some. In a TOML file, a path relative to
    that file."""


class ArmSettings(FrozenModel):
    """An arm that consists of more than a method's name."""

    method: str = ""
    """Name of its method; default: the arm's own name."""
    set: JsonObject = FrozenDict()
    """The arm's own settings by dotted key: ``{"learner.epochs" = 2}``."""

    @field_validator("set")
    @classmethod
    def _by_newer_names(cls, found: JsonObject) -> JsonObject:
        return FrozenDict(current(key, value) for key, value in flat(found))


class ExplorerModelSettings(FrozenModel):
    """The language model that explores; used only with ``explorer.kind = model``."""

    kind: Literal["openai", "transformers", "vllm", "policy"] = "openai"
    """An OpenAI-compatible endpoint, a model that transformers or vLLM sample on this machine, or
    the ``policy`` under training itself, as it is when a round begins."""
    model: ModelConfig = ModelConfig()
    """The language model of ``transformers`` and ``vllm``; it is not trained."""
    vllm: VLLMConfig = VLLMConfig()
    """Settings for sharing the machine between vLLM and the learner."""
    endpoint: EndpointConfig = EndpointConfig()
    """The endpoint of ``openai``."""


class ExplorerSettings(ExplorerConfig):
    """The explorer, which returns to the environment in a round, and its model."""

    model: ExplorerModelSettings = ExplorerModelSettings()
    """The model of the explorer. This setting and those below apply only to ``kind = model``."""
    history_turns: int | None = Field(default=None, ge=0)
    """Past steps of its walk that the model sees with each view. None: as many of the last ones as
    fit into 24,000 characters."""
    max_action_tokens: int = Field(default=1024, ge=1)
    """Maximum tokens of an answer in a walk, thoughts included."""
    thinking: bool = True
    """Let the model think before it acts."""


class AnalystModelSettings(ExplorerModelSettings):
    """The language model that answers the questions of studies."""

    kind: Literal["openai", "transformers", "vllm", "policy"] = "policy"
    """The ``policy`` under training itself, as it is in the step; an OpenAI-compatible endpoint; or
    a model that transformers or vLLM sample on this machine."""


class AnalystSettings(FrozenModel):
    """The model that answers the questions of studies, such as why an episode failed.

    Only methods whose studies ask questions use it. Its answers are stored on the tape, and the
    caps in ``advisor`` hold for explorer and analyst together.
    """

    model: AnalystModelSettings = AnalystModelSettings()
    """The model that answers."""
    temperature: float = Field(default=0.5, ge=0)
    """Sampling temperature of its answers."""
    max_answer_tokens: int = Field(default=1_024, ge=1)
    """Maximum tokens of an answer, thoughts included."""
    thinking: bool = False
    """Let it think before it answers; for the policy under training, ``policy.chat.thinking``
    decides."""


class EvolverSettings(FrozenModel):
    """Settings for carrying out rounds."""

    overlap: bool = False
    """Run a round beside training, and apply it at the first step boundary after it is done. Which
    tasks are then practised depends on the speed of the machine; a run that is resumed or replayed
    applies the round at the same step again."""


class TapeSettings(FrozenModel):
    """Settings for storing the models' answers in rounds. Runs that ask no model have no tape."""

    mode: Literal["off", "record", "replay", "fill"] = "fill"
    """``off`` asks and stores nothing. ``record`` asks and stores the answers. ``replay`` never
    asks. ``fill`` returns stored answers, asks for the rest, and stores those, too."""
    file: str | None = None
    """A file of JSON lines to use in place of the run's own database; for replays also another
    run's ``run.db``. In a TOML file, a path relative to that file."""
