"""The sections of settings for models that answer questions, and for rounds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coevo_gym.agents.endpoint.endpoint import EndpointConfig
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.vllm_engine import VLLMConfig
from coevo_gym.core.task import FrozenModel
from coevo_gym.curricula.explore.explorer import ExplorerConfig


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
