"""A stream of episodes, each of which runs at its own pace.

A new episode can begin as soon as another ends, and episodes do not wait for each other's engines.
The agent acts in the thread that reads the outcomes, so that thread can also train the agent
without a race.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Generic, Self, TypeVar

from coevo_gym.core.seams import Agent
from coevo_gym.core.spend import Usage
from coevo_gym.core.trajectory import EndReason
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.episode import Episode, Lost, Outcome, RecordT
from coevo_gym.episodes.live import LiveEpisode, ask_agent, step_stream, stream_of

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Crew(Generic[ItemT, ResultT]):
    """A thread pool that runs one job per item and returns the items as their jobs finish.

    On exit it waits for running jobs, so that no engine is closed while a thread uses it.
    """

    def __init__(self, size: int) -> None:
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="episode")
        self._done: SimpleQueue[tuple[ItemT, Future[ResultT]]] = SimpleQueue()
        self._alone = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def submit(self, item: ItemT, job: Callable[[], ResultT], *, alone: bool = False) -> None:
        """Run a job in another thread. :meth:`collect` returns its item when the job has finished.

        Jobs with ``alone`` run one at a time. Engines share data that the first engine loads; in
        parallel, every engine would load it.
        """

        def one_at_a_time() -> ResultT:
            with self._alone:
                return job()

        future = self._threads.submit(one_at_a_time if alone else job)
        future.add_done_callback(lambda done: self._done.put((item, done)))

    def collect(self, patience_s: float | None = None) -> list[tuple[ItemT, ResultT]]:
        """Return all items whose jobs have finished, or raise the error of a failed job.

        The method waits at most ``patience_s`` seconds for the first item; None to wait forever.
        """
        results = list[tuple[ItemT, Future[ResultT]]]()
        try:
            results.append(self._done.get(timeout=patience_s))
            while True:
                results.append(self._done.get_nowait())
        except Empty:
            return [(item, future.result()) for item, future in results]


PATIENCE = 0.05
"""Maximum wait of a free agent for more episodes, as a share of its latest answer time.

A large batch costs little more than a single view. With engines that are fast compared to the
agent, not waiting would split the live episodes into two batches that take turns. With slow
engines, waiting costs no more than this share. ``bench/rollout.py --patience`` compares values.
"""


class EpisodeStream(Generic[RecordT]):
    """A stream that runs episodes, stepping envs in threads and batching the agent's views.

    Batches form automatically: episodes whose engines finish while the agent works join the next
    batch. A batch has at most ``envs.max_envs`` views. If the agent streams its responses, each
    episode joins the running batch before the next token, and leaves it when its response ends.

    The stream must be closed. Running episodes then end after their current step.

    Attributes:
        busy_s: total seconds that the agent took to act.

    Example:
        >>> import coevo_gym, gymnasium as gym
        >>> from coevo_gym.agents.scripted import ScriptedAgent
        >>> from coevo_gym.episodes import EnvPool, EvalEpisode
        >>> envs = EnvPool(lambda: gym.make("CoEvolve-WebShop-v0"))
        >>> task = coevo_gym.tasks("webshop")[0]
        >>> with EpisodeStream(envs, ScriptedAgent(task.solution)) as stream:
        ...     stream.begin(7, EvalEpisode(task, seed=0))
        ...     ended = stream.next()
        >>> ended.index, ended.record.success, stream.n_live
        (7, True, 0)
    """

    def __init__(self, envs: EnvPool, agent: Agent) -> None:
        self._agent, self._size = agent, envs.max_envs
        self._envs = envs
        self._scope = ExitStack()
        self._take = self._scope.enter_context(envs.lend_envs())
        crew = Crew[LiveEpisode[RecordT], Outcome[RecordT] | None](envs.max_envs)
        self._crew = self._scope.enter_context(crew)  # exits first, while the envs are open
        stream = stream_of(agent)
        self._responses = None if stream is None else self._scope.enter_context(stream)
        self._live: set[LiveEpisode[RecordT]] = set()
        self._asking: list[LiveEpisode[RecordT]] = []
        self._ended: deque[tuple[LiveEpisode[RecordT], Outcome[RecordT]]] = deque()
        self._took_s = self._ask_at = 0.0
        self.busy_s = 0.0

    @property
    def n_live(self) -> int:
        """The number of episodes that have begun but whose outcomes have not been returned yet."""
        return len(self._live)

    @property
    def live_usages(self) -> list[Usage]:
        """The model usage of each live episode so far."""
        return [live.usage for live in self._live]

    @property
    def has_room(self) -> bool:
        """True if another episode can begin."""
        return len(self._live) < self._size

    @property
    def live_env_steps(self) -> int:
        """The number of env steps that the live episodes have taken so far."""
        return sum(live.env_steps for live in self._live)

    def begin(self, index: int, episode: Episode[RecordT]) -> None:
        """Begin an episode; its outcome gets this index. Call this only if there is room."""
        live = LiveEpisode(index, episode, self._take())
        self._live.add(live)
        self._crew.submit(live, live.begin, alone=live.begins_alone)

    def next(self) -> Outcome[RecordT] | None:
        """Return the outcome of the next episode to end, or None if no episode is live.

        In the meantime, the agent acts whenever episodes are waiting for it. The outcome of a
        finished episode is returned before the agent acts again, so that another episode can
        begin.
        """
        while self._live:
            self._collect()
            if self._ended:
                live, outcome = self._ended.popleft()
                self._release(live, outcome)
                return outcome
            if self._should_ask():
                self._ask_agent()
        return None

    def close(self) -> None:
        """End the running episodes and release the envs. Repeated calls have no effect."""
        self._scope.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _collect(self) -> None:
        """Collect finished engine steps, waiting for one if there is nothing else to do."""
        patience_s = None
        if self._ended or self._should_ask() or self._is_sampling():
            patience_s = 0.0
        elif self._asking:
            patience_s = max(0.0, self._ask_at - monotonic())
        for live, outcome in self._crew.collect(patience_s):
            if outcome is not None:
                self._ended.append((live, outcome))
                continue
            if not self._asking:
                self._ask_at = monotonic() + PATIENCE * self._took_s
            self._asking.append(live)

    def _is_sampling(self) -> bool:
        return self._responses is not None and len(self._responses) > 0

    def _should_ask(self) -> bool:
        """Return True if the agent should act: all episodes await an action, or time is up."""
        if self._responses is not None:
            return bool(self._asking) or self._is_sampling()
        if not self._asking:
            return False
        return len(self._asking) == len(self._live) or monotonic() >= self._ask_at

    def _ask_agent(self) -> None:
        asking = sorted(self._asking, key=lambda live: live.index)
        self._asking = []
        began = monotonic()
        if self._responses is None:
            acts = [*zip(asking, ask_agent(self._agent, asking), strict=True)]
        else:
            for live in asking:
                live.request_act(self._responses)
            acts = step_stream(self._responses, {live.index: live for live in self._live})
        self._took_s = monotonic() - began
        self.busy_s += self._took_s
        for live, act in acts:
            self._crew.submit(live, partial(live.step, act))

    def _release(self, live: LiveEpisode[RecordT], outcome: Outcome[RecordT]) -> None:
        """Return an ended episode's env to the pool, or close it if its engine has failed."""
        self._live.remove(live)
        gone = isinstance(outcome, Lost) and outcome.reason is EndReason.WORKER_LOST
        (self._envs.close_env if gone else self._envs.put)(live.env)
