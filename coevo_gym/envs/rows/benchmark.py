"""The benchmark that :func:`from_rows` makes from rows and a function."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import gymnasium as gym
from numpy.random import Generator
from pydantic import BaseModel, ConfigDict, ValidationError

from coevo_gym.core.benchmark import (
    BenchmarkSpec,
    Effect,
    Evidence,
    Replay,
    find_spec,
    register_benchmark,
)
from coevo_gym.core.errors import BuildError, ConfigError, TaskError
from coevo_gym.core.evolution import Context, Draft, digest
from coevo_gym.core.task import (
    NATIVE_SPLITS,
    Split,
    Task,
    canonical_json,
    folded,
    freeze,
    parse_split,
    strictest,
)
from coevo_gym.core.task_file import TaskList, decoded, task_lines
from coevo_gym.core.trajectory import Step, Trajectory, View
from coevo_gym.envs.checks import is_positive_int, is_positive_number
from coevo_gym.envs.rows.calls import Respond, Verify, source_of
from coevo_gym.envs.rows.conversations import RowRules
from coevo_gym.envs.rows.env import RowsEnv
from coevo_gym.envs.rows.world import RowVerifier, RowWorld
from coevo_gym.envs.tags import TAG
from coevo_gym.envs.vector import TaskVectorEnv

SHARES: Mapping[str, float] = {"train": 0.8, "val": 0.1, "test": 0.1}
"""Default shares of the splits."""
_LABELS = {"id", "split", "tags", "answer"}
"""Fields of a row that do not describe its task."""


class ChatMessage(BaseModel):
    """A message of a prompt."""

    model_config = ConfigDict(extra="ignore")

    role: str
    content: str


class PromptRow(BaseModel):
    """The fields of a row that have a meaning here; it may have any others.

    Attributes:
        id: the row's name; "" for its number.
        prompt: the prompt, if there are no ``messages``.
        messages: the prompt as messages, the last of which is the user's.
        split: the row's split; None to derive it from the prompt.
        tags: topics, each as ``kind:value``.
        choices: the answers to choose from, if the answer is not free text.
        answer: a correct answer, for demonstrations; only the function sees it otherwise.
    """

    model_config = ConfigDict(extra="allow")

    id: str | int = ""
    prompt: str = ""
    messages: tuple[ChatMessage, ...] = ()
    split: Literal["train", "val", "test"] | None = None
    tags: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    answer: str | int | float | None = None

    @property
    def system(self) -> str:
        """The system message, or ""."""
        return "\n\n".join(one.content for one in self.messages if one.role == "system")

    @property
    def content(self) -> str:
        """The fields that describe the task, as JSON: the prompt of a row without one."""
        return canonical_json(self.model_dump(mode="json", exclude=_LABELS, exclude_unset=True))

    @property
    def scenario(self) -> str:
        """The hash of the prompt."""
        return scenario_of(self.request or self.content, self.system)

    @property
    def request(self) -> str:
        """The prompt: the user's message, or a transcript of the conversation up to it."""
        spoken = [one for one in self.messages if one.role != "system"]
        if not spoken:
            return self.prompt
        if len(spoken) == 1:
            return spoken[0].content
        return "\n\n".join(f"{one.role.capitalize()}: {one.content}" for one in spoken)


