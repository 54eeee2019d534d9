"""A language model that is trained in this process and sampled with vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from coevo_gym.agents.lm.answers import AnswerSampler, Ask, run_to_end
from coevo_gym.agents.lm.language_model import NEEDS, ModelConfig
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.agents.lm.vllm_engine import (
    VLLMConfig,
    VLLMEngine,
    VLLMSampler,
    check_vllm_settings,
    import_vllm,
)
from coevo_gym.core.errors import ModelError
from coevo_gym.core.trajectory import Segment
from coevo_gym.provision import explain_missing

with explain_missing(*NEEDS):
    import torch
    from transformers.utils.hub import cached_file

    from coevo_gym.agents.lm.causal_lm import pick_device


TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Maximum mean difference in nats between vLLM's log-probabilities and the learner's, by dtype.

Correct weights give 1e-5 in float32 and 0.03 to 0.08 in bfloat16; weights that were changed by 2%
of their size and not loaded give 0.4 to 0.6 (SmolLM2-135M on a CPU). In bfloat16, the probe
therefore detects wrong weights, but not weights that are one small step old.
"""
_PROBED = 8


class VLLMPolicy(TransformersPolicy):
    """A :class:`TransformersPolicy` that samples with a :class:`VLLMEngine`.

    When ``version`` has changed, the current weights are loaded into the engine before the next
    answer: all weights with a LoRA adapter merged, or the adapter alone. A few tokens are then
    sampled, and their log-probabilities are compared with the learner's.

    On a GPU, log-probabilities differ from the learner's by the rounding of bfloat16. GPU-specific
    paths are not covered by the tests. Weights are rounded when they are transferred, and most
    steps with a small learning rate are below half of bfloat16's last digit. Of the change made by
    1, 10 and 50 steps in one direction, 3%, 33% and 92% arrive with an adapter (rank 64, alpha
    64, learning rate 1e-5), and 3%, 19% and 65% without (1e-6); for weights that were in
    bfloat16 and have a standard deviation of 0.02. An adapter that is handed over alone is rounded
    by itself, so its changes arrive. The learner loses nothing, but answers come from
    a policy that lags behind: see ``learner.old_logprobs``. ``vllm`` has the settings for sharing
    the machine between the engine and the learner.

    Raises:
        ConfigError, ImportError, ModelError: as :class:`TransformersPolicy`; also if vLLM is not
            installed or does not support the model or the settings.

    Example:
        >>> policy = VLLMPolicy(ModelConfig(path="smollm2"), VLLMConfig())   # doctest: +SKIP
        >>> policy.generate([Prompt((Message("user", "Hello!"),))])          # doctest: +SKIP
    """

    def __init__(
        self,
        config: ModelConfig,
        vllm: VLLMConfig | None = None,
        *,
        thinking: bool | None = None,
        seed: int = 0,
    ) -> None:
        vllm = vllm or VLLMConfig()
        import_vllm()  # before the model, which may have to be downloaded
        has_gpu = pick_device(config.device).type == "cuda"
        check_vllm_settings(config.lora_rank, vllm, has_gpu=has_gpu)
        super().__init__(config, thinking=thinking, seed=seed)
        dtype: Literal["bfloat16", "float32"] = "bfloat16" if self._half else "float32"
        self._sleeps, self._hands_over_adapter = vllm.sleep, vllm.adapter == "alone"
        self.engine = VLLMEngine(
            model_folder(self.model.name_or_path),
            vllm,
            max_context=self.max_context,
            dtype=dtype,
            lora_rank=config.lora_rank if self._hands_over_adapter else 0,
        )
        self._tolerance = TOLERANCE[dtype]

    def train(self, mode: bool = True) -> None:
        """Switch between sampling and training; the engine may sleep during training."""
        super().train(mode)
        if mode and self._sleeps:
            self.engine.sleep()

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state from :meth:`state_dict`, including random number generation."""
        self.engine.holds = None
        return super().load_state_dict(state)

    def _sampling_state(self) -> tuple[int, ...]:
        return (*super()._sampling_state(), self.engine.n_sleeps)

    def _make_sampler(self) -> AnswerSampler[int]:
        self._sync_weights()
        return VLLMSampler(self.engine, self.format.stop_ids, self.sampling_counts)

    def _sync_weights(self) -> None:
        """Load this policy's weights into the shared engine unless they are already loaded."""
        if self.engine.holds == (self, self.version):
            return
        if self._hands_over_adapter:
            self.engine.load_adapter(self.save_adapter_weights)
        else:
            self.engine.load_weights(self.weights)
        self._check_logprobs()
        self.engine.holds = (self, self.version)

    def _check_logprobs(self) -> None:
        """Compare the engine's log-probabilities of a few sampled tokens with the learner's.

        Raises:
            ModelError: if they differ by more than :data:`TOLERANCE`.
        """
        vocabulary = self.model.get_input_embeddings().num_embeddings
        prompt = tuple(token % vocabulary for token in range(3, 100, 12))
        probe = VLLMSampler[int](self.engine, stop_ids=())
        probe.add(0, Ask(prompt, 1.0, _PROBED))
        ((_, answer),) = run_to_end(probe)
        sampled = (False,) * len(prompt) + (True,) * len(answer.ids)
        segment = Segment(prompt + answer.ids, sampled, answer.logprobs)
        with torch.no_grad():
            own, _ = self.logprobs([segment])
        gap = (own[0] - torch.tensor(answer.logprobs)).abs().mean().item()
        if not gap <= self._tolerance:
            raise ModelError(
                f"vLLM's log-probabilities differ from the learner's by {gap:.2g} nats on "
                f"average, which exceeds the limit of {self._tolerance}. vLLM may use different "
                "weights or numerics. Set policy.kind = 'transformers' for this model."
            )


def model_folder(source: str) -> Path:
    """Return a model's local folder, given its hub id or a path."""
    if Path(source).is_dir():
        return Path(source)
    config = cached_file(source, "config.json", local_files_only=True)
    assert config is not None
    return Path(config).parent
