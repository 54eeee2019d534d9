"""A vLLM engine in this process that maps prompt token ids to sampled token ids.

The engine shares the process with the learner, so new weights reach it as tensors and not over the
network. Environment variables and the random generators of Python, numpy and PyTorch are
restored after the engine is built. Some changes remain: ``torch.distributed`` is initialised, vLLM
configures its own logger (errors, to stderr, unless ``VLLM_LOGGING_LEVEL`` and
``VLLM_LOGGING_STREAM`` say otherwise), and the CPU build binds the process to the cores in
``VLLM_CPU_OMP_THREADS_BIND`` and turns ``torch.set_num_threads`` into a no-op. Only one engine can
exist at a time. The engine does not use the network, because the model is a folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np
from pydantic import Field

from coevo_gym.agents.lm.answers import NOTHING, Ask, Sampled, SamplingCounts, Unfinished
from coevo_gym.core.errors import ConfigError, ModelError
from coevo_gym.core.task import FrozenModel
from coevo_gym.provision import install_hint

if TYPE_CHECKING:
    from torch import Tensor

KeyT = TypeVar("KeyT", bound=Hashable)
_Memory = Literal["weights", "kv_cache"]
LM_HEAD = "lm_head.weight"
COLDEST = 0.01
"""Lowest temperature above 0 that vLLM supports."""
_SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
_DEFAULTS = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


class VLLMConfig(FrozenModel):
    """Settings for sharing the machine between the engine and the learner."""

    gpu_memory_utilization: float = Field(default=0.45, gt=0, le=1)
    """Share of the device's memory for vLLM's weights and cache; the learner uses the remainder."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Size of the key-value cache in GiB; None for all memory left within
    ``gpu_memory_utilization``. Set this size on a CPU, where ``gpu_memory_utilization`` is a
    fraction of the machine's RAM."""
    enforce_eager: bool = False
    """Start faster, without compiled kernels and CUDA graphs. Decoding is then slower."""
    sleep: bool = False
    """True to free vLLM's memory during updates, for a GPU. Its weights are loaded again before the
    next answer."""
    adapter: Literal["merged", "alone"] = "merged"
    """The weights that vLLM gets after an update of a LoRA adapter: all weights, with the adapter
    ``merged``, or the adapter ``alone``. vLLM then adds the adapter to its own copy of the model in
    each step. This hands over much less and does not round the adapter's changes to the digits of
    the model's weights, but sampling is somewhat slower."""


def import_vllm() -> Any:
    """Import vLLM, and undo its changes to the environment and the random number generators.

    Raises:
        ImportError: if vLLM is not installed.
    """
    with _preserve_process_state():
        try:
            import vllm
        except ModuleNotFoundError as error:
            raise ImportError(
                f"This policy needs vLLM. {install_hint('vllm')} (requires Linux and an NVIDIA "
                "GPU; downloads several GB), or set policy.kind to transformers."
            ) from error
    return vllm


