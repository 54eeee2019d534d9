"""A language model that is trained in this process and sampled with vLLM servers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, Literal, Self

from coevo_gym.agents.lm.answers import (
    NOTHING,
    AnswerSampler,
    Ask,
    KeyT,
    Sampled,
    SamplingCounts,
    Unfinished,
)
from coevo_gym.agents.lm.language_model import NEEDS, ModelConfig
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.agents.lm.vllm_engine import (
    VLLMConfig,
    check_shapes,
    checkpoint_shapes,
    memory_folder,
    sampling_fields,
)
from coevo_gym.agents.lm.vllm_launch import Served, VLLMServersConfig, check_server_settings
from coevo_gym.agents.lm.vllm_policy import TOLERANCE, model_folder
from coevo_gym.agents.lm.vllm_replicas import Handover, Probe, Replicas
from coevo_gym.core.errors import ModelError
from coevo_gym.core.trajectory import Segment
from coevo_gym.provision import explain_missing

with explain_missing(*NEEDS):
    import torch

    from coevo_gym.agents.lm.causal_lm import pick_device

_PROBED = 64  # tokens that each server must give the learner's log-probabilities
_WAIT_S = 0.05  # longest wait for an answer, in which no prompt can be added
_IDENTIFYING = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
"""Fields of a model's config in which a server's model must agree with the policy's."""


