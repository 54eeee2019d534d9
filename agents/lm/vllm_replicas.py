"""Replicas of a vLLM server: their start, their supervision and the hand-over of new weights.

All replicas belong to one event loop in a thread of its own, so that no lock is needed: the methods
of :class:`Replicas` that other threads call run their work in this loop.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from coevo_gym.agents.endpoint.loop_thread import LoopThread
from coevo_gym.agents.lm.answers import Ask, Sampled
from coevo_gym.agents.lm.vllm_client import ServerError, VLLMClient
from coevo_gym.agents.lm.vllm_engine import VLLMConfig, sampling_fields
from coevo_gym.agents.lm.vllm_launch import (
    Served,
    ServerProcess,
    VLLMServersConfig,
    choose_ports,
    count_gpus,
    server_arguments,
    server_environment,
)
from coevo_gym.core.errors import ConfigError, ModelError
from coevo_gym.core.waiting import Patience
from coevo_gym.provision import install_hint

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Maximum number of consecutive restarts of a replica that gives no answer in between."""
_HEALTH_S = 10.0  # seconds between two checks of a replica's health
_POLL_S = 0.5  # seconds between two looks at a server that starts
_DRAIN_S = 0.02  # seconds between two looks at answers that must end before a hand-over
_MAX_HOMES = 65_536  # conversations whose replica is remembered


