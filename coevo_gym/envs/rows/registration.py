"""The function :func:`from_rows`, and the registration of the benchmarks that it creates.

Their modules exist only in memory, because their rows and functions do.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from coevo_gym.core.benchmark import BenchmarkSpec, find_spec, register_benchmark
from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.evaluation_mark import refuse_marked
from coevo_gym.core.task import NATIVE_SPLITS, canonical_json
from coevo_gym.core.task_file import decode_line, task_lines
from coevo_gym.envs.checks import is_positive_int, is_positive_number
from coevo_gym.envs.rows.benchmark import RowsBenchmark
from coevo_gym.envs.rows.caller import Respond, Verify
from coevo_gym.envs.rows.conversations import RowRules
from coevo_gym.envs.rows.env import RowsEnv
from coevo_gym.envs.rows.growth import Accept, Propose, Reference, RowGrowth
from coevo_gym.envs.rows.row import PromptRow, parse_row
from coevo_gym.envs.rows.source import (
    MODEL,
    SHARES,
    RowsSource,
    collect_source_code,
    source_of,
)
from coevo_gym.envs.rows.tools import Tool, ToolSet
from coevo_gym.envs.rows.world import RowVerifier, RowWorld
from coevo_gym.envs.vector import TaskVectorEnv


def from_rows(
    rows: Iterable[Mapping[str, Any]] | str | Path,
    verify: Verify | None = None,
    *,
    respond: Respond | None = None,
    env: Callable[[], Any] | None = None,
    tools: Sequence[Tool] = (),
    propose: Propose | Literal["model"] | None = None,
    reference: Reference | None = None,
    accept: Accept | None = None,
    max_turns: int = 10,
    name: str = "",
    shares: Mapping[str, float] = SHARES,
    timeout_s: float = 60.0,
) -> RowsBenchmark:
    """Make a benchmark from prompts and a function that judges answers.

    It works like every other benchmark: ``gymnasium.make(benchmark.env_id)``,
    :class:`~coevo_gym.EvolvingTaskSampler`, ``coevo_gym.evaluate(benchmark.name, …)``. An episode
    is one answer, unless ``respond``, ``env`` or ``tools`` are given.

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
        tools: functions that the agent can call before each answer, and classes whose public
            methods it can call, with an object for each episode. Annotations and a docstring in
            Google style describe a tool to the agent. A first parameter ``row`` is hidden from it;
            a class may take ``row``, too. An exception is shown to the agent as an error, except
            ``EnvBackendError``, which loses the episode. Not with ``env``.
        propose: function ``propose(row, findings)`` that returns new rows, for a training row at
            which the agent is weak (:class:`~coevo_gym.envs.rows.RowFindings`); it may be
            asynchronous. With ``"model"``, the run's explorer, a language model, proposes rows.
            None if the rows do not grow. A proposed row is used only if it is new and proven: its
            answer is correct, the empty answer is not, and ``accept`` accepts it.
        reference: function ``reference(row)`` that returns a correct answer, or a list of answers
            for several turns; None to use the row's ``answer``, if it has one.
        accept: function ``accept(row)`` that returns True, or False or a reason, for a proposed
            row. With it, a proposed row needs no answer.
        max_turns: maximum number of answers per episode, with ``respond``, ``env`` or ``tools``;
            tool calls count as answers.
        name: name of the benchmark, in lowercase letters, digits and underscores; "" for a name
            that contains a hash of the rows and of the function's source.
        shares: shares of the splits, which sum to 1. The split of a row depends on a hash of its
            prompt, so it stays the same if other rows are added, and rows with the same prompt are
            in the same split. With so few rows that a split would be empty, each split gets at
            least one prompt. If some rows have a ``split``, rows without one are training rows; if
            rows with the same prompt have different splits, the held-out split is used.
        timeout_s: maximum seconds for one call of a function.

    Raises:
        SplitLeakError: if a row is an exported episode on a held-out task.
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
    if tools and env is not None:
        raise ConfigError("Pass tools or env to from_rows, not both: an env has its own actions.")
    if verify is None and env is None:
        raise ConfigError(
            "from_rows needs verify, a function verify(row, answer) that judges an answer."
        )
    if not is_positive_int(max_turns):
        raise ConfigError(f"max_turns must be a positive int, got {max_turns!r}.")
    if not is_positive_number(timeout_s):
        raise ConfigError(f"timeout_s must be a positive number, got {timeout_s!r}.")
    if not {*shares} <= {*NATIVE_SPLITS} or min(shares.values(), default=0.0) < 0:
        raise ConfigError(f"shares must name train, val and test, got {dict(shares)}.")
    if not math.isclose(sum(shares.values()), 1.0):
        raise ConfigError(f"shares must sum to 1, got {dict(shares)}.")
    if isinstance(propose, str) and propose != MODEL:
        raise ConfigError(f'propose must be a function or "{MODEL}", got {propose!r}.')
    read = list(_parse_rows(rows, prompted=env is None))
    if not read:
        raise ConfigError("from_rows needs at least one row, got none.")
    functions = {
        "verify": verify,
        "respond": respond,
        "env": env,
        "propose": propose,
        "reference": reference,
        "accept": accept,
    }
    code = collect_source_code(*functions.values(), *tools)
    content = hash_rows(read)
    whole = f"{content} {code}"
    stem = name_of_rows(rows) if isinstance(rows, (str, Path)) else "rows"
    name = name or f"{stem}_{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    rules = RowRules(verify, respond, env, timeout_s, ToolSet(tools) if tools else None)
    benchmark = RowsBenchmark(
        name,
        read,
        rules,
        growth=RowGrowth(propose, reference, accept, timeout_s),
        shares=shares,
        source=source_of(
            rows,
            functions,
            tools,
            max_turns=max_turns,
            timeout_s=timeout_s,
            shares=dict(shares),
        ),
        code=code,
        content=content,
        max_steps=1 if rules.takes_one_answer else max_turns,
    )
    _register(benchmark)
    return benchmark