class VLLMEngine:
    """A causal language model that vLLM runs in this process.

    A prompt and its answer together have at most ``max_context`` tokens.

    Args:
        folder: folder of the model.
        config: settings for sharing the machine.
        max_context: maximum number of tokens of a prompt with its answer.
        dtype: precision of the weights.
        lora_rank: maximum rank of adapters for :meth:`load_adapter`; 0 for none.

    Attributes:
        holds: identifier of the loaded weights, which the caller sets; initially None.
        n_sleeps: number of times that the engine went to sleep.

    Raises:
        ConfigError: if a launcher has started several processes, or vLLM does not support the rank.
        ImportError: if vLLM is not installed.
        ModelError: if the folder has no weights, or vLLM cannot run the model.
    """

    def __init__(
        self,
        folder: Path,
        config: VLLMConfig | None = None,
        *,
        max_context: int,
        dtype: Literal["bfloat16", "float16", "float32"],
        lora_rank: int = 0,
    ) -> None:
        config = config or VLLMConfig()
        _require_one_process()
        self.holds: object = None
        self.n_sleeps = 0
        self._running: dict[str, VLLMRequest] = {}
        self._paused: list[VLLMRequest] = []  # requests that go on with the next weights
        self._asleep: set[_Memory] = set()
        self._n_started = self._n_adapters = 0
        self._adapters: list[_Adapter] = []  # the last one is for new requests
        self._shapes = checkpoint_shapes(folder)
        self._vllm, cache = import_vllm(), config.kv_cache_gib
        with _preserve_process_state():
            try:
                self._llm = self._vllm.LLM(
                    str(folder),
                    dtype=dtype,
                    max_model_len=max_context,
                    skip_tokenizer_init=True,
                    generation_config="vllm",
                    # The default would be the log-probabilities before temperature scaling.
                    logprobs_mode="processed_logprobs",
                    gpu_memory_utilization=config.gpu_memory_utilization,
                    kv_cache_memory_bytes=None if cache is None else int(cache * 2**30),
                    enforce_eager=config.enforce_eager,
                    enable_sleep_mode=config.sleep,
                    use_tqdm_on_load=False,
                    **lora_settings(lora_rank),
                )
            except (ValueError, RuntimeError, OSError) as error:
                raise ModelError(
                    f"vLLM could not start with {folder}: {error}\nIf there is not enough "
                    f"memory, lower max_context (currently {max_context:,}; the KV cache must hold "
                    "a full context) or gpu_memory_utilization, or set kv_cache_gib."
                ) from error

    def start(self, request: VLLMRequest) -> None:
        """Start sampling an answer, or go on after its tokens so far.

        The same weights, prompt and seed give the same draws up to rounding, which may depend on
        the batch.

        Raises:
            ConfigError: if vLLM does not support the temperature.
            ModelError: if the engine fails.
        """
        self._n_started += 1
        name = str(self._n_started)
        params = self._sampling_params(request)
        prompt = {"prompt_token_ids": [*request.ask.prompt, *request.ids]}
        if request.adapter is None and self._adapters:
            request.adapter = self._adapters[-1]
        lora = None if request.adapter is None else request.adapter.request
        with self._attribute_errors():
            self._llm.llm_engine.add_request(name, prompt, params, lora_request=lora)
        self._running[name] = request

    def step(self) -> None:
        """Sample the next token of all running requests.

        Raises:
            ModelError: if the engine fails, or gives up on a request.
        """
        with self._attribute_errors(), _preserve_torch_generators():
            outputs = self._llm.llm_engine.step()
        for output in outputs:
            request = self._running.get(output.request_id)
            if request is None:
                continue
            if output.finished:
                del self._running[output.request_id]
            request.receive(output)

    def stop(self, requests: Collection[VLLMRequest]) -> None:
        """Stop running requests; their tokens so far are kept."""
        names = [name for name, request in self._running.items() if request in requests]
        self._llm.llm_engine.abort_request(names)
        for name in names:
            del self._running[name]
        self._paused = [request for request in self._paused if request not in requests]

    @contextmanager
    def _attribute_errors(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, RuntimeError) as error:
            raise ModelError(f"vLLM failed while sampling: {error}") from error

    def load_weights(self, weights: Callable[[], Iterable[tuple[str, Tensor]]]) -> None:
        """Replace all weights and clear the prefix cache. Running requests go on after it.

        ``weights`` yields each weight with its name in the checkpoint, including the LM head even
        if it is tied to the embedding. It is called twice, first to check the names, so that
        temporary tensors such as merged adapters never exist all at once.

        Raises:
            ModelError: if names or shapes do not match the model, before anything is changed; or if
                the engine fails and must then be loaded again.
        """
        self.holds = None
        check_shapes({name: tuple(value.shape) for name, value in weights()}, self._shapes)
        with self._requests_paused():
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights())})

    def load_adapter(self, save: Callable[[Path], None]) -> None:
        """Load an adapter for all requests that start from now on; running requests keep theirs.

        ``save`` writes the adapter to a folder in PEFT's format. The folder is in memory where
        possible, and is deleted when no request uses the adapter any more.

        Raises:
            ModelError: if vLLM cannot load the adapter.
        """
        self.holds = None
        if self._asleep:
            with self._requests_paused():
                pass
        self._n_adapters += 1
        folder = tempfile.TemporaryDirectory(prefix="coevo-adapter-", dir=memory_folder())
        save(Path(folder.name))
        name = f"adapter-{self._n_adapters}"
        lora = self._vllm.lora.request.LoRARequest(name, self._n_adapters, folder.name)
        try:
            self._llm.llm_engine.add_lora(lora)
        except (ValueError, RuntimeError, KeyError, OSError) as error:
            raise ModelError(f"vLLM could not load the adapter: {error}") from error
        used = {request.adapter for request in self._running.values()}
        for adapter in [one for one in self._adapters if one not in used]:
            self._llm.llm_engine.remove_lora(adapter.request.lora_int_id)
            adapter.folder.cleanup()
            self._adapters.remove(adapter)
        self._adapters.append(_Adapter(lora, folder))

    def sleep(self) -> None:
        """Free the GPU memory of weights and cache until weights or an adapter are next loaded.

        Without adapters, the weights are dropped; with adapters, they are moved to main memory.
        Running requests go on after the next weights are loaded.

        Raises:
            ModelError: if vLLM cannot free its memory.
        """
        if self._asleep:
            return
        self.holds = None
        self.n_sleeps += 1
        self._pause_requests()
        try:
            self._llm.sleep(level=1 if self._adapters else 2)
        except (ValueError, RuntimeError, AssertionError) as error:
            raise ModelError(f"vLLM could not free its memory for the update: {error}") from error
        self._asleep = {"weights", "kv_cache"}

    def _pause_requests(self) -> None:
        running = [*self._running.values()]
        self.stop(running)
        self._paused += running

    @contextmanager
    def _requests_paused(self) -> Iterator[None]:
        """Pause all requests for a ``with`` block that loads weights, and wake the engine.

        Raises:
            ModelError: if loading fails.
        """
        self._pause_requests()
        try:
            self._wake_up("weights")
            yield
            self._wake_up("kv_cache")
            forgotten = self._llm.reset_prefix_cache()
        except (ValueError, RuntimeError, KeyError, AssertionError) as error:
            raise ModelError(f"vLLM could not load the new weights: {error}") from error
        if not forgotten:
            raise ModelError(
                "vLLM could not clear the old weights' prefix cache: requests are still running."
            )
        paused, self._paused = self._paused, []
        for request in paused:
            self.start(request)

    def _wake_up(self, part: _Memory) -> None:
        import torch

        if part in self._asleep:
            torch.cuda.empty_cache()  # otherwise, vLLM cannot take PyTorch's unused blocks
            self._llm.wake_up(tags=[part])
            self._asleep.remove(part)

    def _sampling_params(self, request: VLLMRequest) -> Any:
        return self._vllm.SamplingParams(
            **sampling_fields(request.ask, request.stop_ids, len(request.ids)),
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )


def sampling_fields(ask: Ask, stop_ids: Sequence[int], n_begun: int) -> dict[str, Any]:
    """Return the fields of vLLM's ``SamplingParams`` for an answer.

    Args:
        ask: the prompt with its sampling settings.
        stop_ids: ids that end the answer.
        n_begun: number of the answer's tokens so far, which follow the prompt.

    Raises:
        ConfigError: if vLLM does not support the temperature.
    """
    if 0 < ask.temperature < COLDEST:
        raise ConfigError(
            f"vLLM's temperature must be 0 (greedy) or at least {COLDEST}, got {ask.temperature}."
        )
    return {
        "temperature": ask.temperature,
        "max_tokens": ask.max_tokens - n_begun,
        # Log-probabilities are renormalised over the tokens in top_p and top_k, so keep all.
        "top_p": 1.0,
        "top_k": 0,
        "seed": int(np.random.SeedSequence([*ask.seed, n_begun]).generate_state(1)[0]),
        "logprobs": 0,
        "stop_token_ids": list(stop_ids),
        "detokenize": False,
    }


@dataclass(frozen=True, eq=False)
class _Adapter:
    request: Any  # vLLM's LoRARequest
    folder: tempfile.TemporaryDirectory[str]


class VLLMRequest:
    """An answer that vLLM samples.

    Attributes:
        ask: the prompt with its sampling settings.
        stop_ids: ids that end the answer.
        ids: token ids so far.
        logprobs: their log-probabilities; 0 if greedy.
        has_ended: True if the answer is complete.
        adapter: the adapter that it is sampled with; None before its start, and without adapters.
    """

    def __init__(self, ask: Ask, stop_ids: Sequence[int], begun: Sampled) -> None:
        self.ask, self.stop_ids = ask, stop_ids
        self.ids, self.logprobs = list(begun.ids), list(begun.logprobs)
        self.has_ended = False
        self.adapter: _Adapter | None = None

    def receive(self, output: Any) -> None:
        """Add the new tokens in one of vLLM's outputs.

        Raises:
            ModelError: if vLLM does not finish the answer.
        """
        new = output.outputs[0]
        self.ids += new.token_ids
        if self.ask.temperature == 0:
            self.logprobs += [0.0] * len(new.token_ids)
        else:
            pairs = zip(new.token_ids, new.logprobs, strict=True)
            self.logprobs += [float(logprobs[token].logprob) for token, logprobs in pairs]
        self.has_ended = bool(output.finished)
        if self.has_ended and new.finish_reason not in ("stop", "length"):
            raise ModelError(f"vLLM gave up on a prompt: {new.finish_reason}.")