class VLLMServerPolicy(TransformersPolicy):
    """A :class:`TransformersPolicy` that samples with vLLM servers.

    When ``version`` has changed, the current weights are handed over to all servers before the next
    answer: all weights with a LoRA adapter merged, or the adapter alone. Each server must then give
    the learner's log-probabilities for fixed tokens; see :class:`Replicas`.

    All turns of an episode go to the server that has its conversation in its prefix cache, and a
    new episode goes to the server with the fewest running answers. If a server dies, its running
    answers are lost, and so are their episodes; the other episodes go on.

    Servers that this policy starts are stopped by :meth:`close`, or when the process ends. In a
    process that a launcher such as torchrun started, only rank 0 starts them at once; another rank
    starts its own when it first samples.

    Args:
        config: settings of the model and its training.
        servers: the servers; by default, one is started.
        vllm: settings of vLLM; those about memory concern only servers that are started.
        thinking: see :class:`coevo_gym.agents.chat.format.ChatFormat`.
        seed: seed for sampling and for a new adapter.

    Attributes:
        replicas: the servers.

    Raises:
        ConfigError: if the settings do not fit, a port is in use, or a given server cannot be used.
        ImportError: if PyTorch, transformers or peft is not installed, or vLLM cannot be started.
        ModelError: if the model does not exist or is not a chat model, or a server does not start.

    Example:
        >>> servers = VLLMServersConfig(replicas=2)
        >>> policy = VLLMServerPolicy(ModelConfig(path="smollm2"), servers)   # doctest: +SKIP
        >>> policy.generate([Prompt((Message("user", "Hello!"),))])           # doctest: +SKIP
    """

    def __init__(
        self,
        config: ModelConfig,
        servers: VLLMServersConfig | None = None,
        vllm: VLLMConfig | None = None,
        *,
        thinking: bool | None = None,
        seed: int = 0,
    ) -> None:
        servers, vllm = servers or VLLMServersConfig(), vllm or VLLMConfig()
        has_gpu = pick_device(config.device).type == "cuda"
        check_server_settings(config.lora_rank, vllm, servers, has_gpu=has_gpu)
        super().__init__(config, thinking=thinking, seed=seed)
        self._hands_over_adapter = vllm.adapter == "alone"
        self._dtype: Literal["bfloat16", "float32"] = "bfloat16" if self._half else "float32"
        folder = model_folder(self.model.name_or_path)
        self._shapes = checkpoint_shapes(folder)
        text_config = self.model.config.get_text_config()
        served = Served(
            folder,
            {
                name: getattr(text_config, name)
                for name in _IDENTIFYING
                if hasattr(text_config, name)
            },
            self._dtype,
            self.max_context,
            config.lora_rank if self._hands_over_adapter else 0,
            has_gpu,
        )
        width = 4 if self._dtype == "float32" else 2
        memory = memory_folder(2 * width * self.n_parameters)  # for the old and the new weights
        parent = Path(servers.folder) if servers.folder else memory
        self.replicas = Replicas(servers, vllm, served, parent)
        if int(os.environ.get("RANK") or 0) == 0:
            self.replicas.start()

    def close(self) -> None:
        """Stop the servers that this policy has started. The next answer starts them again."""
        self.replicas.close()

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state from :meth:`state_dict`, including random number generation."""
        self.replicas.holds = None
        return super().load_state_dict(state)

    def take_sampling_metrics(self) -> dict[str, float]:
        """Return metrics of all sampling since the last call.

        Returns:
            Sampled tokens, answers that were lost with a server, and restarts of servers. Empty if
            nothing was sampled or lost.
        """
        sampled, counts = super().take_sampling_metrics(), self.replicas.take_counts()
        if not sampled and not any(counts.values()):
            return {}
        return {"tokens_drawn": sampled.get("tokens_drawn", 0.0), **counts}

    def _make_sampler(self) -> AnswerSampler[int]:
        self._sync_weights()
        return ServerSampler(self.replicas, self.format.stop_ids, self.sampling_counts)

    def _sync_weights(self) -> None:
        """Hand this policy's weights over to the servers unless they have them already."""
        self.replicas.start()
        if self.replicas.holds == (self, self.version):
            return
        self.replicas.holds = None
        self.replicas.hand_over(self._write_weights())
        self.replicas.holds = (self, self.version)

    def _write_weights(self) -> Handover:
        """Write the weights or the adapter to a folder that the servers can read.

        Raises:
            ModelError: if the weights do not match the model, or cannot be written.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            folder, probe = self.replicas.folder, self._make_probe()
            handover = Handover(folder, probe, is_adapter=self._hands_over_adapter)
            if handover.file is None:
                self.save_adapter_weights(handover.folder)
                return handover
            weights = {
                name: value.detach().to("cpu", getattr(torch, self._dtype), copy=True).contiguous()
                for name, value in self.weights()
            }
            check_shapes(
                {name: tuple(value.shape) for name, value in weights.items()}, self._shapes
            )
            save_file(weights, handover.file)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"The weights for vLLM's servers could not be written to {self.replicas.folder}: "
                f"{error}. Set policy.servers.folder to a folder with more room."
            ) from error
        return handover

    def _make_probe(self) -> Probe:
        """Compute the log-probabilities of fixed tokens, which vary over the vocabulary."""
        vocabulary = self.model.get_input_embeddings().num_embeddings
        n = min(_PROBED, self.max_context - 1)
        ids = tuple((3 + 7_919 * place) % vocabulary for place in range(n))
        segment = Segment(ids, (False,) + (True,) * (n - 1), (0.0,) * (n - 1))
        with torch.no_grad():
            logps, _ = self.logprobs([segment])
        return Probe(ids, tuple(logps[0].tolist()), TOLERANCE[self._dtype])


class ServerSampler(Generic[KeyT]):
    """An :class:`~coevo_gym.agents.lm.answers.AnswerSampler` that samples with vLLM servers.

    Args:
        replicas: the servers.
        stop_ids: ids that end an answer.
        counts: counts to add to.
    """

    def __init__(self, replicas: Replicas, stop_ids: Sequence[int], counts: SamplingCounts) -> None:
        self._replicas, self._stop_ids, self._counts = replicas, stop_ids, counts
        self._requests: dict[KeyT, tuple[Ask, Sampled, Future[Sampled]]] = {}
        self._ended: SimpleQueue[KeyT] = SimpleQueue()

    def __len__(self) -> int:
        """Return the number of answers that have not been returned."""
        return len(self._requests)

    def add(self, key: KeyT, ask: Ask, begun: Sampled = NOTHING) -> None:
        """Add a prompt; see :class:`~coevo_gym.agents.lm.answers.AnswerSampler`.

        Raises:
            ConfigError: if vLLM does not support the temperature.
        """
        sampling, ended = sampling_fields(ask, self._stop_ids, len(begun.ids)), self._ended
        future = self._replicas.submit(ask, sampling, begun)
        self._requests[key] = ask, begun, future
        future.add_done_callback(lambda _: ended.put(key))

    def step(self) -> list[tuple[KeyT, Sampled]]:
        """Wait shortly for an answer, and return the answers that ended.

        Raises:
            ModelError: if a server could not be brought back, or refused a prompt.
        """
        self._replicas.raise_if_failed()
        answers = list[tuple[KeyT, Sampled]]()
        try:
            key = self._ended.get(timeout=_WAIT_S)
            while True:
                *_, future = self._requests.pop(key)
                answers.append((key, future.result()))
                self._counts.sampled += len(answers[-1][1].ids)
                key = self._ended.get_nowait()
        except Empty:
            return answers

    def withdraw(self) -> list[Unfinished[KeyT]]:
        """Remove all unfinished answers, and return them in the order of addition.

        Tokens that the servers have sampled are dropped, because they arrive with the answer's end.
        """
        requests, self._requests, self._ended = self._requests, {}, SimpleQueue()
        for *_, future in requests.values():
            future.cancel()
        return [Unfinished(key, ask, begun) for key, (ask, begun, _) in requests.items()]
