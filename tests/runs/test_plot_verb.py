"""``coevo plot`` and ``coevo experiment --plot``, as a user runs them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.errors import ConfigError
from coevo_gym.store.folder import read_json
from coevo_gym.view.model.curves import average_points
from tests.runs.conftest import ROOT, Coevo

pytest.importorskip("matplotlib", reason="install the extra `[plot]`")

RBC = ("experiment", "rbc_webshop", "--from", str(ROOT / "results/rbc_webshop.jsonl"), "--finished")


@pytest.fixture
def again(finished: Path) -> Any:
    """Makes a copy of the finished run with other settings."""
    copies = []

    def copy(name: str, **settings: Any) -> Path:
        folder = finished.parent / name
        shutil.copytree(finished, folder)
        manifest = read_json(folder / "manifest.json")
        manifest["config"] |= {"name": folder.name, **settings}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        copies.append(folder)
        return folder

    yield copy
    for folder in copies:
        shutil.rmtree(folder)
        if folder.parent != finished.parent and not any(folder.parent.iterdir()):
            folder.parent.rmdir()


def test_a_run_is_plotted_and_one_seed_has_no_band(coevo: Coevo, tmp_path: Path) -> None:
    target = tmp_path / "success.svg"
    text = coevo("plot", "toy-run", "--out", str(target))
    assert str(target) in text.splitlines()
    assert "static, coevolve: 1 seed. A line of one seed has no band." in text
    assert target.read_bytes().lstrip().startswith(b"<?xml")


def test_seeds_share_a_line_with_a_band(coevo: Coevo, tmp_path: Path, again: Any) -> None:
    again("second", seed=4)
    target = str(tmp_path / "loss.png")
    axes = ("--x", "step", "--y", "loss", "--size", "page")
    names = ("--arm", "coevolve=CoEvolve (ours)", "--arm", "static")
    text = coevo("plot", "toy-run", "second", *axes, *names, "--out", target)
    assert "CoEvolve (ours), static: 2 seeds.\n" in text
    text = coevo("plot", "toy-run", "second", "--band", "interval", "--out", target)
    assert "A line of fewer than 3 seeds (--band interval) has no band." in text
    plotted = json.loads(coevo("plot", "toy-run", "second", "--out", target, "--json"))
    assert plotted["file"] == target
    assert [(curve["label"], curve["seeds"]) for curve in plotted["curves"]] == [
        ("static", 2),
        ("coevolve", 2),
    ]


def test_unfinished_cells_of_a_table_are_left_out_and_named(
    coevo: Coevo, tmp_path: Path, again: Any
) -> None:
    again("table/static-3")
    unfinished = again("table/static-4", seed=4)
    (unfinished / "summary.json").unlink()
    target = str(tmp_path / "table.svg")
    text = coevo("plot", "table", "--out", target)
    assert "Left out, because they are not finished: table/static-4." in text
    assert "static, coevolve: 1 seed." in text
    assert "2 seeds" in coevo("plot", "table/static-3", "table/static-4", "--out", target)
    (unfinished.with_name("static-3") / "summary.json").unlink()
    text = coevo("plot", "table", "--out", target, code=2)
    assert "No run of runs/table is finished." in text
    assert "table/static-3, table/static-4" in text


def test_curves_without_a_common_range_are_named() -> None:
    short, late = [(0.0, 0.1), (654.0, 0.2)], [(693.0, 0.3), (900.0, 0.3)]
    with pytest.raises(ConfigError, match="that of t/static-2 begins at 693, but that of t/static"):
        average_points("static", {"t/static-1": short, "t/static-2": late})


def test_what_can_be_plotted_is_listed(coevo: Coevo) -> None:
    text = coevo("plot", "toy-run", "--list")
    assert "success, score" in text
    assert "curriculum.pool_size" in text
    names = json.loads(coevo("plot", "toy-run", "--list", "--json"))
    assert names["x"] == ["step", "env_steps"]
    assert names["step"][0] == "training_success"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plot toy-run --out curve.gif", "Figures are written as .pdf, .svg, .png: use curve.pdf"),
        ("plot toy-run --out curve", "The format of curve is unknown"),
        ("plot toy-run --out nowhere/curve.pdf", "Cannot write to nowhere/curve.pdf"),
        ("plot toy-rn", "Did you mean 'toy-run'?"),
        ("plot toy-run --y los", "toy-run has no value of 'los' for the arm static (--y). Did you"),
        ("plot toy-run --x env_step", "Did you mean 'env_steps'? `coevo plot toy-run --list`"),
        ("plot toy-run --arm statc", "No run has the arm 'statc'. Did you mean 'static'? Arms:"),
        ("plot toy-run --arm static= --out a.pdf", "--arm static= has an empty label"),
        ("plot toy-run --arm static --arm static", "--arm static was passed twice"),
        ("plot toy-run runs/toy-run", "toy-run was passed twice, but a run is one seed"),
        ("plot toy-run --list --y nosuch", "--list only lists metrics. Omit --y, or omit --list"),
        ("plot toy-run --list --out a.pdf", "--list only lists metrics. Omit --out"),
        ("experiment controls --list --size page", "so it needs --plot"),
        ("plot toy-run --size poster", "'poster' is not one of 'column', 'page'"),
        ("plot toy-run --band se", "'se' is not one of 'sd', 'interval'"),
        ("experiment controls --plot a.jpg --budget tiny", "Figures are written as .pdf, .svg, .p"),
        ("experiment controls --plot nowhere/a.pdf", "Cannot write to nowhere/a.pdf"),
        ("experiment controls --plot a.pdf --dry-run", "Omit it with --list and --dry-run"),
        (
            f"experiment lm_first --from {ROOT}/results/rbc_webshop.jsonl --finished",
            "contains none of the 6 cells of lm_first, such as static-1. It contains: ",
        ),
        (
            f"experiment lm_first --from {ROOT}/pyproject.toml --finished",
            "--from needs a .jsonl file of finished cells, got",
        ),
        ("experiment controls --plot a.pdf --finished", "so there is nothing to plot"),
    ],
)
def test_every_mistake_says_what_to_do(coevo: Coevo, arguments: str, message: str) -> None:
    text = coevo(*arguments.split(), code=2)
    assert message in text
    assert "Traceback" not in text


def test_runs_of_different_benchmarks_are_refused(coevo: Coevo, again: Any) -> None:
    benchmark = read_json(again("kitchen") / "manifest.json")["config"]["benchmark"]
    again("shop", benchmark=benchmark | {"name": "webshop"})
    text = coevo("plot", "toy-run", "shop", code=2)
    assert "toy-run is of toy, shop is of webshop. Plot one at a time." in text
    text = coevo("plot", "toy-run", "kitchen", code=2)
    assert "toy-run and kitchen are the same seed (3) of the arm static" in text


def test_an_evaluation_has_no_curves(
    coevo: Coevo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = ("eval", "toy", "--policy=random", "--set=evaluation.n_tasks=2", "--name=toyed")
    coevo(*evaluated)
    assert "toyed is an evaluation or a table of evaluations, which have no curves" in coevo(
        "plot", "toyed", code=2
    )
    shutil.rmtree("evals")


def test_nothing_runs_if_matplotlib_is_missing(
    coevo: Coevo, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for command in (["plot", "toy-run"], ["experiment", "controls", "--plot", "a.pdf"]):
        text = coevo(*command, code=3)
        assert "Figures need matplotlib. Run `pip install" in text
        assert "[plot]" in text
    assert not (finished.parent / "controls-tiny").exists()
    assert not (finished.parent / "controls").exists()


def test_a_figure_that_cannot_be_written_leaves_the_old_one(
    coevo: Coevo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "old.pdf"
    target.write_text("old")
    (tmp_path / ".old.pdf.part").mkdir()  # where it is written first
    assert str(target) in coevo("plot", "toy-run", "--out", str(target), code=1)
    assert target.read_text() == "old"


def test_a_published_table_is_plotted(coevo: Coevo, tmp_path: Path) -> None:
    target = tmp_path / "rbc.pdf"
    text = coevo(*RBC, "--plot", str(target), "--csv")
    assert text.startswith("row,label,seeds,success")
    assert f"Figure: {target}" in text
    assert target.read_bytes().startswith(b"%PDF")
    assert not Path("runs/rbc_webshop").exists()
