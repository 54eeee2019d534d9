"""The sections of a run's settings."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from coevo_gym.agents.chat.agent import ChatConfig
from coevo_gym.agents.endpoint.endpoint import EndpointConfig
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.vllm_engine import VLLMConfig
from coevo_gym.agents.tiny.policy import TinyConfig
from coevo_gym.config.keys import current, flat, suggest
from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.core.task import FrozenDict, FrozenModel, JsonObject
from coevo_gym.trainers.settings import ImitationConfig


class BenchmarkSettings(FrozenModel):
    """What is practised."""

    name: str = "webshop"
    """Name of the benchmark; see `coevo envs`."""
    subset: str | None = None
    """The benchmark's own name for a part of each split; none for all of it."""
    hold_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training scenarios that are set aside, chosen by a fixed hash of their names:
    their tasks are the split ``held_out``, and are never trained on or explored from."""
    max_steps: int | None = Field(default=None, ge=1)
    """Most steps of an episode; none for the benchmark's default."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        names = [spec.name for spec in benchmark_specs()]
        if name not in names:
            raise ValueError(f"there is no benchmark {name!r}. {suggest(name, names)}")
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
    """Prompt to use instead of the benchmark's own: a name, such as ``webshop_short`` for small
    models, or the path of a .j2 file."""


class WarmupSettings(ImitationConfig):
    """Imitation of reference solutions before any curriculum, once for all arms."""

    n_tasks: int = Field(default=100, ge=0)
    """Native training tasks to imitate, drawn by the seed; 0 for none."""
    demonstrations: str | None = None
    """A file of tasks with solutions to imitate as well, such as `coevo play` keeps of people's
    episodes; of a task in it, no other reference is imitated. In a TOML file, a path beside that
    file."""


class RolloutSettings(FrozenModel):
    """How training episodes run."""

    group_size: int = Field(default=8, ge=2)
    """K, episodes of one task that are judged against each other."""
    max_envs: int | None = Field(default=None, ge=1)
    """Most episodes alive at once; None for what the benchmark's engine bears."""
    workers: int = Field(default=0, ge=0)
    """Worker processes that engines run in, beside each other; 0 for the process that trains. What
    comes of episodes is the same. It pays for ALFWorld where there are cores to spare."""


class EvaluationSettings(FrozenModel):
    """What arms are compared on."""

    split: Literal["val", "test", "held_out"] = "val"
    """Split to evaluate on; ``test`` is for the last word on a method, ``held_out`` is made of the
    training scenarios that ``benchmark.hold_out`` sets aside."""
    n_tasks: int = Field(default=200, ge=1)
    """Held-out tasks, the same ones for every seed; all of them if there are fewer."""
    n_trained: int = Field(default=0, ge=0)
    """So many tasks of the warm-up, and so many of an arm's pool as it is then, are tried at each
    evaluation as well, to see what is forgotten and what is overfitted; 0 for none."""
    temperature: float = Field(default=0.0, ge=0)
    """Temperature at which the policy acts in evaluations; 0 is greedy. What evaluations draw does
    not change what training draws."""
    samples: int = Field(default=1, ge=1)
    """Episodes per task in each evaluation of a run, the random baseline included; more than 1
    needs a temperature above 0. Success is the mean over tasks of the share of episodes that
    succeed, and each task counts once in its interval. `coevo eval` takes --samples instead."""
    last: int = Field(default=1, ge=1)
    """An arm's number is the mean over so many of its last evaluations; those of the warm-up are
    none of them. With 1 it is that of the end."""
    final: tuple[str, ...] = ()
    """Tasks on which the warm-up and each arm are scored once, after the last step: ``test``, or
    the benchmark's own name for a subset of its test tasks, such as ``test_normal``; also ``val``
    or ``held_out``, where evaluations use another split. All tasks of each name are played."""

    @field_validator("final")
    @classmethod
    def _untouched(cls, final: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if len(set(final)) != len(final):
            raise ValueError("each set of tasks may be named once")
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
        """Describe how the policy acts, such as ``"greedily, in one episode per task"``."""
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
    """What is kept of a run."""

    record: Literal["signals", "all", "none"] = "signals"
    """Episodes to store step by step. signals: training episodes of groups that fired a signal;
    all: every training and evaluation episode; none."""
    checkpoint_every_steps: int = Field(default=5, ge=1)
    """Steps of the learner between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Latest checkpoints to keep of each arm."""


class PluginSettings(FrozenModel):
    """What of one's own is used."""

    methods: str | None = None
    """Folder of methods: each of its .py files may define some. In a TOML file, a path beside that
    file."""


class ArmSettings(FrozenModel):
    """An arm that is more than a method's name."""

    method: str = ""
    """Name of its method; the arm's own if it is left out."""
    set: JsonObject = FrozenDict()
    """What it sets otherwise than the run, by dotted key: ``{"learner.epochs" = 2}``."""

    @field_validator("set")
    @classmethod
    def _by_newer_names(cls, found: JsonObject) -> JsonObject:
        return FrozenDict(current(key, value) for key, value in flat(found))