class VLLMSampler(Generic[KeyT]):
    """An :class:`~coevo_gym.agents.lm.sampler.AnswerSampler` that samples with vLLM.

    Several samplers may share an engine; a step of one advances the requests of all.

    Args:
        engine: the engine.
        stop_ids: ids that end an answer.
        counts: counts to add to; new counts by default.
    """

    def __init__(
        self, engine: VLLMEngine, stop_ids: Sequence[int], counts: SamplingCounts | None = None
    ) -> None:
        self._engine, self._stop_ids = engine, stop_ids
        self._counts = counts or SamplingCounts()
        self._requests: dict[KeyT, VLLMRequest] = {}

    def __len__(self) -> int:
        """Return the number of answers that have not been returned."""
        return len(self._requests)

    def add(self, key: KeyT, ask: Ask, begun: Sampled = NOTHING) -> None:
        """Add a prompt; see :class:`~coevo_gym.agents.lm.sampler.AnswerSampler`.

        Raises:
            ConfigError: if vLLM does not support the temperature.
            ModelError: if the engine fails.
        """
        request = VLLMRequest(ask, self._stop_ids, begun)
        self._engine.start(request)
        self._requests[key] = request

    def step(self) -> list[tuple[KeyT, Sampled]]:
        """Sample a token for each request, and return the answers that ended.

        Raises:
            ModelError: if the engine fails, or gives up on a request.
        """
        if not any(request.has_ended for request in self._requests.values()):
            self._engine.step()
        ended = [(key, one) for key, one in self._requests.items() if one.has_ended]
        for key, request in ended:
            del self._requests[key]
            self._counts.sampled += len(request.ids)
        return [(key, Sampled(tuple(one.ids), tuple(one.logprobs))) for key, one in ended]

    def withdraw(self) -> list[Unfinished[KeyT]]:
        """Remove all unfinished answers, and return them in the order of addition."""
        self._engine.stop(self._requests.values())
        requests, self._requests = self._requests, {}
        return [
            Unfinished(key, one.ask, Sampled(tuple(one.ids), tuple(one.logprobs)))
            for key, one in requests.items()
        ]


def check_vllm_settings(lora_rank: int, vllm: VLLMConfig, *, has_gpu: bool) -> None:
    """Check that vLLM's settings suit the device and the trained weights.

    Raises:
        ConfigError: if they do not.
    """
    if vllm.sleep and not has_gpu:
        raise ConfigError(
            "policy.vllm.sleep frees a GPU's memory during updates, but this run uses a CPU. Set "
            "policy.vllm.sleep to false."
        )
    check_adapter_settings(lora_rank, vllm)


def check_adapter_settings(lora_rank: int, vllm: VLLMConfig) -> None:
    """Check that vLLM can take what is handed over to it: merged weights, or an adapter alone.

    Raises:
        ConfigError: if it cannot.
    """
    if vllm.adapter == "alone" and not lora_rank:
        raise ConfigError(
            "policy.vllm.adapter is 'alone', but all weights are trained (policy.model.lora_rank "
            "is 0). Set a rank, or policy.vllm.adapter to 'merged'."
        )
    lora_settings(lora_rank if vllm.adapter == "alone" else 0)


_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_N_ADAPTERS = 2  # that requests can use at once: the new one, and that of requests in progress
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_ADAPTER_BYTES = 2**31  # at least the size of an adapter's file


