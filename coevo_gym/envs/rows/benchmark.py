"""A benchmark class for rows of a user's data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium as gym
from numpy.random import Generator
from pydantic import ValidationError

from coevo_gym.core.benchmark import Effect, Evidence, PanelEntry, Replay
from coevo_gym.core.errors import BuildError, ConfigError, EnvBackendError, ModelError, TaskError
from coevo_gym.core.evolution import Context, Draft, Proposal, digest
from coevo_gym.core.panel import hash_content
from coevo_gym.core.task import (
    NATIVE_SPLITS,
    OPEN,
    Split,
    Task,
    first_non_train,
    parse_split,
    thaw,
)
from coevo_gym.core.task_file import TaskList
from coevo_gym.core.trajectory import Step, Trajectory, View
from coevo_gym.envs.proposals import (
    actions_of,
    check_context,
    make_draft,
    make_evolved_task,
    make_open_task,
    single_request_of,
)
from coevo_gym.envs.rows.conversations import RowRules
from coevo_gym.envs.rows.growth import RowFindings, RowGrowth
from coevo_gym.envs.rows.row import PromptRow, parse_row, row_to_json, scenario_of
from coevo_gym.envs.rows.source import SHARES, RowsSource
from coevo_gym.envs.rows.world import RowVerifier, RowWorld

NOTHING_ASKED = "Nothing is asked. Write anything, and read the reply, if there is one."
_INVALID = "invalid row"
"""The only field of the placeholder for a row that cannot be parsed; its value is the reason."""
_NO_GROWTH, _NO_SOURCE = RowGrowth(), RowsSource()


class RowsBenchmark:
    """A benchmark whose tasks are rows of a user's data. Use :func:`from_rows` to create one.

    A row's scenario is a hash of its prompt that ignores case, whitespace and invisible characters.
    Therefore rows with the same prompt are always in the same split.

    Attributes:
        name: name of the benchmark.
        env_id: Gymnasium id of its env.
        rules: the user's functions that play and judge episodes.
        growth: the user's functions that propose and prove new rows.
        source: the file and functions from which other processes can create the benchmark.
        code: the source code of the user's functions, as far as it is known.
        content: hash of the rows.
        max_steps: maximum number of answers per episode.
    """

    subsets: tuple[str, ...] = ()
    starts_full = True
    min_steps = 0
    """References may consist of one answer; :meth:`build` rejects rows without a proof."""

    def __init__(
        self,
        name: str,
        rows: Sequence[PromptRow],
        rules: RowRules,
        *,
        growth: RowGrowth = _NO_GROWTH,
        shares: Mapping[str, float] = SHARES,
        source: RowsSource = _NO_SOURCE,
        code: str = "",
        content: str = "",
        max_steps: int = 1,
    ) -> None:
        self.name, self.env_id, self.rules = name, f"Rows-{name}-v0", rules
        self.growth, self.grows = growth, growth.propose is not None
        self.asks_once = rules.respond is None and rules.env is None
        self.source, self.code, self.max_steps = source, code, max_steps
        self.content = content
        self._shares = dict(shares)
        scenarios = [row.scenario for row in rows]
        self._given: dict[str, Split] = {}
        for scenario, row in zip(scenarios, rows, strict=True):
            if row.split is not None:  # of two rows with one prompt, the held-out one counts
                known = self._given.get(scenario, Split.TRAIN)
                self._given[scenario] = first_non_train(known, Split(row.split))
        self._few = self._splits_of_few_rows(scenarios)
        self._scenarios = frozenset(scenarios)
        of_split: dict[Split, dict[str, Task]] = {split: {} for split in NATIVE_SPLITS}
        for number, (scenario, row) in enumerate(zip(scenarios, rows, strict=True)):
            split = self.split_of(scenario)
            task = self._create_task(row, number, scenario, split)
            of_split[split].setdefault(task.id, task)
        ids = Counter(task.name for tasks in of_split.values() for task in tasks.values())
        if twice := [name for name, n in ids.items() if n > 1]:
            raise ConfigError(f"Different rows have the same id: {twice[0].partition('/')[2]!r}.")
        self._of_split = {split: TaskList(tasks.values()) for split, tasks in of_split.items()}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(tasks)} {split}" for split, tasks in self._of_split.items())
        return f"<{self.name}: {sizes} tasks>"

    def __deepcopy__(self, memo: object) -> RowsBenchmark:
        return self

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
        """Return the split of a prompt, given its hash."""
        if (split := self._given.get(scenario)) is not None:
            return split
        if self._given:
            return Split.TRAIN  # rows with a split of their own are the only held-out ones
        return self._few.get(scenario) or self._split_by_hash(scenario)

    def side_of(self, task: Task) -> Split:
        """Return the split of a task's prompt and row, whatever scenario the task claims."""
        world, verifier = task.world, task.verifier
        if not isinstance(world, RowWorld):
            raise TaskError(f"{task.name} was not created from a row: its world is not a RowWorld")
        rows = [world.row, verifier.row if isinstance(verifier, RowVerifier) else None]
        scenarios = [task.scenario]
        if task.origin != OPEN:
            scenarios.append(scenario_of(task.instruction, world.system))
        try:
            scenarios += [PromptRow.model_validate(row).scenario for row in rows if row is not None]
        except ValidationError as error:
            raise TaskError(f"{task.name} contains an invalid row: {error}") from error
        return first_non_train(*map(self.split_of, scenarios))

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """Return no drafts: new rows cannot be derived from answers to old ones."""
        return ()

    def propose(self, context: Context, rng: Generator) -> Sequence[Draft]:
        """Return drafts made from the rows that the user's function proposes.

        Raises:
            BuildError: if the function fails, or returns anything but rows.
            SplitLeakError: if the context's task is not a training task.
        """
        check_context(self.name, context)
        findings = RowFindings.from_context(context, int(rng.integers(2**31)))
        row = context.task.verifier
        assert isinstance(row, RowVerifier)
        return [
            self._draft_row(one, context) for one in self.growth.propose_rows(row.row, findings)
        ]

    def open(self, task: Task) -> Task:
        """Return a copy of a task without its prompt, for a model to explore."""
        return make_open_task(task, self.side_of(task), NOTHING_ASKED)

    def draft(self, proposal: Proposal, context: Context) -> Draft:
        """Create a draft from a row that a model proposes.

        The user's message is the prompt, or a JSON object with all fields of the row. The last
        action is its answer. Other fields have no values, except the tags of the explored row.

        Raises:
            BuildError: if the message is empty, or there are no actions.
            SplitLeakError: if the context's task is not a training task.
        """
        check_context(self.name, context)
        request, actions = single_request_of(proposal), actions_of(proposal)
        try:
            row = json.loads(request)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            row = {"prompt": request, "tags": self.tags(context.task)}
        solution = actions[-1:] if self.rules.takes_one_answer else actions
        return self._draft_row({"answer": actions[-1], **row}, context, solution)

    def _draft_row(self, value: object, context: Context, solution: Sequence[str] = ()) -> Draft:
        """Create a draft from a proposed row. If the row is invalid, :meth:`build` rejects it."""
        try:
            row = parse_row(value, prompted=self.rules.env is None)
        except ValueError as error:
            text = f"{value!r:.2000}"
            world, scenario = RowWorld(row={_INVALID: str(error)}), digest(text)
            return make_draft(
                context, scenario=scenario, instruction=text, solution=solution, world=world
            )
        content = row_to_json(row)
        return make_draft(
            context,
            scenario=row.scenario,
            instruction=row.request or row.content,
            solution=solution,
            world=self._create_world(row, content),
        )

    def build(self, draft: Draft) -> Task:
        """Build a task from a proposed row.

        The row needs a proof: an answer (its ``answer`` or ``reference``, or the result of the
        user's ``reference``), or the consent of ``accept``. The gates check that the answer is
        correct and that the empty answer is not.

        Raises:
            BuildError: if the row is invalid, exists already or has no proof, or one of the user's
                functions fails on it.
        """
        content = draft.world.row if isinstance(draft.world, RowWorld) else None
        if content is None:
            raise BuildError("the draft has no row")
        if content.keys() == {_INVALID}:
            raise BuildError(str(content[_INVALID]))
        try:
            row = parse_row(content, prompted=self.rules.env is None)
        except ValueError as error:
            raise BuildError(str(error)) from error
        if (draft.scenario, draft.instruction) != (row.scenario, row.request or row.content):
            raise BuildError("the draft's scenario and instruction do not match its row")
        if row.scenario in self._scenarios:
            raise BuildError("an existing row has the same prompt")
        self.growth.check_accepted(content)
        solution = self.growth.reference_answers(content, "answer", "reference")
        if len(draft.solution) > 1 and self.growth.reference is None:
            solution = draft.solution
        if not solution and self.growth.accept is None:
            raise BuildError(
                "the row cannot be checked: it needs an answer, or from_rows needs reference or "
                "accept"
            )
        world = self._create_world(row, None if self.rules.takes_one_answer else content)
        proven = draft.model_copy(update={"world": world})
        task = make_evolved_task(
            proven, self.split_of(row.scenario), RowVerifier(row=content), solution
        )
        try:  # in training, a function that fails on a row would lose all its episodes
            self.replay(task, solution)
        except EnvBackendError as error:
            if isinstance(error.__cause__, ModelError):
                raise
            raise BuildError(str(error)) from error
        return task

    def replay(self, task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
        """Send answers in a new episode, and score the episode before and after each answer."""
        verifier = task.require_goal("replay").verifier
        assert isinstance(verifier, RowVerifier)
        errors, effects, observations = list[str](), list[Effect](), list[str]()
        with closing(self.rules.create_episode(verifier.row, task.instruction)) as talk:
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
                text, over = talk.step(action)
                errors.append(talk.error_kind)
                effects.append(Effect.CHANGED)
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
        """Return the prompt as evidence, because the facts that the function checks are unknown."""
        return Evidence(task.require_goal("judge").instruction, (), extractive=True)

    def choices(self, view: View) -> tuple[str, ...]:
        """Return the row's choices; () if the answer is free text."""
        return tuple(view.info["admissible"])

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """Return the row's own tags."""
        return task.world.tags if isinstance(task.world, RowWorld) else ()

    def panel_entry(self, task: Task) -> PanelEntry:
        """Return a panel entry with the row's id as its place, and the prompt and row as parts."""
        world, verifier = task.world, task.verifier
        assert isinstance(world, RowWorld)
        assert isinstance(verifier, RowVerifier)
        parts = {"prompt": [world.system, task.instruction], "row": thaw(verifier.row)}
        return PanelEntry({"row": task.name.partition("/")[2]}, parts)

    def data_versions(self, task: Task) -> dict[str, str]:
        """Return hashes of all rows and of the source code of the user's functions."""
        return {"functions": hash_content(self.code), "rows": self.content}

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """Return the task's reference answers, or () if it has none."""
        return task.solution

    def symbol(self, step: Step) -> str:
        """Return ``answer``, or the called tools, or "!" if all calls were unreadable."""
        return " ".join(step.calls) or ("!" if step.error_kind else "")

    def tools(self) -> str:
        """Return the agent's tools, as the JSON text of a chat request's ``tools``."""
        return "[]" if self.rules.tools is None else self.rules.tools.schemas

    def _create_task(self, row: PromptRow, number: int, scenario: str, split: Split) -> Task:
        name = str(row.id) if row.id != "" else str(number)
        content = row_to_json(row)
        try:
            solution = self.growth.reference_answers(content, "answer")
        except BuildError as error:
            raise ConfigError(f"Row {number + 1}: {error}") from error
        return Task(
            benchmark=self.name,
            name=f"{self.name}/{name}",
            split=split,
            scenario=scenario,
            instruction=row.request or row.content,
            world=self._create_world(row, None if self.rules.takes_one_answer else content),
            verifier=RowVerifier(row=content),
            solution=solution,
        )

    @staticmethod
    def _create_world(row: PromptRow, content: Mapping[str, Any] | None) -> RowWorld:
        tags = tuple(sorted(dict.fromkeys(row.tags)))
        return RowWorld(system=row.system, choices=row.choices, tags=tags, row=content)

    def _split_by_hash(self, scenario: str) -> Split:
        """Derive a prompt's split from its hash, so that it does not depend on the other rows."""
        place = int(digest(scenario)[:13], 16) / 16**13
        for split in NATIVE_SPLITS:
            place -= self._shares.get(split, 0.0)
            if place < 0:
                return split
        return Split.TRAIN

    def _splits_of_few_rows(self, scenarios: Sequence[str]) -> dict[str, Split]:
        """Return every prompt's split if hashing so few rows leaves a split empty, else {}."""
        free = sorted(set(scenarios) - self._given.keys())
        wanted = [split for split in NATIVE_SPLITS if self._shares.get(split, 0.0) > 0]
        there = {self._split_by_hash(scenario) for scenario in free}
        if self._given or len(free) < len(wanted) or there >= set(wanted):
            return {}
        n_held_out = len(wanted) - 1
        last = free[-n_held_out:]
        return {
            **dict.fromkeys(free[:-n_held_out], Split.TRAIN),
            **dict(zip(last, wanted[1:], strict=True)),
        }
