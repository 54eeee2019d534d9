"""The sections of a run's settings about models that are asked, and about rounds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coevo_gym.agents.endpoint.endpoint import EndpointConfig
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.vllm_engine import VLLMConfig
from coevo_gym.core.task import FrozenModel
from coevo_gym.curricula.explore.settings import ExplorerConfig


class ExplorerModelSettings(FrozenModel):
    """Which language model explores; of ``explorer.kind = model`` only."""

    kind: Literal["openai", "transformers", "vllm", "policy"] = "openai"
    """An OpenAI-compatible endpoint, a model that transformers or vLLM sample from here, or the
    ``policy`` under training itself, as it is when a round begins."""
    model: ModelConfig = ModelConfig()
    """The language model of ``transformers`` and ``vllm``; it is not trained."""
    vllm: VLLMConfig = VLLMConfig()
    """How vLLM shares the machine with the learner."""
    endpoint: EndpointConfig = EndpointConfig()
    """The endpoint of ``openai``."""


class ExplorerSettings(ExplorerConfig):
    """The explorer, which goes back into the environment in a round, and its model."""

    model: ExplorerModelSettings = ExplorerModelSettings()
    """Which model, of ``model``; all that follow are of it alone, too."""
    history_turns: int | None = Field(default=None, ge=0)
    """Past steps of its walk that the model is shown with each view. None: as many of the last ones
    as fit into 24,000 characters."""
    max_action_tokens: int = Field(default=1024, ge=1)
    """Most tokens of an answer in a walk, thoughts included."""
    thinking: bool = True
    """Whether it is to think before it acts."""


class AnalystModelSettings(ExplorerModelSettings):
    """The language model that answers the questions of studies."""

    kind: Literal["openai", "transformers", "vllm", "policy"] = "policy"
    """The ``policy`` under training itself, as it is in the step; an OpenAI-compatible endpoint; or
    a model that transformers or vLLM sample from here."""


class AnalystSettings(FrozenModel):
    """The model that answers the questions of studies, such as why an episode failed.

    Only methods whose studies ask questions use it. Its answers are stored on the tape, and the
    caps in ``advisor`` hold for explorer and analyst together.
    """

    model: AnalystModelSettings = AnalystModelSettings()
    """Which model."""
    temperature: float = Field(default=0.5, ge=0)
    """Sampling temperature of its answers."""
    max_answer_tokens: int = Field(default=1_024, ge=1)
    """Most tokens of an answer, thoughts included."""
    thinking: bool = False
    """Let it think before it answers; the policy under training does as ``policy.chat.thinking``
    says."""


class EvolverSettings(FrozenModel):
    """How rounds are carried out."""

    overlap: bool = False
    """Whether a round runs beside training, and is applied at the first step boundary after it is
    done. What is practised then depends on how fast everything is; a run that is resumed or
    replayed applies it at the same step again."""


class TapeSettings(FrozenModel):
    """What is kept of what models say in rounds; runs that ask none have no tape."""

    mode: Literal["off", "record", "replay", "fill"] = "fill"
    """``off`` asks and keeps nothing. ``record`` asks and keeps what is answered. ``replay`` never
    asks. ``fill`` gives what was kept, asks for the rest, and keeps that, too."""
    file: str | None = None
    """A file of JSON lines to use in place of the run's own database; to replay from, also another
    run's ``run.db``. In a TOML file, a path beside that file."""