class Probe(NamedTuple):
    """Fixed tokens with the log-probabilities that a learner computes for them.

    Attributes:
        ids: at least two token ids.
        logprobs: log-probability of each token after the first.
        tolerance: maximum mean difference in nats.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float


class Handover:
    """Weights or an adapter for all replicas, in a new folder that is deleted with the object.

    Args:
        parent: folder for the new one.
        probe: tokens by which a replica proves that it has the weights.
        is_adapter: True if the folder will contain an adapter in PEFT's format.

    Attributes:
        folder: the folder.
        file: file for all weights; None for an adapter.
        name: unique name.
    """

    def __init__(self, parent: Path, probe: Probe, *, is_adapter: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weights-", dir=parent))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.file = None if is_adapter else self.folder / "model.safetensors"
        self.name, self.probe = self.folder.name, probe

    @property
    def adapter(self) -> str:
        """Name of the adapter; "" if all weights are handed over."""
        return self.name if self.file is None else ""


class Replica:
    """One server.

    Attributes:
        name: its name in messages.
        client: its client.
        process: its process if it was started here; None otherwise.
        is_ready: True if it has the current weights and takes requests.
        holds: the latest weights that it has proven to have.
        gap: mean difference in nats at its latest check.
        n_running: number of its running requests.
        n_restarts: number of consecutive restarts.
    """

    def __init__(self, name: str, client: VLLMClient) -> None:
        self.name, self.client = name, client
        self.process: ServerProcess | None = None
        self.is_ready = False
        self.holds: Handover | None = None
        self.gap = float("nan")
        self.n_running = self.n_restarts = 0
        self.suspected = asyncio.Event()
        self._measured: tuple[float, ...] = ()
        self._adapters: list[str] = []

    def forget(self) -> None:
        """Forget which weights the server had, because it has been started again."""
        self.holds, self._measured, self._adapters = None, (), []

    async def update(self, handover: Handover) -> str:
        """Load weights and check them. Return a description of a disagreement, or "".

        Raises:
            ServerError: if the server fails.
        """
        if handover.file is None:
            await self._load_adapter(handover)
        else:
            await self.client.load_weights(handover.file, handover.name)
        adapter, probe, before = handover.adapter, handover.probe, self._measured
        sampling = sampling_fields(Ask(probe.ids, 1.0, 1), (), 0) | {"prompt_logprobs": 0}
        answer = await self.client.generate(probe.ids, sampling, adapter)
        measured = answer.prompt_logprobs
        if len(measured) != len(probe.logprobs):
            raise ServerError("it sent no log-probabilities of the prompt's tokens")
        self.gap = _mean_gap(measured, probe.logprobs)
        earlier = self.holds
        if earlier is not None and measured == before:
            moved = _mean_gap(probe.logprobs, earlier.probe.logprobs)
            if moved > probe.tolerance * _NOTICEABLE:
                return (
                    "its log-probabilities are exactly those of the weights before, although the "
                    f"learner's have changed by {moved:.2g} nats on average"
                )
        if not self.gap <= probe.tolerance:  # also if it is NaN
            return (
                f"its log-probabilities differ from the learner's by {self.gap:.2g} nats on "
                f"average, which exceeds the limit of {probe.tolerance}"
            )
        if not adapter and answer.weight_versions != {handover.name}:
            return "another program has loaded weights into it"
        self._measured, self.holds = measured, handover
        return ""

    async def _load_adapter(self, handover: Handover) -> None:
        """Load an adapter. The one before it is kept for the answers that are running with it."""
        while len(self._adapters) > 1 or handover.name in self._adapters:
            await self.client.unload_adapter(self._adapters.pop(0))
        await self.client.load_adapter(handover.folder, handover.name)
        self._adapters.append(handover.name)


_NOTICEABLE = 0.01
"""Share of the tolerance by which the learner's log-probabilities must have moved before a replica
whose own are unchanged counts as one that kept its weights."""


def _mean_gap(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


class Replicas:
    """vLLM servers that sample with the same weights.

    A server that dies, fails an update, or does not prove that it has the current weights is
    restarted, and gets the current weights before it answers again. In the meantime, its
    conversations go to the other servers. The answers that were running on it are lost.

    Args:
        config: settings of the servers.
        vllm: settings of vLLM, for servers that are started.
        served: the model that the servers must run.
        parent: parent of the folder for weights, which all servers must see; None for the system's
            temporary folder.

    Attributes:
        folder: folder for weights, once the servers are started.
        holds: identifier of the weights that were handed over last, which the caller sets.
        n_lost: number of answers that were lost with a server.
        n_restarts: number of restarts.

    """

    folder: Path

    def __init__(
        self,
        config: VLLMServersConfig,
        vllm: VLLMConfig,
        served: Served,
        parent: Path | None = None,
    ) -> None:
        self.config, self.vllm, self.served, self._parent = config, vllm, served, parent
        self.holds: object = None
        self.n_lost = self.n_restarts = 0
        self._counts_taken = (0, 0)
        self.replicas: list[Replica] = []
        self._current: Handover | None = None
        self._homes: OrderedDict[str, Replica] = OrderedDict()
        self._loop: LoopThread | None = None
        self._http: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: ModelError | None = None
        self._delete_folder: Callable[[], object] | None = None
        self._logs: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_running(self) -> bool:
        """True if the servers have been started and not been closed."""
        return self._loop is not None

    def start(self) -> None:
        """Start the servers or connect to them, and wait until all are ready.

        Raises:
            ConfigError: if a port is in use, a given server cannot be used, or the folder for
                weights cannot be created.
            ImportError: if servers are to be started and vLLM is not installed.
            ModelError: if a server does not start.
        """
        if self.is_running:
            return
        self._failure, self._current, self.holds = None, None, None
        if not self.config.urls and find_spec("vllm") is None:
            raise ImportError(
                f"policy.kind = 'vllm_server' starts vLLM. {install_hint('vllm')}, or name running "
                "servers in policy.servers.urls."
            )
        has_gpu = self.served.has_gpu
        ports = [] if self.config.urls else choose_ports(self.config, has_gpu=has_gpu)
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="coevo-weights-", dir=self._parent))
        except OSError as error:
            raise ConfigError(
                f"policy.servers.folder: {self._parent} cannot be written to ({error.strerror})."
            ) from error
        self._delete_folder = weakref.finalize(self, shutil.rmtree, self.folder, True)
        self._loop = LoopThread(self._shut_down)
        try:
            self._run(self._open(ports))
            self._wait(self._loop.submit(self._start_all()), "vLLM servers")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the servers that were started here. :meth:`start` starts them again."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        processes = [one.process for one in self.replicas if one.process is not None]
        with ThreadPoolExecutor(max(1, len(processes))) as threads:
            for process in processes:
                threads.submit(process.stop)
        self.replicas, self._tasks, self._current, self.holds = [], [], None, None
        self._homes.clear()
        if self._delete_folder is not None:
            self._delete_folder()
        if self._logs is not None:
            self._logs.cleanup()
            self._logs = None

    def hand_over(self, handover: Handover) -> None:
        """Give new weights to all ready replicas, and check each of them.

        A replica that disagrees gets the weights a second time. If it still disagrees, or fails, it
        is restarted while the others go on.

        Raises:
            ModelError: if a replica disagrees even after a restart, cannot be restarted, or none is
                left.
        """
        assert self._loop is not None
        self._wait(self._loop.submit(self._hand_over(handover)), "handing over weights", first_s=60)

    def submit(self, ask: Ask, sampling: Mapping[str, Any], begun: Sampled) -> Future[Sampled]:
        """Sample an answer, or go on after its tokens so far.

        Args:
            ask: the prompt.
            sampling: fields of vLLM's ``SamplingParams``.
            begun: the answer's tokens so far.

        Returns:
            A future of the answer. If it was lost with a server, it has no tokens but the reason.
        """
        assert self._loop is not None
        return self._loop.submit(self._answer(ask, sampling, begun))

    def take_counts(self) -> dict[str, float]:
        """Return the numbers of lost answers and of restarts since the last call."""
        now = (self.n_lost, self.n_restarts)
        lost, restarts = (new - old for new, old in zip(now, self._counts_taken, strict=True))
        self._counts_taken = now
        return {"answers_lost": float(lost), "server_restarts": float(restarts)}

    def raise_if_failed(self) -> None:
        """Raise the error of a replica that could not be brought back, if there is one."""
        if self._failure is not None:
            raise self._failure

    # In the event loop's thread.

    async def _open(self, ports: Sequence[int]) -> None:
        import httpx

        # Proxies are for other networks. A sampler may have hundreds of answers in progress.
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(self.config.timeout_s, connect=30.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )
        urls = self.config.urls or [f"http://127.0.0.1:{port}" for port in ports]
        self.replicas = [
            Replica(f"replica {place} ({url})", VLLMClient(url, self._http))
            for place, url in enumerate(urls)
        ]

    async def _shut_down(self) -> None:
        await self._http.aclose()

    @property
    def _expected(self) -> dict[str, Any]:
        return self.served.expected | {"folder": str(self.folder)}

    async def _start_all(self) -> None:
        if self.config.urls:
            await asyncio.gather(*map(self._connect, self.replicas))
        else:
            self._logs = tempfile.TemporaryDirectory(prefix="coevo-vllm-")
            for replica in self.replicas:
                replica.process = self._launch(replica)
            await asyncio.gather(*map(self._wait_until_up, self.replicas))
        versions = {one.client.url: await one.client.get_version() for one in self.replicas}
        if len(set(versions.values())) > 1:
            names = ", ".join(f"{version} at {url}" for url, version in versions.items())
            raise ConfigError(
                f"policy.servers.urls: the servers run different versions of vLLM ({names}), "
                "which sample differently. Use one version."
            )
        for replica in self.replicas:
            replica.is_ready = True
            self._tasks.append(asyncio.create_task(self._supervise(replica)))

    async def _connect(self, replica: Replica) -> None:
        """Check that a given server is one that can be used."""
        try:
            await replica.client.check_suits(self._expected)
        except ServerError as error:
            raise ConfigError(
                f"policy.servers.urls: {replica.client.url} cannot be used: {error}."
            ) from error

    async def _wait_until_up(self, replica: Replica) -> None:
        """Wait until a server that was started here answers.

        Raises:
            ModelError: if it ends, or takes too long.
        """
        process, begun = replica.process, monotonic()
        assert process is not None
        while True:
            with suppress(ServerError):
                await replica.client.check_health()
                break
            if process.has_ended or monotonic() - begun > self.config.timeout_s:
                how = "ended" if process.has_ended else "did not answer in time"
                text = process.describe_log()
                await asyncio.to_thread(process.stop)
                raise ModelError(
                    f"vLLM could not start with {self.served.folder}: {replica.name} {how}. The "
                    f"end of its output:\n{text}"
                )
            await asyncio.sleep(_POLL_S)
        try:
            await replica.client.check_suits(self._expected)
        except ServerError as error:
            raise ModelError(f"{replica.name} cannot be used: {error}.") from error

    def _launch(self, replica: Replica) -> ServerProcess:
        assert self._logs is not None
        place, served = self.replicas.index(replica), self.served
        gpu = None
        if served.has_gpu:  # from the last GPU on, because the learner uses the first
            gpu = count_gpus() - 1 - place
        return ServerProcess(
            self.folder,
            server_arguments(served, self.vllm, port=urlsplit(replica.client.url).port or 0),
            server_environment(gpu, adapters=served.lora_rank > 0),
            Path(self._logs.name) / f"replica-{place}.log",
        )

    async def _hand_over(self, handover: Handover) -> None:
        ready = [one for one in self.replicas if one.is_ready]
        for replica in ready:  # before an answer can be expected to have the new weights
            replica.is_ready = False
        self._current = handover
        await asyncio.gather(*map(self._bring_up_to_date, ready))
        while not any(one.is_ready for one in self.replicas) and self._failure is None:
            await asyncio.sleep(_POLL_S)
        self.raise_if_failed()

    async def _bring_up_to_date(self, replica: Replica) -> None:
        """Give the current weights to a replica, which is suspected if this does not succeed."""
        while replica.n_running:  # an answer has one version of the weights
            await asyncio.sleep(_DRAIN_S)
        try:
            problem = await self._update(replica)
        except ServerError as error:
            problem = str(error)
        if problem:
            self._suspect(replica, problem)
        elif not replica.suspected.is_set():
            replica.is_ready = True

    async def _update(self, replica: Replica) -> str:
        """Give the current weights to a replica, a second time if it disagrees.

        Returns:
            A description of the disagreement, or "".

        Raises:
            ServerError: if the server fails.
        """
        problem = ""
        while (handover := self._current) is not None and replica.holds is not handover:
            again, problem = bool(problem), await replica.update(handover)
            if problem and again:
                return problem
            if problem:
                logger.warning("vllm disagrees replica=%s problem=%s", replica.name, problem)
        return ""

    def _suspect(self, replica: Replica, problem: str) -> None:
        """Take no more answers from a replica until its supervisor has brought it back."""
        if replica.is_ready or not replica.suspected.is_set():
            output = "" if replica.process is None else replica.process.describe_log()
            logger.warning(
                "vllm server lost replica=%s problem=%s output=%s", replica.name, problem, output
            )
        replica.is_ready = False
        replica.suspected.set()

    async def _supervise(self, replica: Replica) -> None:
        """Bring a replica back whenever it has failed. Record an error if that is impossible."""
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(replica.suspected.wait(), _HEALTH_S)
                if not replica.suspected.is_set():
                    try:
                        await replica.client.check_health()
                    except ServerError as error:
                        self._suspect(replica, str(error))
                if replica.suspected.is_set():
                    await self._bring_back(replica)
                    replica.suspected.clear()
                    replica.is_ready = True
        except ModelError as error:
            self._failure = self._failure or error
        except OSError as error:  # a process cannot be started
            self._failure = ModelError(f"{replica.name} could not be restarted: {error}")

    async def _bring_back(self, replica: Replica) -> None:
        """Restart a failed replica, and give it the current weights.

        Raises:
            ModelError: if it cannot be brought back.
        """
        while replica.n_restarts < MAX_RESTARTS:
            replica.n_restarts += 1
            self.n_restarts += 1
            if replica.process is None:
                await self._wait_for_return(replica)
            else:
                await asyncio.to_thread(replica.process.stop)
                replica.process = self._launch(replica)
                await self._wait_until_up(replica)
            replica.forget()
            try:
                problem = await self._update(replica)
            except ServerError as error:
                logger.warning("vllm server lost replica=%s problem=%s", replica.name, error)
                continue
            if problem:
                tried = "got the weights again" + (" and was restarted" if replica.process else "")
                raise ModelError(
                    f"{replica.name} does not sample with the learner's weights: {problem}. "
                    f"It {tried}, which did not help."
                )
            logger.warning("vllm server back replica=%s", replica.name)
            return
        log = replica.process.describe_log() if replica.process else "(see its own log)"
        raise ModelError(
            f"{replica.name} failed {MAX_RESTARTS + 1} times without an answer in between. The end "
            f"of its output:\n{log}"
        )

    async def _wait_for_return(self, replica: Replica) -> None:
        """Wait until a server that this process did not start can be used again.

        Raises:
            ModelError: if it does not return in time.
        """
        begun = monotonic()
        while True:
            try:
                await self._connect(replica)
                return
            except ConfigError as error:
                if monotonic() - begun > self.config.timeout_s:
                    raise ModelError(f"{replica.name} failed and did not return: {error}") from None
            await asyncio.sleep(_POLL_S)

    async def _answer(self, ask: Ask, sampling: Mapping[str, Any], begun: Sampled) -> Sampled:
        while not any(one.is_ready for one in self.replicas):
            self.raise_if_failed()
            await asyncio.sleep(_POLL_S)
        replica, handover = self._choose(ask.episode), self._current
        adapter = "" if handover is None else handover.adapter
        replica.n_running += 1
        try:
            answer = await replica.client.generate((*ask.prompt, *begun.ids), sampling, adapter)
        except ServerError as error:
            if error.refused:
                raise ModelError(f"{replica.name} refused a prompt: {error}") from error
            return self._lose(replica, str(error))
        finally:
            replica.n_running -= 1
        if answer.finish_reason not in ("stop", "length"):
            return self._lose(replica, f"vLLM gave up on a prompt ({answer.finish_reason})")
        if handover is not None and not adapter and answer.weight_versions != {handover.name}:
            raise ModelError(
                f"{replica.name} sampled with weights that this run did not hand over. Another "
                "program may use the same server."
            )
        replica.n_restarts = 0
        sampled = answer.sampled
        logprobs = sampled.logprobs if ask.temperature else (0.0,) * len(sampled.ids)
        return Sampled((*begun.ids, *sampled.ids), (*begun.logprobs, *logprobs))

    def _lose(self, replica: Replica, problem: str) -> Sampled:
        self.n_lost += 1
        self._suspect(replica, problem)
        return Sampled((), (), lost=f"{replica.name} was lost: {problem}")

    def _choose(self, episode: str) -> Replica:
        """Return the replica that has an episode's conversation, or the least loaded one."""
        home = self._homes.get(episode) if episode else None
        if home is None or not home.is_ready:
            ready = [one for one in self.replicas if one.is_ready]
            home = min(ready, key=lambda one: one.n_running)
        if episode:
            self._homes[episode] = home
            self._homes.move_to_end(episode)
            if len(self._homes) > _MAX_HOMES:
                self._homes.popitem(last=False)
        return home

    # In the caller's thread.

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return self._loop.run(work)

    def _wait(self, done: Future[T], what: str, first_s: float = 3.0) -> T:
        """Wait for work in the loop, and log how many replicas are ready meanwhile."""
        patience = Patience(what, first_s=first_s)
        try:
            while True:
                try:
                    return done.result(timeout=_POLL_S)
                except NotDone:
                    if done.done():
                        return done.result()
                ready = sum(one.is_ready for one in self.replicas)
                patience.log_progress(f"{ready} of {len(self.replicas)} are ready")
        except BaseException:
            done.cancel()
            raise
