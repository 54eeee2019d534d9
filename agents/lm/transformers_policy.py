"""A language model policy that samples and learns in this process with transformers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import numpy as np

from coevo_gym.agents.chat.format import ChatFormat
from coevo_gym.agents.lm.language_model import NEEDS, FrozenAdapter, LanguageModel, ModelConfig
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Completion, Finish, Message, Prompt, Request
from coevo_gym.core.spend import Usage
from coevo_gym.core.trajectory import TokenDecision
from coevo_gym.provision import explain_missing

with explain_missing(*NEEDS):
    import torch

    from coevo_gym.agents.lm.causal_lm import half_copy, update_half_copy
    from coevo_gym.agents.lm.graphs import GraphDecoder
    from coevo_gym.agents.lm.padded import Ask, Sampled, make_graph_decoder, sample_padded
    from coevo_gym.agents.lm.prefix_cache import PrefixCache

GRAPHS_ON = "cuda"
"""Device type on which answers are decoded with CUDA graphs."""
_PROMPT_PASSES = 4  # a prompt's forward pass stores no activations, so it may be larger
_KEPT_BYTES = 2**31  # a decoder with more memory is dropped before updates


class TransformersPolicy(LanguageModel):
    """A policy that samples with the weights being trained.

    It samples from softmax(logits / temperature). The end tokens in the model's
    ``generation_config`` end an answer. Top-p, top-k, penalties and other settings in it are
    ignored, because they would make the log-probabilities differ from the trainer's.

    Answers are sampled in left-padded batches, from which finished rows are removed. Each token of
    a conversation is computed only once; see :class:`coevo_gym.agents.lm.prefix_cache.PrefixCache`.
    On a GPU, tokens are decoded with CUDA graphs; see
    :class:`coevo_gym.agents.lm.graphs.GraphDecoder`.

    If fp32 weights are trained on a GPU, answers are sampled with a bf16 copy, which is updated
    when ``version`` changes. The trainer's log-probabilities then differ slightly from the
    sampler's, and importance weights correct for this.

    Args:
        config: settings of the model and its training.
        thinking: see :class:`coevo_gym.agents.chat.format.ChatFormat`.
        seed: seed for sampling and for a new adapter.

    Attributes:
        format: conversion of messages to token ids.

    Raises:
        ConfigError: if the settings do not fit this machine or this model.
        ImportError: if PyTorch, transformers or peft is not installed.
        ModelError: if the model does not exist, or is not a chat model.

    Example:
        >>> policy = TransformersPolicy(ModelConfig(path="smollm2"), seed=0)  # doctest: +SKIP
        >>> policy.generate([Prompt((Message("user", "Hello!"),))])          # doctest: +SKIP
    """

    def __init__(self, config: ModelConfig, *, thinking: bool | None = None, seed: int = 0) -> None:
        super().__init__(config, seed=seed)
        self.format = ChatFormat(
            self.tokenizer, thinking=thinking, end_ids=_end_ids(self.model.generation_config)
        )
        self._rng = np.random.default_rng(seed)
        self._half_copy: Any = None
        self._half_version = -1
        self._prefixes: PrefixCache | None = None
        self._prefixes_of = (-1, -1)
        self._decoder: GraphDecoder | None = None

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample an answer to each prompt, and record the temperature in each decision.

        Gradients left over from the last update are dropped to free their memory.

        At temperature 0, log-probabilities are 0. An answer is truncated at the end of the model's
        context (``Finish.LENGTH``); a prompt that fills the context is not answered
        (``Finish.OVERFLOW``). Prompts for training must also fit.

        Raises:
            ConfigError: if a request is not a prompt, or its sampling settings are invalid.
            ModelError: if the chat template rejects its messages.
        """
        prompts = [_require_prompt(request) for request in requests]
        asks: dict[int, Ask] = {}
        trained: dict[int, tuple[int, ...]] = {}
        for i, prompt in enumerate(prompts):
            if prompt.after is None:
                ids = self.format.prompt_ids(prompt.messages, prompt.tools)
            else:
                ids = self.format.prompt_ids_after(prompt.after, prompt.messages, prompt.tools)
            longest = len(ids)
            if prompt.trained is not None:
                trained[i] = self.format.prompt_ids(prompt.trained, prompt.tools)
                longest = max(longest, len(trained[i]))
            room = self.max_context - longest
            if room > 0:
                temperature, most = prompt.sampling
                asks[i] = Ask(ids, float(temperature), min(most, room))
        completions = [Completion("", None, Finish.OVERFLOW)] * len(prompts)
        if not asks:
            return completions
        self.model.zero_grad(set_to_none=True)
        sampled = self._sample(list(asks.values()))
        for (i, ask), answer in zip(asks.items(), sampled, strict=True):
            decision = TokenDecision(
                ask.prompt,
                answer.ids,
                answer.logprobs,
                ask.temperature,
                self.version,
                trained.get(i),
            )
            stopped = answer.ids[-1] in self.format.stop_ids
            completions[i] = Completion(
                self.format.opened + self.format.decode(answer.ids),
                decision,
                Finish.STOP if stopped else Finish.LENGTH,
                Usage(calls=1, prompt_tokens=len(ask.prompt), completion_tokens=len(answer.ids)),
            )
        return completions

    def encode_demonstration(
        self, messages: Sequence[Message], text: str, tools: str = ""
    ) -> TokenDecision | None:
        """Encode a prompt and a given answer for training, or return None if they are too long.

        Its log-probabilities are 0, because the answer was not sampled.
        """
        prompt_ids, ids = self.format.prompt_ids(messages, tools), self.format.answer_ids(text)
        if len(prompt_ids) + len(ids) > self.max_context:
            return None
        return TokenDecision(prompt_ids, ids, (0.0,) * len(ids))

    def train(self, mode: bool = True) -> None:
        """Switch between sampling and training; training frees the memory used for sampling."""
        super().train(mode)
        if mode and self._prefixes is not None:
            self._prefixes.clear()
        if mode and self._decoder is not None and self._decoder.n_bytes > _KEPT_BYTES:
            self._decoder = None

    def frozen_copy(self) -> LanguageModel | FrozenAdapter:
        """Return a frozen copy of the current model; see :meth:`LanguageModel.frozen_copy`."""
        frozen = super().frozen_copy()
        if isinstance(frozen, TransformersPolicy):
            frozen._rng = copy.deepcopy(self._rng)
            frozen._half_copy = frozen._prefixes = frozen._decoder = None
        return frozen

    @contextmanager
    def use_seed(self, seed: int) -> Iterator[None]:
        """Use a separate random number generator with the given seed in a ``with`` block.

        The context uses a separate prefix cache, because prefixes computed in different batches
        differ in their last bits.
        """
        before = self._rng, self._prefixes, self._prefixes_of
        self._rng, self._prefixes = np.random.default_rng(seed), None
        try:
            yield
        finally:
            self._rng, self._prefixes, self._prefixes_of = before

    def state_dict(self) -> dict[str, Any]:
        """Return the version, the trained weights and the state of the random number generator."""
        return {**super().state_dict(), "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state from :meth:`state_dict`, including random number generation.

        Raises:
            ConfigError: if the state belongs to another model or adapter.
        """
        super().load_state_dict(state)
        self._rng.bit_generator.state = state["rng"]
        self._half_copy = self._prefixes = self._decoder = None
        return self

    def _sample(self, asks: Sequence[Ask]) -> list[Sampled]:
        model = self._refresh_sampling_model()
        precision = self._autocast(self.device) if model is self.model else nullcontext()
        with precision, torch.compiler.set_stance("force_eager"):  # layers compiled for updates
            return sample_padded(
                model,
                asks,
                stop_ids=self.format.stop_ids,
                seed=int(self._rng.integers(2**63)),
                max_prompt_tokens=_PROMPT_PASSES * self.config.pack_tokens,
                prefixes=self._refresh_prefixes(),
                decoder=self._get_or_make_decoder(model),
            )

    def _get_or_make_decoder(self, model: Any) -> GraphDecoder | None:
        if self.device.type != GRAPHS_ON:
            return None
        if self._decoder is None or self._decoder.model is not model:
            self._decoder = make_graph_decoder(model)
        return self._decoder

    def _refresh_prefixes(self) -> PrefixCache:
        """Return the prefix cache, emptied if the weights have changed since it was filled."""
        # PyTorch counts in-place changes of weights, so this detects changes by any code.
        state = self.version, sum(weight._version for weight in self.parameters())
        if self._prefixes is None:
            self._prefixes = PrefixCache(int(self.config.prefix_cache_gib * 2**30))
        elif self._prefixes_of != state:
            self._prefixes.clear()
        self._prefixes_of = state
        return self._prefixes

    def _refresh_sampling_model(self) -> Any:
        """Return the model to sample from: the model itself or, on a GPU, a bf16 copy.

        The copy is used if fp32 weights are trained in bf16. On a CPU, it would add a rounding
        difference between sampler and learner without saving time, because autocast converts the
        weights once per call.
        """
        trained_in_bf16 = self._half and self.model.dtype != torch.bfloat16
        if not trained_in_bf16 or self.device.type == "cpu":
            return self.model
        if self._half_copy is None:
            self._half_copy, self._half_version = half_copy(self.model), self.version
        elif self._half_version != self.version:
            update_half_copy(self._half_copy, self.model)
            self._half_version = self.version
        return self._half_copy


def _end_ids(config: Any) -> tuple[int, ...]:
    """Return the ids that end an answer according to a model's generation config."""
    ids = config.eos_token_id
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)


def _require_prompt(request: Request) -> Prompt:
    if not isinstance(request, Prompt):
        raise ConfigError(
            f"A language model needs a Prompt, got {type(request).__name__}. Use a ChatAgent."
        )
    temperature, most = request.sampling
    if not temperature >= 0 or temperature == float("inf") or most < 1:
        raise ConfigError(
            "Sampling needs a temperature of at least 0 and max_tokens of at least 1, got "
            f"{temperature} and {most}."
        )
    return request
