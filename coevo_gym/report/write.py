"""Writing a run's report and picture to files."""

from __future__ import annotations

from pathlib import Path

from coevo_gym.core.waiting import only_looking
from coevo_gym.report.collect import load_report_data
from coevo_gym.report.render import render_picture, render_report
from coevo_gym.store.folder import RunFolder, write_atomic


def write_report(folder: RunFolder, path: Path | None = None) -> Path:
    """Write a run's report, by default into its folder, and return its path."""
    path = path or folder.report
    with only_looking():
        data = load_report_data(folder)
    write_atomic(path, render_report(data).encode())
    return path


def write_picture(folder: RunFolder, path: Path) -> None:
    """Write a run's success and pool size over env steps as a standalone SVG."""
    with only_looking():
        data = load_report_data(folder)
    write_atomic(path, render_picture(data).encode())
