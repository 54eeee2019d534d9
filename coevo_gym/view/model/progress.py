"""Progress of runs, including whether a process is still working on a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from coevo_gym.core.errors import StoreError
from coevo_gym.store.folder import in_use
from coevo_gym.store.progress import WorkProgress, WorkState, read_progress
from coevo_gym.view.refusals import Damaged
from coevo_gym.view.shapes.runs import ProgressView, State
from coevo_gym.view.shelf import Line, ShownRun

_STATES: Mapping[WorkState, State] = {
    "running": "training",
    "finished": "finished",
    "stopped": "stopped",
    "failed": "failed",
}


def progress_of(run: ShownRun) -> ProgressView:
    """Return a run's progress: as reported by the run, or else estimated from its files.

    Raises:
        Damaged: if the run's settings cannot be read.
    """
    config, lines = run.config, run.lines
    steps = [line for line in lines if line.get("event") in ("step", "eval") and line.get("arm")]
    last = steps[-1] if steps else None
    over = run.summary is not None
    arm = str(last["arm"]) if last else ""
    arms = list(config.arms)
    number = arms.index(arm) if arm in arms else 0
    by_steps = config.loop.max_steps is not None
    total = config.loop.max_steps if by_steps else config.loop.max_env_steps
    done = float(last["step" if by_steps else "env_steps"]) if last else None
    part = min(1.0, done / total) if done is not None and total else 0.0
    by_files = ProgressView(
        state=_state(run.folder.path, over=over),
        phase="" if over else f"train {arm}" if arm else "warm-up" if not lines else "first tasks",
        arm=arm,
        arms_done=len(arms) if over else number,
        arms_total=len(arms),
        done=done,
        total=total,
        unit="steps" if by_steps else "env steps",
        share=1.0 if over else (number + part) / len(arms) if last else 0.0,
        usd=_spent(steps, "usd"),
        tokens=int(_spent(steps, "tokens")),
        updated_at=written_at(run.folder.metrics, run.folder.database, run.folder.manifest),
    )
    told = read_progress(run.folder.path)
    return by_files if told is None or told.work != "train" else _as_told(by_files, told, over=over)


def _state(folder: Path, *, over: bool) -> State:
    if over:
        return "finished"
    return "training" if in_use(folder) else "stopped"


def _as_told(by_files: ProgressView, told: WorkProgress, *, over: bool) -> ProgressView:
    """Return the progress updated with the phase, pace and cost that the run reports."""
    running = told.state == "running"
    return by_files.model_copy(
        update={
            "state": "finished" if over else _STATES[told.state],
            "phase": "" if over else told.phase,
            "done": float(told.done),
            "total": float(told.total) or None,
            "unit": by_files.unit if told.phase == f"train {by_files.arm}" else "",
            "elapsed_s": _between(told.started, None if running else told.updated),
            "eta_s": told.all_left_s if running else None,
            "error": told.error,
            "usd": max(by_files.usd, told.cost.usd),
            "tokens": max(by_files.tokens, told.cost.tokens, told.tokens),
            "facts": dict(told.facts),
            "updated_at": told.updated,
        }
    )


def _between(begun: str, ended: str | None) -> float | None:
    """Return the seconds between two times; the second defaults to now."""
    try:
        begin = datetime.fromisoformat(begun)
        end = datetime.fromisoformat(ended) if ended else datetime.now(UTC)
        return max(0.0, (end - begin).total_seconds())
    except (ValueError, TypeError):
        return None


def written_at(*files: Path) -> str | None:
    """Return the latest modification time of some files, in UTC; None if no file exists."""
    times = [file.stat().st_mtime for file in files if file.is_file()]
    return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="seconds") if times else None


def unreadable(run: ShownRun, error: Damaged | StoreError) -> ProgressView:
    """Return the progress of a run that cannot be read."""
    return ProgressView(state="damaged", updated_at=written_at(run.folder.manifest))


def _spent(steps: Sequence[Line], what: str) -> float:
    """Return the total model usage over all arms, from each arm's latest step."""
    latest = {line["arm"]: line for line in steps if line["event"] == "step"}
    return sum(
        float(value)
        for line in latest.values()
        for name, value in line.items()
        if name.startswith("usage.") and name.endswith(f".{what}") and value is not None
    )
