"""Training, evaluation and comparison as functions, for notebooks and scripts."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from coevo_gym.core.arithmetic import request_arithmetic
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import parse_split
from coevo_gym.runs.config import Resolved, RunConfig, Sets, approve_settings, load_config
from coevo_gym.runs.display import (
    NotebookProgress,
    RunProgress,
    SafeConsole,
    can_redraw,
    send_logs_to,
)
from coevo_gym.runs.stop import Stopped, StopRequest
from coevo_gym.runs.table import TableRow
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RUNS, RunFolder

if TYPE_CHECKING:
    from coevo_gym.runs.evals.comparison import Comparison
    from coevo_gym.runs.train import RunSummary
    from coevo_gym.view.data.frames import StoredResults


def train(
    config: str | Path | Mapping[str, Any] | RunConfig | Resolved,
    *,
    sets: Sets = (),
    name: str | None = None,
    folder: str | Path | None = None,
    overwrite: bool = False,
    yes: bool = False,
    ignore_memory: bool = False,
    progress: bool | None = None,
) -> RunSummary:
    """Train all arms of a run and write its report, as ``coevo train`` does.

    Ctrl-C, or the notebook's stop button, stops the run after the current step and saves it;
    ``coevo resume NAME`` continues it. Call this function before PyTorch computes anything in this
    process; otherwise, a run with portable arithmetic becomes a native one, with a warning.

    Args:
        config: name of a preset, path to a TOML file, the content of such a file as a dictionary,
            or a config object.
        sets: settings to override, such as ``{"loop.max_env_steps": 3000}``, or a list of
            ``"KEY=VALUE"``.
        name: name of the run.
        folder: folder of the run; None for ``runs/NAME``.
        overwrite: delete an earlier run in the folder.
        yes: accept the estimated cost of paid models, and allow settings from a file to run Python
            code and to send your API keys; otherwise, an error states the estimate, or the
            permissions that the settings need.
        ignore_memory: start even if the language model does not fit in this machine's memory.
        progress: show the progress; None to show it only on a terminal or in a notebook.

    Returns:
        The results table, with baselines first, and a summary of each arm.

    Raises:
        ConfigError: if a setting is invalid, the folder is taken, the run may cost money and
            ``yes`` is False, or its model does not fit on this machine.
        KeyboardInterrupt: if the run was stopped; finished work is saved.

    Example:
        >>> import coevo_gym
        >>> summary = coevo_gym.train("quickstart", sets={"seed": 1})  # doctest: +SKIP
        >>> summary.table[-1].success  # doctest: +SKIP
        0.62
    """
    resolved = config if isinstance(config, Resolved) else load_config(config, sets=sets)
    if isinstance(config, Resolved) and sets:
        raise ConfigError("`sets` cannot change a resolved config. Pass it to load_config instead.")
    if name is not None:
        resolved = resolved.rename(name)
    if yes:
        approve_settings(resolved.config)
    request_arithmetic(resolved.config.arithmetic)  # before PyTorch is imported
    from coevo_gym.runs.planning.memory import require_memory
    from coevo_gym.runs.train import train as train_run

    if not ignore_memory:
        require_memory(resolved.config)
    target = RunFolder(Path(folder) if folder is not None else RUNS / resolved.config.name)
    return _run_and_write_report(
        target,
        progress,
        lambda display, stop: train_run(
            target, resolved, display, stop, overwrite=overwrite, agreed=yes
        ),
    )


def _run_and_write_report(
    folder: RunFolder,
    progress: bool | None,
    work: Callable[[RunProgress, StopRequest], RunSummary],
) -> RunSummary:
    """Execute a run, and write its report."""
    from coevo_gym.view.export.write import write_report

    with _show_progress(progress) as display, StopRequest(at_once=_interrupt) as stop:
        try:
            summary = work(display, stop)
        except Stopped:
            raise KeyboardInterrupt(
                f"Stopped and saved. Continue with: coevo resume {folder.path}"
            ) from None
    write_report(folder)
    return summary


def resume(
    run: str | Path,
    *,
    yes: bool = False,
    ignore_arithmetic: bool = False,
    ignore_memory: bool = False,
    progress: bool | None = None,
) -> RunSummary:
    """Continue a stopped run from its last checkpoint, as ``coevo resume`` does.

    If its benchmark was made with ``from_rows`` from rows or functions that exist only in Python,
    first call ``from_rows`` with the same rows, functions and name.

    Args:
        run: name of the run, or its folder.
        yes: allow the run's settings to run Python code and to send your API keys.
        ignore_arithmetic: continue even if this process rounds differently from the earlier ones.
        ignore_memory: as for :func:`train`.
        progress: as for :func:`train`.

    Returns:
        The same results as :func:`train`. For a finished run, they are read from its files.

    Raises:
        ConfigError: if the run does not exist, or cannot be continued in this process.
        StoreError: if its files are damaged, or its tasks or functions have changed.
        KeyboardInterrupt: if the run was stopped again; finished work is saved.

    Example:
        >>> import coevo_gym
        >>> summary = coevo_gym.resume("quickstart")  # doctest: +SKIP
    """
    from coevo_gym.runs.manifest import read_manifest

    folder = RunFolder.of(str(run))
    config = read_manifest(folder)[1]
    if yes:
        approve_settings(config)
    request_arithmetic(config.arithmetic)  # before PyTorch is imported
    from coevo_gym.runs.planning.memory import require_memory
    from coevo_gym.runs.train import RunSummary
    from coevo_gym.runs.train import resume as resume_run

    if folder.summary.is_file():
        return RunSummary.read(folder)
    if not ignore_memory:
        require_memory(config)
    return _run_and_write_report(
        folder,
        progress,
        lambda display, stop: resume_run(
            folder, display, stop, ignore_arithmetic=ignore_arithmetic
        ),
    )


def evaluate(
    source: str | Path,
    policy: str | None = None,
    *,
    split: str | None = None,
    panel: str | None = None,
    samples: int = 1,
    on: str | None = None,
    sets: Sets = (),
    env: Sequence[str] = (),
    name: str | None = None,
    overwrite: bool = False,
    yes: bool = False,
    progress: bool | None = None,
) -> TableRow:
    """Evaluate a policy on held-out tasks, as ``coevo eval`` does.

    With a ``name``, the evaluation is saved: the same call resumes it after an interruption, and
    ``evals/NAME/summary.json`` contains pass@k and success by task type.

    Args:
        source: name of a benchmark or a run, or a run's folder.
        policy: for a run: an arm (None for the last), ``warm-up``, ``random`` or ``scripted``; for
            a benchmark: ``transformers:MODEL``, ``vllm:MODEL``, ``vllm_server:MODEL``,
            ``openai:MODEL``, ``random`` or ``scripted``.
        split: ``train``, ``val`` (the default) or ``test``; ``held_out`` for runs that set
            scenarios aside; None with a panel.
        panel: a panel to play in its order, by name or path; see ``coevo panel list``.
        samples: episodes per task. With 1, ``evaluation.temperature`` applies, which is greedy by
            default. With more than one, actions are sampled at the policy's temperature.
        on: for a run: another benchmark to evaluate on, with its own prompt and choices.
        sets: settings to override, for a benchmark only, such as ``{"evaluation.n_tasks": 20}``.
        env: additional arguments for the benchmark's env, each as ``"name=value"``.
        name: name of the folder in ``evals/``; None to skip saving.
        overwrite: delete an earlier evaluation with this name.
        yes: accept the cost of a paid model; otherwise, an error states the estimated cost.
        progress: as for :func:`train`.

    Returns:
        Success (avg@k with several samples), its 95% interval, mean score and number of tasks.

    Raises:
        ConfigError: if the source, the policy, the panel or a setting does not exist, another
            evaluation has this name, or the evaluation may cost money and ``yes`` is False.
        SplitLeakError: if the run may have trained on tasks, products or rooms in the panel.

    Example:
        >>> import coevo_gym
        >>> row = coevo_gym.evaluate("webshop", "scripted", sets={"evaluation.n_tasks": 3})
        >>> row.success, row.n_tasks
        (1.0, 3)
    """
    from coevo_gym.runs.evals.evaluation import evaluate_job
    from coevo_gym.runs.evals.job import make_eval_job

    folder = None if name is None else EvalFolder.by_name(name)
    with _show_progress(progress) as display:
        job = make_eval_job(
            str(source),
            policy,
            split,
            display,
            panel=panel,
            samples=samples,
            on=on,
            sets=sets,
            env=env,
        )
        with job.stop_request(at_once=_interrupt) as stop:
            evaluation = evaluate_job(
                job, display, folder=folder, overwrite=overwrite, agreed=yes, stop=stop
            )
        return job.row(evaluation)


def compare(
    a: str,
    b: str | None = None,
    *,
    arms: Sequence[str] = (),
    on: str = "",
    shared_tasks: bool = False,
) -> Comparison:
    """Compare policy B with policy A on the tasks that both have tried, as ``coevo compare`` does.

    Args:
        a: name or folder of a run, or of an evaluation that has a name.
        b: the same for the other side; None to compare two arms of one run.
        arms: arms to compare, also ``"warm-up"`` and ``"random"``. Defaults to the last arm of each
            run, or to the first and last arm of one run.
        on: for runs: a task set in ``evaluation.final``, such as ``"test"``; "" for the tasks on
            which arms are compared during training.
        shared_tasks: True to compare sides with different panels on the tasks that both contain.

    Returns:
        Success of both sides, their difference with its 95% interval, and the tasks that only one
        side solves.

    Raises:
        ConfigError: if a name is unknown, there are no tasks that both sides have tried, or the
            sides were evaluated on different panels and ``shared_tasks`` is False.

    Example:
        >>> import coevo_gym
        >>> learned = coevo_gym.compare("quickstart", arms=["warm-up", "static"])  # doctest: +SKIP
        >>> learned.low > 0  # doctest: +SKIP
        True
    """
    from coevo_gym.runs.evals.comparison import compare as compare_sides
    from coevo_gym.runs.evals.sides import find_sides

    return compare_sides(*find_sides(a, b, arms, final=on), shared_tasks=shared_tasks)


def results(
    name: str | Path,
    *,
    split: str | Sequence[str] = "train",
    success: bool | None = None,
    arms: Sequence[str] = (),
    tasks: Sequence[str] = (),
) -> StoredResults:
    """Return what a run, an evaluation or a table of runs stores, as rows and data frames.

    Its ``episodes``, ``groups``, ``rounds`` and ``cells`` are sequences of dictionaries, each with
    a method ``to_frame`` for pandas. ``coevo export`` writes whole episodes to files.

    Args:
        name: name or folder of a run, an evaluation or a table of runs.
        split: splits of the tasks whose episodes to include. Episodes of other splits than
            ``train`` must not be used for training.
        success: True for solved episodes only, False for unsolved ones only.
        arms: arms or evaluated policies whose episodes to include; () for all.
        tasks: names or ids of tasks whose episodes to include; () for all.

    Raises:
        ConfigError: if the name is unknown.
        TaskError: if a split is unknown.

    Example:
        >>> import coevo_gym
        >>> stored = coevo_gym.results("quickstart")  # doctest: +SKIP
        >>> stored.episodes.to_frame().groupby("arm").success.mean()  # doctest: +SKIP
    """
    from coevo_gym.view.data.episodes import EpisodeFilter
    from coevo_gym.view.data.frames import StoredResults

    splits = (split,) if isinstance(split, str) else tuple(split)
    wanted = EpisodeFilter(
        success, tuple(tasks), tuple(arms), tuple(str(parse_split(one)) for one in splits)
    )
    return StoredResults(str(name), wanted)


@contextmanager
def _show_progress(progress: bool | None) -> Iterator[RunProgress]:
    """Create a progress display, or a silent one if ``progress`` is off."""
    console = SafeConsole(file=sys.stdout)
    if progress is None:
        progress = can_redraw(console) or console.is_jupyter
    if progress and console.is_jupyter:
        new: RunProgress = NotebookProgress()
    else:
        new = RunProgress(console if progress else SafeConsole(file=io.StringIO()))
    # Without a display, warnings go through the logging set-up of the caller.
    with new as display, send_logs_to(display.say) if progress else nullcontext():
        yield display


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