class RowsBenchmark:
    """A benchmark of a user's rows. Use :func:`from_rows` to create one.

    A row's scenario is the hash of its prompt, without case, blanks and invisible characters. Rows
    with the same prompt are therefore in one split, whatever their ids.

    Attributes:
        name: name of the benchmark.
        env_id: Gymnasium id of its env.
        rules: the user's functions.
    """

    subsets: tuple[str, ...] = ()
    grows = False

    def __init__(
        self,
        name: str,
        rows: Sequence[PromptRow],
        rules: RowRules,
        *,
        shares: Mapping[str, float] = SHARES,
    ) -> None:
        self.name, self.env_id, self.rules = name, f"Rows-{name}-v0", rules
        self._shares = dict(shares)
        scenarios = [row.scenario for row in rows]
        self._given: dict[str, Split] = {}
        for scenario, row in zip(scenarios, rows, strict=True):
            if row.split is not None:  # of two rows with one prompt, the held-out one counts
                known = self._given.get(scenario, Split.TRAIN)
                self._given[scenario] = strictest(known, Split(row.split))
        self._few = self._spread(scenarios)
        of_split: dict[Split, dict[str, Task]] = {split: {} for split in NATIVE_SPLITS}
        for number, (scenario, row) in enumerate(zip(scenarios, rows, strict=True)):
            split = self.split_of(scenario)
            task = self._task(row, number, scenario, split)
            of_split[split].setdefault(task.id, task)
        ids = Counter(task.name for tasks in of_split.values() for task in tasks.values())
        if twice := [name for name, n in ids.items() if n > 1]:
            raise ConfigError(f"Different rows have the same id: {twice[0].partition('/')[2]!r}.")
        self._of_split = {split: TaskList(tasks.values()) for split, tasks in of_split.items()}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(tasks)} {split}" for split, tasks in self._of_split.items())
        return f"<{self.name}: {sizes} tasks>"

    def make(self, **options: Any) -> gym.Env[str, str]:
        """Create the env; see :class:`~coevo_gym.envs.rows.env.RowsEnv` and ``gymnasium.make``."""
        return gym.make(self.env_id, **options)

    def tasks(self, split: Split | str, subset: str | None = None) -> Sequence[Task]:
        """Return the tasks in a split, in the order of the rows."""
        split = parse_split(split)
        if subset is not None:
            raise TaskError(f"{self.name} has no subset {subset!r}; rows have no subsets.")
        if split not in NATIVE_SPLITS:
            raise TaskError(f"{self.name} has no native {split} tasks. Set hold_out, such as 0.2.")
        return self._of_split[split]

    def split_of(self, scenario: str) -> Split:
        """Return the split of a prompt's hash."""
        if (split := self._given.get(scenario)) is not None:
            return split
        if self._given:
            return Split.TRAIN  # rows with a split of their own are the only held-out ones
        return self._few.get(scenario) or self._by_hash(scenario)

    def side_of(self, task: Task) -> Split:
        """Return the split of a task's prompt and of its row, whatever scenario the task claims."""
        world, verifier = task.world, task.verifier
        if not isinstance(world, RowWorld):
            raise TaskError(f"{task.name} has no world of a row")
        rows = [world.row, verifier.row if isinstance(verifier, RowVerifier) else None]
        scenarios = [task.scenario, scenario_of(task.instruction, world.system)]
        try:
            scenarios += [PromptRow.model_validate(row).scenario for row in rows if row is not None]
        except ValidationError as error:
            raise TaskError(f"{task.name} contains an invalid row: {error}") from error
        return strictest(*map(self.split_of, scenarios))

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """Return no drafts: new rows cannot be derived from answers to old ones."""
        return ()

    def build(self, draft: Draft) -> Task:
        """Reject all drafts; the rows are the only tasks."""
        raise BuildError("rows of data do not grow")

    def replay(self, task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
        """Give answers in a new episode, and score the episode before and after each of them."""
        verifier = task.require_asked("replay").verifier
        assert isinstance(verifier, RowVerifier)
        errors, effects, observations = list[str](), list[Effect](), list[str]()
        with closing(self.rules.converse(verifier.row, task.instruction)) as talk:
            opening, over = talk.begin(), False
            scores, states = [self.rules.judge(talk, verifier.row, "")], [digest([])]
            for number, action in enumerate(actions, start=1):
                if over:
                    if to_error and errors[-1]:
                        break
                    errors.append("over")
                    effects.append(Effect.NOTHING)
                    observations.append("")
                    scores.append(scores[-1])
                    states.append(states[-1])
                    continue
                text, over = talk.answer(action)
                errors.append("")
                effects.append(Effect.CLOSED if over else Effect.CHANGED)
                observations.append(text)
                scores.append(self.rules.judge(talk, verifier.row, action))
                states.append(digest(list(actions[:number])))
        return Replay(
            errors=tuple(errors),
            scores=tuple(scores),
            fingerprint=states[-1],
            effects=tuple(effects),
            states=tuple(states),
            shown=tuple(observations),
            opening="" if opening == task.instruction else opening,
        )

    def evidence(self, task: Task) -> Evidence:
        """Return the prompt; what the function looks at is not known."""
        return Evidence(task.require_asked("judge").instruction, ())

    def choices(self, view: View) -> tuple[str, ...]:
        """Return the row's choices; () if the answer is free text."""
        return tuple(view.info["admissible"])

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """Return the row's own tags."""
        return task.world.tags if isinstance(task.world, RowWorld) else ()

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """Return the row's ``answer``, or () if it has none."""
        return task.solution

    def symbol(self, step: Step) -> str:
        """Return ``answer``: all episodes consist of one."""
        return next(iter(step.calls), "")

    def _task(self, row: PromptRow, number: int, scenario: str, split: Split) -> Task:
        name = str(row.id) if row.id != "" else str(number)
        tags = tuple(sorted(dict.fromkeys(row.tags)))
        content = row.model_dump(mode="json", exclude_unset=True)
        return Task(
            benchmark=self.name,
            name=f"{self.name}/{name}",
            split=split,
            scenario=scenario,
            instruction=row.request or row.content,
            world=RowWorld(
                system=row.system,
                choices=row.choices,
                tags=tags,
                row=None if self.rules.one_answer else content,
            ),
            verifier=RowVerifier(row=content),
            solution=() if row.answer is None else (str(row.answer),),
        )

    def _by_hash(self, scenario: str) -> Split:
        """Return a prompt's split by its hash, so that it does not depend on the other rows."""
        place = int(digest(scenario)[:13], 16) / 16**13
        for split in NATIVE_SPLITS:
            place -= self._shares.get(split, 0.0)
            if place < 0:
                return split
        return Split.TRAIN

    def _spread(self, scenarios: Sequence[str]) -> dict[str, Split]:
        """Return the splits of all prompts, if so few rows would leave a split empty; else {}."""
        free = sorted(set(scenarios) - self._given.keys())
        wanted = [split for split in NATIVE_SPLITS if self._shares.get(split, 0.0) > 0]
        there = {self._by_hash(scenario) for scenario in free}
        if self._given or len(free) < len(wanted) or there >= set(wanted):
            return {}
        n_held_out = len(wanted) - 1
        last = free[-n_held_out:]
        return {
            **dict.fromkeys(free[:-n_held_out], Split.TRAIN),
            **dict(zip(last, wanted[1:], strict=True)),
        }


def from_rows(
    rows: Iterable[Mapping[str, Any]] | str | Path,
    verify: Verify | None = None,
    *,
    respond: Respond | None = None,
    env: Callable[[], Any] | None = None,
    max_turns: int = 10,
    name: str = "",
    shares: Mapping[str, float] = SHARES,
    timeout_s: float = 60.0,
) -> RowsBenchmark:
    """Make a benchmark from prompts and a function that judges answers.

    It works like every other benchmark: ``gymnasium.make(found.env_id)``,
    :class:`~coevo_gym.EvolvingTaskSampler`, ``coevo_gym.evaluate(found.name, …)``. An episode is
    one answer, unless ``respond`` or ``env`` is given.

    Args:
        rows: mappings, or the path to a JSONL file. A row has a ``prompt`` or ``messages``, and may
            have ``id``, ``tags`` (``"kind:value"``), ``split``, ``choices``, ``answer`` (a correct
            answer, for demonstrations), and any other fields for the function. Values are JSON.
        verify: function ``verify(row, answer)`` that returns True or False, or a score in [0, 1];
            it may be asynchronous. Only a score of 1 is a success. If it raises an error, the
            episode is lost, and never counts as a failure. With ``respond`` or ``env``, it gets the
            last answer. None only with ``env``, whose rewards then sum to the score.
        respond: function ``respond(row, messages)`` that plays the user: it returns the next
            message, or None at the end. ``messages`` are all messages so far, each with ``role``
            and ``content``.
        env: creates an env for each episode: a Gymnasium env, whose ``reset`` gets
            ``options={"row": row}``, or an object with ``reset(row) -> text`` and ``step(text) ->
            (text, reward, done)``. Observations are texts. Its rows need no prompt.
        max_turns: maximum number of answers per episode, with ``respond`` or ``env``.
        name: name of the benchmark, in lowercase letters, digits and underscores; "" for a name
            that contains a hash of the rows and of the function's source.
        shares: shares of the splits, which sum to 1. The split of a row depends on a hash of its
            prompt, so it stays the same if other rows are added, and rows with the same prompt are
            never divided. Only if a split would be empty, it gets a prompt of another, which
            returns once there are more rows. If rows have a ``split``, those without one are
            training rows, and of two rows with the same prompt, the held-out one counts.
        timeout_s: maximum seconds for one call of a function.

    Raises:
        ConfigError: if a row is invalid, there are no rows, another benchmark has the name, or
            functions are missing or exclude each other, or another argument is invalid.

    Example:
        >>> from coevo_gym.envs.rows import from_rows
        >>> rows = [{"prompt": f"{n} + {n} = ?", "sum": 2 * n} for n in range(50)]
        >>> sums = from_rows(rows, lambda row, answer: answer.strip() == str(row["sum"]))
        >>> env = sums.make()
        >>> prompt, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step("no idea")
        >>> reward, terminated
        (0.0, True)
    """
    if respond is not None and env is not None:
        raise ConfigError(
            "Pass respond or env to from_rows, not both: an env plays the user itself."
        )
    if verify is None and env is None:
        raise ConfigError("from_rows needs verify, a function verify(row, answer) that judges.")
    if not is_positive_int(max_turns):
        raise ConfigError(f"max_turns must be a positive int, got {max_turns!r}.")
    if not is_positive_number(timeout_s):
        raise ConfigError(f"timeout_s must be a positive number, got {timeout_s!r}.")
    if not {*shares} <= {*NATIVE_SPLITS} or min(shares.values(), default=0.0) < 0:
        raise ConfigError(f"shares must name train, val and test, got {dict(shares)}.")
    if not math.isclose(sum(shares.values()), 1.0):
        raise ConfigError(f"shares must sum to 1, got {dict(shares)}.")
    read = [
        _row(number, row, prompted=env is None)
        for number, row in enumerate(_read_rows(rows), start=1)
    ]
    if not read:
        raise ConfigError("from_rows needs at least one row, got none.")
    content = hashlib.sha256()
    for row in read:
        content.update(canonical_json(row.model_dump(mode="json")).encode())
    whole = f"{content.hexdigest()} {source_of(verify, respond, env)}"
    stem = Path(rows).stem if isinstance(rows, (str, Path)) else "rows"
    stem = re.sub(r"[^a-z0-9]+", "_", stem.lower())
    stem = stem if stem[:1].isalpha() else f"rows_{stem}"
    name = name or f"{stem}_{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    rules = RowRules(verify, respond, env, timeout_s)
    benchmark = RowsBenchmark(name, read, rules, shares=shares)
    _register(benchmark, content.hexdigest(), 1 if rules.one_answer else max_turns)
    return benchmark


def _read_rows(rows: Iterable[Mapping[str, Any]] | str | Path) -> Iterable[object]:
    if not isinstance(rows, (str, Path)):
        return rows
    try:
        return [json.loads(decoded(line)) for _, line in task_lines(Path(rows))]
    except (TaskError, ValueError) as error:
        raise ConfigError(f"{rows} is not a JSONL file of rows: {error}") from error


def _row(number: int, value: object, *, prompted: bool) -> PromptRow:
    try:
        row = PromptRow.model_validate(freeze(value))
    except (ValidationError, ValueError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise ConfigError(f"Row {number} is invalid: {problem}. Got {str(value)[:200]}.") from error
    if prompted and not row.request.strip():
        raise ConfigError(f"Row {number} has neither a prompt nor messages: {str(value)[:200]}.")
    if row.messages and row.messages[-1].role != "user":
        raise ConfigError(f"Row {number}: the last message must be from the user.")
    if wrong := next((tag for tag in row.tags if not TAG.fullmatch(tag)), None):
        raise ConfigError(f"Row {number}: a tag has the form 'kind:value', got {wrong!r}.")
    return row


def scenario_of(request: str, system: str) -> str:
    """Return the hash of a prompt, without case, blanks and invisible characters."""
    return hashlib.sha256(canonical_json(folded([system, request])).encode()).hexdigest()


def _register(benchmark: RowsBenchmark, content: str, max_steps: int) -> None:
    """Register a benchmark and its env. The same rows may be registered again, as in a notebook."""
    module = f"{__name__}_of_{benchmark.name}"
    known = sys.modules.get(module)
    if known is not None and content != known.CONTENT:
        raise ConfigError(
            f"Other rows are already registered as {benchmark.name!r}. Choose another name."
        )
    if known is None and find_spec(benchmark.name) is not None:
        raise ConfigError(f"There is already a benchmark {benchmark.name!r}. Choose another name.")
    home = known or ModuleType(module)
    kind = {"benchmark": benchmark.name, "default_max_steps": max_steps}
    env = type("Env", (RowsEnv,), {**kind, "__module__": module})
    vars(home).update(
        CONTENT=content,
        BENCHMARK=benchmark,
        Env=env,
        make_vec=functools.partial(TaskVectorEnv, benchmark.env_id),
    )
    sys.modules[module] = home
    register_benchmark(
        BenchmarkSpec(
            name=benchmark.name,
            env_id=benchmark.env_id,
            benchmark=f"{module}:BENCHMARK",
            env=f"{module}:Env",
            world=f"{RowWorld.__module__}:RowWorld",
            verifier=f"{RowVerifier.__module__}:RowVerifier",
            title="prompts and a function that judges the answers",
            prompt="coevo_gym.envs.rows:prompt.j2",
        )
    )