def name_of_rows(file: str | Path) -> str:
    """Derive a benchmark's name from the name of the file that contains its rows."""
    stem = re.sub(r"[^a-z0-9]+", "_", Path(file).stem.lower())
    return stem if stem[:1].isalpha() else f"rows_{stem}"


def _parse_rows(
    rows: Iterable[Mapping[str, Any]] | str | Path, *, prompted: bool
) -> Iterator[PromptRow]:
    for number, value in enumerate(_read_rows(rows), start=1):
        refuse_marked(value, "become a task of from_rows", f"Row {number}")
        try:
            yield parse_row(value, prompted=prompted, name=f"Row {number}")
        except ValueError as error:
            raise ConfigError(str(error)) from error


def _read_rows(rows: Iterable[Mapping[str, Any]] | str | Path) -> Iterable[object]:
    if not isinstance(rows, (str, Path)):
        return rows
    values, place = list[object](), ""
    try:
        for number, line in task_lines(Path(rows)):
            place = f"line {number}: "
            values.append(json.loads(decode_line(line)))
    except (TaskError, ValueError) as error:
        raise ConfigError(f"{rows} is not a JSONL file of rows: {place}{error}") from error
    return values


def hash_rows(rows: Iterable[PromptRow]) -> str:
    """Return a hash of the rows' content."""
    content = hashlib.sha256()
    for row in rows:
        content.update(canonical_json(row.model_dump(mode="json")).encode())
    return content.hexdigest()


def _register(benchmark: RowsBenchmark) -> RowsBenchmark:
    """Register a benchmark and its env. The same rows may be registered again, as in a notebook."""
    home = _register_module(benchmark.name)
    if vars(home).get("CONTENT", benchmark.content) != benchmark.content:
        raise ConfigError(
            f"Other rows are already registered as {benchmark.name!r}. Choose another name."
        )
    kind = {
        "benchmark": benchmark.name,
        "default_max_steps": benchmark.max_steps,
        "rules": benchmark.rules,
    }
    env = type("Env", (RowsEnv,), {**kind, "__module__": home.__name__})
    vars(home).update(
        CONTENT=benchmark.content,
        BENCHMARK=benchmark,
        Env=env,
        make_vec=functools.partial(TaskVectorEnv, benchmark.env_id),
    )
    return benchmark


def may_be_rows(name: str) -> bool:
    """Return True if the name is unused or belongs to a benchmark of rows."""
    return bool(name) and find_spec(name) in (None, _make_spec(name))


def _register_module(name: str) -> ModuleType:
    """Register a benchmark of rows, and return the module that contains it."""
    spec = _make_spec(name)
    module = spec.benchmark.partition(":")[0]
    if module not in sys.modules:
        if not may_be_rows(name):
            raise ConfigError(f"There is already a benchmark {name!r}. Choose another name.")
        sys.modules[module] = ModuleType(module)
    register_benchmark(spec)
    return sys.modules[module]


def _make_spec(name: str) -> BenchmarkSpec:
    module = f"{__name__}_of_{name}"
    return BenchmarkSpec(
        name=name,
        env_id=f"Rows-{name}-v0",
        benchmark=f"{module}:BENCHMARK",
        env=f"{module}:Env",
        world=f"{RowWorld.__module__}:RowWorld",
        verifier=f"{RowVerifier.__module__}:RowVerifier",
        title="prompts and a function that judges the answers",
        prompt="coevo_gym.envs.rows:prompt.j2",
    )


def _unpickle_and_register(state: Mapping[str, Any]) -> RowsBenchmark:
    """Restore a pickled benchmark and register it, unless the same rows are already registered."""
    known = vars(_register_module(state["name"])).get("BENCHMARK")
    if isinstance(known, RowsBenchmark) and known.content == state["content"]:
        return known
    benchmark = RowsBenchmark.__new__(RowsBenchmark)
    vars(benchmark).update(state)
    return _register(benchmark)


def register_lazily(name: str, make: Callable[[], RowsBenchmark]) -> None:
    """Register a benchmark of rows that ``make`` creates when it is first used.

    If a benchmark with this name is already registered, it is kept.
    """
    home = _register_module(name)

    def get(attribute: str) -> object:
        if attribute not in ("BENCHMARK", "Env", "make_vec"):
            raise AttributeError(f"module {home.__name__!r} has no attribute {attribute!r}")
        make()
        return vars(home)[attribute]

    if "BENCHMARK" not in vars(home):
        vars(home)["__getattr__"] = get


def registered_source(name: str) -> RowsSource | None:
    """Return the source of an existing benchmark of rows; None for other names."""
    module = sys.modules.get(_make_spec(name).benchmark.partition(":")[0])
    benchmark = None if module is None else vars(module).get("BENCHMARK")
    return benchmark.source if isinstance(benchmark, RowsBenchmark) else None


copyreg.pickle(RowsBenchmark, lambda benchmark: (_unpickle_and_register, (vars(benchmark),)))
