"""A language model policy that samples and learns in this process with transformers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np

from coevo_gym.agents.chat.format import ChatFormat
from coevo_gym.agents.lm.answers import AnswerSampler, Ask, Sampled, SamplingCounts
from coevo_gym.agents.lm.language_model import (
    NEEDS,
    FrozenAdapter,
    LanguageModel,
    ModelConfig,
)
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Completion, Finish, Message, Prompt, Request
from coevo_gym.core.spend import Usage
from coevo_gym.core.trajectory import TokenDecision
from coevo_gym.provision import explain_missing

with explain_missing(*NEEDS):
    import torch
    from torch.nn import Parameter

    from coevo_gym.agents.lm.blocked_weights import BlockedWeights, can_block
    from coevo_gym.agents.lm.causal_lm import (
        half_copy,
        head_of,
        residual_in_fp32,
        update_half_copy,
    )
    from coevo_gym.agents.lm.graphs import GraphCounts, GraphDecoder, usable_bytes
    from coevo_gym.agents.lm.prefix_cache import PrefixCache
    from coevo_gym.agents.lm.sampler import TokenSampler

GRAPHS_ON = "cuda"
"""Device type on which answers are decoded with CUDA graphs."""
_PROMPT_PASSES = 4  # a prompt's forward pass stores no activations, so it may be larger
_KEPT_BYTES = 2**31  # a decoder with more memory is freed before an update of unknown size
_UPDATE_MARGIN = 0.75  # of the usable memory, which is half of the free memory: 1.5 times in all


class TransformersPolicy(LanguageModel):
    """A policy that samples with the weights being trained.

    It samples from softmax(logits / temperature). The end tokens in the model's
    ``generation_config`` end an answer. Top-p, top-k, penalties and other settings in it are
    ignored, because they would make the log-probabilities differ from the trainer's.

    Answers are sampled in a batch that prompts join and answers leave at any time; see
    :class:`coevo_gym.agents.lm.sampler.TokenSampler`. Each token of a conversation is computed only
    once; see :class:`coevo_gym.agents.lm.prefix_cache.PrefixCache`.
    On a GPU, tokens are decoded with CUDA graphs; see
    :class:`coevo_gym.agents.lm.graphs.GraphDecoder`.

    If fp32 weights are trained on a GPU, answers are sampled with a bf16 copy, which is updated
    when ``version`` changes. The trainer's log-probabilities then differ slightly from the
    sampler's, and importance weights correct for this. On a CPU, answers are sampled with a copy of
    the weights in another layout, which is freed before an update; see
    :class:`coevo_gym.agents.lm.blocked_weights.BlockedWeights`.

    Args:
        config: settings of the model and its training.
        thinking: see :class:`coevo_gym.agents.chat.format.ChatFormat`.
        seed: seed for sampling and for a new adapter.

    Attributes:
        format: conversion of messages to token ids.
        sampling_counts: counts of tokens and passes; see
            :class:`coevo_gym.agents.lm.sampler.SamplingCounts`.

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
        self._seed, self._rng = seed, np.random.default_rng(seed)
        self._half_copy: Any = None
        self._half_version = -1
        self._prefixes: PrefixCache | None = None
        self._prefixes_of: tuple[int, ...] = ()
        self._blocked: BlockedWeights | None = None
        self._blocked_of: tuple[int, ...] = ()
        self._weights_of: Any = None
        self._weights: list[dict[str, Parameter | None]] = []  # of each module
        self._decoder: GraphDecoder | None = None
        self._n_frees = 0  # times that the memory used for sampling was freed
        self._before_update = 0  # bytes
        self._update_bytes: int | None = None  # GPU memory that an update takes
        self.sampling_counts, self._counts_taken = SamplingCounts(), SamplingCounts()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample an answer to each prompt, and record the temperature in each decision.

        Gradients left over from the last update are dropped to free their memory. Prompts without a
        seed are drawn with the policy's own generator, in order.

        At temperature 0, log-probabilities are 0. An answer is truncated at the end of the model's
        context (``Finish.LENGTH``); a prompt that fills the context is not answered
        (``Finish.OVERFLOW``). Prompts for training must also fit.

        Raises:
            ConfigError: if a request is not a prompt, or its sampling settings are invalid.
            ModelError: if the chat template rejects its messages.
        """
        prompts = [_require_prompt(request) for request in requests]
        completions = dict[int, Completion]()
        with self.stream() as answers:
            for place, prompt in enumerate(prompts):
                answers.add(place, prompt)
            while len(answers):
                completions.update(answers.step())
        return [completions[place] for place in range(len(prompts))]

    @contextmanager
    def stream(self) -> Iterator[TokenStream]:
        """Sample answers to prompts that may be added while others are sampled.

        A prompt with a seed always gets the same draws. If the weights change while an answer is
        sampled, its tokens so far are kept, and the rest is sampled with the new weights; its
        decision has the version of the first token.
        """
        answers = TokenStream(self)
        try:
            yield answers
        finally:
            answers.close()

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
        """Switch between sampling and training; training frees the memory used for sampling.

        CUDA graphs are kept, with their memory, if there is room for them beside an update. They
        cannot be kept without it, because a graph's addresses are fixed.
        """
        super().train(mode)
        decoder = self._decoder
        if mode:
            self._n_frees += 1
            self._blocked = None
            if self._prefixes is not None:
                self._prefixes.clear()
            if decoder is not None and not self._has_room_beside(decoder):
                decoder.free()
        if decoder is not None and self._update_bytes is None and self.device.type == "cuda":
            if mode:
                torch.cuda.reset_peak_memory_stats(self.device)
                self._before_update = torch.cuda.memory_allocated(self.device)
            else:
                peak = torch.cuda.max_memory_allocated(self.device)
                self._update_bytes = peak - self._before_update

    def _has_room_beside(self, decoder: GraphDecoder) -> bool:
        """Return True if an update fits into memory beside a decoder."""
        if decoder.n_bytes <= _KEPT_BYTES:
            return True
        if self._update_bytes is None:
            return False
        return usable_bytes(self.device) >= _UPDATE_MARGIN * self._update_bytes

    def take_sampling_metrics(self) -> dict[str, float]:
        """Return metrics of all sampling since the last call.

        Returns:
            Prompt tokens that were processed and reused, sampled tokens, guesses of them and how
            many were right, token positions in all passes, and mean rows per pass. On a GPU, also
            the share of tokens that were decoded without a graph, and the number of captured graphs
            with the seconds that this took. Empty if nothing was sampled.
        """
        now = dataclasses.replace(self.sampling_counts)
        counts, self._counts_taken = now - self._counts_taken, now
        if not counts.sampled:
            return {}
        metrics = {
            "prompt_tokens_read": float(counts.read),
            "prompt_tokens_reused": float(counts.reused),
            "tokens_drawn": float(counts.sampled),
            "tokens_fed": float(counts.fed),
        }
        if counts.passes:
            metrics |= {
                "rows_per_pass": counts.rows / counts.passes,
                "tokens_guessed": float(counts.guessed),
                "guesses_right": float(counts.right_guesses),
            }
        if self._decoder is not None:
            captured = self._decoder.counts
            metrics |= {
                "graphless_share": 1.0 - counts.decoded_with_graph / max(1, counts.decoded),
                "graph_captures": float(captured.captures),
                "graph_capture_s": captured.capture_s,
            }
            self._decoder.counts = GraphCounts()
        return metrics

    def frozen_copy(self) -> LanguageModel | FrozenAdapter:
        """Return a frozen copy of the current model; see :meth:`LanguageModel.frozen_copy`."""
        frozen = super().frozen_copy()
        if isinstance(frozen, TransformersPolicy):
            frozen._rng = copy.deepcopy(self._rng)
            frozen._half_copy = frozen._prefixes = frozen._blocked = frozen._decoder = None
            frozen._blocked_of = ()
            frozen.sampling_counts, frozen._counts_taken = SamplingCounts(), SamplingCounts()
        return frozen

    @contextmanager
    def use_seed(self, seed: int) -> Iterator[None]:
        """Use a separate random number generator with the given seed in a ``with`` block.

        The context uses a separate prefix cache, because prefixes computed in different batches
        differ in their last bits.
        """
        before = self._seed, self._rng, self._prefixes, self._prefixes_of
        self._seed, self._rng, self._prefixes = seed, np.random.default_rng(seed), None
        try:
            yield
        finally:
            self._seed, self._rng, self._prefixes, self._prefixes_of = before

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
        self._half_copy = self._prefixes = self._blocked = self._decoder = None
        self._blocked_of = ()
        return self

    def _make_sampler(self) -> AnswerSampler[int]:
        model = self._refresh_sampling_model()
        self._refresh_blocked_weights(model)
        if self.device.type != GRAPHS_ON:
            self._decoder = None
        elif self._decoder is None or self._decoder.model is not model:
            self._decoder = GraphDecoder(model)
        return TokenSampler(
            model,
            stop_ids=self.format.stop_ids,
            max_pass_tokens=_PROMPT_PASSES * self.config.pack_tokens,
            prefixes=self._refresh_prefixes(),
            decoder=self._decoder,
            counts=self.sampling_counts,
        )

    @contextmanager
    def _sampling_pass(self) -> Iterator[None]:
        """Compute in the learner's precision in a ``with`` block, without compiling layers."""
        layout = nullcontext() if self._blocked is None else self._blocked.use()
        with self._autocast(self.device), torch.compiler.set_stance("force_eager"), layout:
            yield

    def _sampling_state(self) -> tuple[int, ...]:
        """Return numbers that change whenever keys and values become invalid."""
        if self._weights_of is not self.model:  # listing modules takes too long for each pass
            modules = self.model.modules()
            self._weights_of = self.model
            self._weights = [module._parameters for module in modules if module._parameters]
        # PyTorch counts in-place changes of weights, so this detects changes by any code.
        weights = chain.from_iterable(own.values() for own in self._weights)
        state = sum(id(weight) + weight._version for weight in weights if weight is not None)
        return self.version, state, self._n_frees

    def _seed_of(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the seed of a prompt's draws."""
        if prompt.seed:
            return (self._seed, *prompt.seed)
        return (int(self._rng.integers(2**63)),)

    def _refresh_prefixes(self) -> PrefixCache:
        """Return the prefix cache, emptied if the weights have changed since it was filled."""
        state = self._sampling_state()
        if self._prefixes is None or self._prefixes_of != state:
            self._prefixes = PrefixCache(self._prefix_cache_bytes())
        self._prefixes_of = state
        return self._prefixes

    def _refresh_blocked_weights(self, model: Any) -> None:
        """Copy the model's weights to another layout, if it helps here and they have changed."""
        state = self._sampling_state()
        if self._blocked_of == state:
            return
        self._blocked = None  # frees the old copy first
        dtype = torch.bfloat16 if self._half else model.dtype
        if can_block(self.device, dtype):
            self._blocked = BlockedWeights(model, dtype, head_of(model))
        self._blocked_of = state

    def _prefix_cache_bytes(self) -> int:
        size = int(self.config.prefix_cache_gib * 2**30)
        if size and self.device.type == "cuda":
            return max(size, usable_bytes(self.device) // 2)
        return size

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
            self._half_copy, self._half_version = (
                residual_in_fp32(half_copy(self.model)),
                self.version,
            )
        elif self._half_version != self.version:
            update_half_copy(self._half_copy, self.model)
            self._half_version = self.version
        return self._half_copy


class TokenStream:
    """Answers that a policy samples together; see :meth:`TransformersPolicy.stream`."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self._policy = policy
        self._sampler: AnswerSampler[int] | None = None  # made for the first prompt that fits
        self._state: tuple[int, ...] = ()
        self._asked: dict[int, _Asked] = {}
        self._overflown: list[int] = []

    def __len__(self) -> int:
        """Return the number of answers that have not been returned."""
        return len(self._asked) + len(self._overflown)

    def add(self, key: int, request: Request) -> None:
        """Add a prompt, whose answer :meth:`step` will return with the given key.

        Raises:
            ConfigError: if the request is not a prompt, or its sampling settings are invalid.
            ModelError: if the chat template rejects its messages.
        """
        prompt, policy = _require_prompt(request), self._policy
        if prompt.after is None:
            ids = policy.format.prompt_ids(prompt.messages, prompt.tools)
        else:
            ids = policy.format.prompt_ids_after(prompt.after, prompt.messages, prompt.tools)
        trained = None
        if prompt.trained is not None:
            trained = policy.format.prompt_ids(prompt.trained, prompt.tools)
        room = policy.max_context - max(len(ids), len(trained or ()))
        if room <= 0:
            self._overflown.append(key)
            return
        temperature, most = prompt.sampling
        sampler = self._refresh_sampler()  # may fail; then no seed shall be drawn
        seed = policy._seed_of(prompt)
        ask = Ask(ids, float(temperature), min(most, room), seed, prompt.episode)
        sampler.add(key, ask)
        self._asked[key] = _Asked(ask, trained, policy.version)

    def step(self) -> list[tuple[int, Completion]]:
        """Sample the next token of each answer, and return the answers that ended."""
        overflown, self._overflown = self._overflown, []
        completions = [(key, Completion("", None, Finish.OVERFLOW)) for key in overflown]
        if not self._asked:
            return completions
        sampler = self._refresh_sampler()
        with self._policy._sampling_pass():
            ended = sampler.step()
        return completions + [(key, self._complete(key, answer)) for key, answer in ended]

    def close(self) -> None:
        """Drop all unfinished answers."""
        if self._sampler is not None:
            self._sampler.withdraw()

    def _refresh_sampler(self) -> AnswerSampler[int]:
        """Return a sampler with the current weights, which goes on with all unfinished answers."""
        state = self._policy._sampling_state()
        if self._sampler is None or self._state != state:
            unfinished = [] if self._sampler is None else self._sampler.withdraw()
            self._policy.model.zero_grad(set_to_none=True)
            self._sampler, self._state = self._policy._make_sampler(), state
            for one in unfinished:
                if not one.begun.ids:  # this sampler draws its first token
                    asked = self._asked[one.key]._replace(version=self._policy.version)
                    self._asked[one.key] = asked
                self._sampler.add(*one)
        return self._sampler

    def _complete(self, key: int, answer: Sampled) -> Completion:
        ask, trained, version = self._asked.pop(key)
        if answer.lost:
            return Completion(answer.lost, None, Finish.LOST)
        form = self._policy.format
        decision = TokenDecision(
            ask.prompt, answer.ids, answer.logprobs, ask.temperature, version, trained
        )
        return Completion(
            form.opened + form.decode(answer.ids),
            decision,
            Finish.STOP if answer.ids[-1] in form.stop_ids else Finish.LENGTH,
            Usage(calls=1, prompt_tokens=len(ask.prompt), completion_tokens=len(answer.ids)),
        )


class _Asked(NamedTuple):
    ask: Ask
    trained: tuple[int, ...] | None
    version: int


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
