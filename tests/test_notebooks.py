"""The notebooks of the docs run in a real Jupyter kernel, and their cells stay small."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import coevo_gym
from coevo_gym.core.text_tables import html_table
from coevo_gym.runs.display import NotebookProgress
from coevo_gym.runs.table import TableRow
from coevo_gym.view.data.frames import DataRows

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
kernels = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

DOCS = Path(__file__).parents[1] / "docs"
MAX_OUTPUTS, MAX_BYTES = 60, 300_000
Outputs = list[list[dict[str, Any]]]


def environment(**more: str) -> dict[str, str]:
    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **more}


def run(cells: Sequence[str], folder: Path, **more: str) -> Outputs:
    """Run cells in one kernel; the outputs of each, as a notebook saves them."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        book,
        timeout=5000,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        coalesce_streams=True,
    )
    client.execute(env=environment(**more))
    return [cell.outputs for cell in book.cells]


def cells_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def check_size(outputs: Outputs) -> None:
    assert max(map(len, outputs)) <= MAX_OUTPUTS
    assert len(json.dumps(outputs)) <= MAX_BYTES


@pytest.mark.slow
def test_the_tutorial_notebook_runs(tmp_path: Path) -> None:
    short = {"LOOP__MAX_ENV_STEPS": "2000", "EVALUATION__N_TASKS": "20", "WARMUP__N_TASKS": "5"}
    settings = {f"COEVO_CFG__{key}": value for key, value in short.items()}
    check_size(run(cells_of(DOCS / "tutorial.ipynb"), tmp_path, **settings))
    for name in ("first", "demo"):
        assert (tmp_path / "runs" / name / "report.html").is_file()


@pytest.mark.slow
def test_the_language_model_notebook_runs(tmp_path: Path) -> None:
    check_size(run(cells_of(DOCS / "howto" / "llm.ipynb"), tmp_path))
    arms = {"first_look": ["static", "coevolve"], "second_look": ["static"]}
    for name, trained in arms.items():
        summary = json.loads((tmp_path / "runs" / name / "summary.json").read_text())
        assert [row["name"] for row in summary["table"]] == ["random", "warm-up", *trained]
    steps = (tmp_path / "runs" / "first_look" / "metrics.jsonl").read_text()
    assert steps.count('"event": "step"') >= 4
    assert (tmp_path / "first_look.html").stat().st_size > 10_000
    assert (tmp_path / "first_look_pages.html").stat().st_size > 100_000


EVALUATE = 'coevo_gym.evaluate("webshop", "random", sets={"evaluation.n_tasks": 20})'


def test_a_cell_has_one_output_that_is_updated_and_a_table(tmp_path: Path) -> None:
    within_a_loop = f"async def work():\n    return {EVALUATE}.n_tasks\nawait work()"
    command = "%%bash\ncoevo eval webshop --policy random --set evaluation.n_tasks=20 --name bash"
    outputs = run(["import coevo_gym", EVALUATE, within_a_loop, command], tmp_path)
    check_size(outputs)
    imported, evaluated, looped, printed = outputs
    assert imported == []
    progress, result = evaluated
    assert progress["data"]["text/plain"] == "random: 20/20"
    assert '<progress value="20" max="20">' in progress["data"]["text/html"]
    assert "<table>" in result["data"]["text/html"]
    assert looped[-1]["data"]["text/plain"] == "20"
    text = "".join(one["text"] for one in printed)
    assert "random: 20/20\n" in text
    assert not re.search(r"\x1b\[[0-9;?]*[A-HJKST]|\r", text)  # a pipe cannot redraw a line


@contextmanager
def kernel(folder: Path) -> Iterator[tuple[Any, Any]]:
    manager, client = kernels.start_new_kernel(env=environment(), cwd=str(folder))
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def messages_of(client: Any, code: str) -> Iterator[Mapping[str, Any]]:
    """The messages of a kernel while it executes code."""
    request = client.execute(code)
    while True:
        message = client.get_iopub_msg(timeout=600)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["content"].get("execution_state") == "idle":
            return
        yield message


def test_the_stop_button_ends_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    settings = {"loop.max_env_steps": 3000, "evaluation.n_tasks": 10, "warmup.n_tasks": 5}
    train = f'coevo_gym.train("quickstart", name="stopped", sets={settings})'
    with kernel(tmp_path) as (manager, client):
        list(messages_of(client, "import coevo_gym"))
        kinds, error, stopped = list[str](), {}, False
        for message in messages_of(client, train):
            kinds.append(message["msg_type"])
            text = message["content"].get("data", {}).get("text/plain", "")
            if "train static" in text and not stopped:
                stopped = True
                manager.interrupt_kernel()
            if kinds[-1] == "error":
                error = message["content"]
        assert error["ename"] == "KeyboardInterrupt"
        assert "coevo resume" in error["evalue"]
        assert kinds.count("display_data") == 1
        *_, last = messages_of(client, 'coevo_gym.resume("stopped").table[-1].name')
        assert last["content"]["data"]["text/plain"] == "'coevolve'"


# What results look like.

EVIL = "<script>alert(1)</script>\x1b[31m&\"'"


class Tags(HTMLParser):
    """The tags of a text, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_texts_in_results_are_escaped_and_short() -> None:
    rows = DataRows([{"task": EVIL, "long": "x" * 10_000, "empty": ""}] * 500)
    for html in (TableRow(EVIL, 0.5)._repr_html_(), rows._repr_html_(), html_table([EVIL], [])):
        parsed = Tags(html)
        assert "script" not in parsed.tags
        assert "<script>" in parsed.text
        assert "\x1b" not in html
    assert len(rows._repr_html_()) < 20_000
    assert "empty" not in rows._repr_html_()


def test_results_use_the_colours_of_the_page() -> None:
    """A result that sets a colour or a background is unreadable in the other of light and dark."""
    html = html_table(["a", "b"], [["1", "2"]], title="t")
    assert not re.search("color|background|class=", html)


def test_a_run_with_many_phases_and_warnings_stays_small() -> None:
    pytest.importorskip("IPython")
    with NotebookProgress() as progress:
        outputs = list[Any]()
        progress._update = outputs.append
        for phase in range(2_000):
            progress.begin_phase(f"phase {phase} {EVIL}", total=100)
            progress.update(100, success="50 %")
            progress.say("w" * 100_000)
    assert len(outputs[-1].html) < 80_000
    assert f"phase {phase}" in outputs[-1].text
    assert "earlier lines" in outputs[-1].text
    assert "script" not in Tags(outputs[-1].html).tags


def test_results_and_comparisons_are_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for policy in ("random", "scripted"):
        sets = {"evaluation.n_tasks": 3}
        coevo_gym.evaluate("webshop", policy, split="train", sets=sets, name=policy)
    stored = coevo_gym.results("scripted")
    for one in (coevo_gym.compare("random", "scripted"), stored, stored.episodes):
        assert "table" in Tags(one._repr_html_()).tags
    assert "The first 3 of 3 rows" in stored.episodes._repr_html_()