def adapter_bytes(rank: int, size: int) -> int:
    """Return the memory that vLLM reserves for adapters, in bytes.

    Args:
        rank: rank of the adapter.
        size: bytes of the adapter in the engine's precision.
    """
    return _N_ADAPTERS * size * _supported_rank(rank) // rank


def lora_settings(rank: int) -> dict[str, Any]:
    """Return the settings of vLLM for adapters up to a rank; {} for none.

    Raises:
        ConfigError: if vLLM does not support the rank.
    """
    if not rank:
        return {}
    return {
        "enable_lora": True,
        "max_lora_rank": _supported_rank(rank),
        "max_loras": _N_ADAPTERS,
    }


def _supported_rank(rank: int) -> int:
    """Return the lowest rank that vLLM supports and that is not below the given rank.

    Raises:
        ConfigError: if there is none.
    """
    if rank > _RANKS[-1]:
        raise ConfigError(
            f"vLLM supports adapters up to rank {_RANKS[-1]}, got lora_rank = {rank}. Set "
            "policy.vllm.adapter to merged."
        )
    return next(one for one in _RANKS if one >= rank)


def memory_folder(n_bytes: int = _ADAPTER_BYTES) -> Path | None:
    """Return a folder in memory with room for an adapter or a file, or None if there is none."""
    if not _SHARED_MEMORY.is_dir() or shutil.disk_usage(_SHARED_MEMORY).free < n_bytes:
        return None
    return _SHARED_MEMORY


def _require_one_process() -> None:
    """Raise an error if there are several processes, because vLLM would wait for the others.

    Raises:
        ConfigError: if there are other processes.
    """
    from torch import distributed

    started = distributed.is_available() and distributed.is_initialized()
    size = distributed.get_world_size() if started else int(os.environ.get("WORLD_SIZE") or 1)
    if size > 1:
        raise ConfigError(
            f"A launcher such as torchrun started {size} processes, and vLLM's engine would wait "
            "forever for the others. Set policy.kind to vllm_server, which runs vLLM in processes "
            "of its own."
        )


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the weights in a model folder.

    Raises:
        ModelError: if the folder has no safetensors.
    """
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    else:
        files = {"model.safetensors"}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in sorted(files):
        if not (folder / name).is_file():
            raise ModelError(
                f"{folder} has no {name}, but vLLM needs a model's safetensors files. Save the "
                "model there with save_pretrained."
            )
        with safe_open(folder / name, "np") as file:
            keys = file.keys()  # iteration over the file itself is not supported
            shapes |= {key: tuple(file.get_slice(key).get_shape()) for key in keys}
    return shapes


def check_shapes(
    shapes: Mapping[str, tuple[int, ...]], checkpoint: Mapping[str, tuple[int, ...]]
) -> None:
    """Check that the weights are complete, including the LM head even if it is tied.

    vLLM only warns about a missing weight and continues with the old weight. An unknown name or
    shape makes it fail halfway through loading.

    Raises:
        ModelError: naming missing, unknown or mismatched weights.
    """
    expected = {name: shape for name, shape in checkpoint.items() if ".rotary_emb." not in name}
    missing = sorted((expected.keys() | {LM_HEAD}) - shapes.keys())
    unknown = sorted(shapes.keys() - expected.keys() - {LM_HEAD})
    other = sorted(
        name for name in expected.keys() & shapes.keys() if expected[name] != shapes[name]
    )
    problems = {"missing": missing, "unknown": unknown, "of another shape": other}
    if any(problems.values()):
        differences = "; ".join(
            f"{what}: {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if names[3:] else "")
            for what, names in problems.items()
            if names
        )
        raise ModelError(
            f"The weights do not match those that vLLM was started with. {differences}."
        )


@contextmanager
def _preserve_process_state() -> Iterator[None]:
    """Set vLLM's environment variables in a ``with`` block, then restore the environment.

    vLLM writes to the environment (including LD_PRELOAD, which would affect every child process)
    and seeds all global random generators, which are restored too.
    """
    environment = dict(os.environ)
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    os.environ.update({**_DEFAULTS, **environment, **_SETTINGS})
    try:
        with _preserve_torch_generators():
            yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


def _preserve_torch_generators() -> AbstractContextManager[None]:
    """Restore PyTorch's global RNG state after a ``with`` block, because vLLM changes it."""
    import torch

    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))
