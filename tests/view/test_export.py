"""Exported pages: the same answers as the server's, in files that need nothing else."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import Split
from coevo_gym.store.folder import read_json, write_json
from coevo_gym.view.api import json_response
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.export import write
from coevo_gym.view.export.write import DataFile, embed_files, export_pages
from coevo_gym.view.library import Library
from coevo_gym.view.safe import Censor
from coevo_gym.view.shell import STATIC
from tests.view.exports import read_data, replace_data, restore_texts
from tests.view.sample import EVAL, RUN


@pytest.fixture(scope="module")
def page(sample_folder: Path, coevo_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("export") / "small.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COEVO_HOME", str(coevo_home))
        patch.chdir(sample_folder)
        export_pages(Library(), target)
    return target


def test_an_export_contains_the_same_answers_as_the_server(page: Path, beside: Path) -> None:
    data, collection = read_data(page), RunCollection(Library())
    kinds = {re.sub(r"[0-9a-f]{16,}|\d+", "*", path) for path in data["answers"]}
    assert len(kinds) > 20
    seen = set()
    for path, value in data["answers"].items():
        kind = re.sub(r"[0-9a-f]{16,}|\d+", "*", path)
        if kind in seen or path in ("about", "search") or path.startswith("compare"):
            continue
        seen.add(kind)
        is_list = path.rpartition("/")[2] in data["lists"]
        expected = json.loads(json_response(collection, path, "per_page=500" if is_list else ""))
        exported = restore_texts(value, data["texts"])
        for one in (expected, exported):
            for paging in ("per_page", "pages"):
                one.pop(paging, None)
        assert exported == expected, path
    expected = json.loads(
        json_response(collection, "compare", f"a=runs/{RUN}/random&b=runs/{RUN}/static")
    )
    comparison = data["answers"][f"compare?a=runs/{RUN}/random&b=runs/{RUN}/static"]
    assert restore_texts(comparison, data["texts"]) == expected


def test_an_exported_file_needs_no_other_file(page: Path) -> None:
    text = replace_data(page.read_text(), "")
    assert not re.search(r"<script src=|<link rel=.stylesheet", text)
    assert "default-src 'none'" in text
    assert 'name="robots" content="noindex"' in text
    assert len(re.findall("<script>", text)) == text.count("'sha256-") - text.count("<style>")


def test_evaluation_episodes_are_omitted_unless_requested(
    page: Path, beside: Path, tmp_path: Path
) -> None:
    data = read_data(page)
    assert not [path for path in data["answers"] if path.startswith(f"evals/{EVAL}/episodes/")]
    assert "--with-episodes" in " ".join(data["left_out"])
    asked = tmp_path / "asked.html"
    export_pages(Library([f"evals/{EVAL}"]), asked, episodes=True)
    export = read_data(asked)
    pages = [path for path in export["answers"] if path.startswith(f"evals/{EVAL}/episodes/")]
    assert len(pages) == 24
    one = restore_texts(export["answers"][pages[0]], export["texts"])
    assert "must not be used in training" in one["notice"]
    assert export["left_out"] == []


def test_an_export_of_training_episodes_leaves_nothing_out(beside: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(beside / "evals" / EVAL, tmp_path / "trained")
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, "split": "train"})
    assert export_pages(Library([str(folder)]), tmp_path / "trained.html").left_out == []


def test_an_export_contains_no_solution_of_a_held_out_task(page: Path, beside: Path) -> None:
    tasks = {task.id: task for task in get_benchmark("webshop").tasks(Split.VAL)}
    rows = json.loads(json_response(RunCollection(Library()), f"evals/{EVAL}/episodes"))["rows"]
    text = json.dumps(read_data(page))
    for row in rows:
        assert json.dumps(row["instruction"])[1:-1] in text  # what they ask for may be looked at
        assert json.dumps(tasks[row["task"]].solution[0])[1:-1] not in text


PAGE_BYTES = 20_000 + len(embed_files((STATIC / "index.html").read_text(), STATIC, ""))
"""Size of an export without data; its plain page takes 20 kB."""
KINDS = {"groups": "groups", "tasks": "tasks", "drafts": "drafts", "trajectories": "episodes"}


@pytest.mark.parametrize(
    ("most_bytes", "most_unpacked", "least_for_pages", "short"),
    [
        (PAGE_BYTES + 190_000, 10**9, 0, {"groups", "tasks", "drafts", "episodes"}),
        (PAGE_BYTES + 310_000, 10**9, 0, {"episodes"}),
        (10**9, 1_800_000, 0, {"episodes"}),
        (10**9, 0, 50_000, {"groups", "tasks", "drafts", "episodes"}),
    ],
    ids=["small file", "larger file", "unpacked size", "no unpacked size"],
)
def test_a_file_at_the_size_limit_lists_what_it_omits(
    beside: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most_bytes: int,
    most_unpacked: int,
    least_for_pages: int,
    short: set[str],
) -> None:
    monkeypatch.setattr(write, "MAX_UNPACKED", most_unpacked)
    monkeypatch.setattr(write, "MIN_FOR_PAGES", least_for_pages)
    target = tmp_path / "full.html"
    export = export_pages(Library([RUN]), target, most_bytes=most_bytes)
    assert target.stat().st_size == export.bytes <= most_bytes
    data = read_data(target)
    about = restore_texts(data["answers"]["about"], data["texts"])
    assert about["exported"]
    assert about["left_out"] == export.left_out == data["left_out"]
    pages = [path.split("/")[-2:] for path in data["answers"] if path.count("/") > 2]
    there = {kind: [id for of, id in pages if KINDS.get(of) == kind] for kind in KINDS.values()}
    held_out, *others = export.left_out
    assert held_out == write.WITHOUT_EPISODES
    lines = {line.split()[10]: line for line in others}
    assert lines.keys() == short
    for kind, line in lines.items():
        assert f" latest {len(there[kind])} of " in line
        assert "For all of them: " in line
    rows = restore_texts(data["answers"][f"runs/{RUN}/trajectories"], data["texts"])["rows"]
    assert f" of {len(rows)} episodes of {RUN}" in lines["episodes"]
    latest = [row["id"] for row in reversed(rows)]
    assert there["episodes"] == latest[: len(there["episodes"])]


def test_lists_too_large_for_one_file_are_refused_before_pages_are_made(
    beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "page_response", None)
    with pytest.raises(ConfigError, match=r"Export to a folder instead: --export .*/full$"):
        export_pages(Library([RUN]), tmp_path / "full.html", most_bytes=PAGE_BYTES)
    assert not (tmp_path / "full.html").exists()


def test_an_exported_folder_contains_everything_and_replaces_old_files(
    beside: Path, tmp_path: Path
) -> None:
    target = tmp_path / "pages"
    (target / "data").mkdir(parents=True)
    for name in ("index.js", "left-over.js"):  # of an earlier export
        (target / "data" / name).touch()
    export = export_pages(Library([f"evals/{EVAL}"]), target, episodes=True)
    assert export.page == target / "index.html"
    names = {file.name for file in (target / "data").iterdir()}
    assert "left-over.js" not in names
    data = read_data(target / "data" / "index.js")
    assert {f"{name}.js" for name in data["files"].values() if name} == names - {"index.js"}
    answers = {}
    for name in names - {"index.js"}:
        text = (target / "data" / name).read_text()
        assert text.startswith(f'coevo.takeExport("{name.removesuffix(".js")}", ')
        answers |= read_data(target / "data" / name)["answers"]
    assert set(answers) == set(data["files"])
    assert sum("/episodes/" in path for path in answers) == 24
    html = (target / "index.html").read_text()
    for file in re.findall(r'(?:src|href)="((?:static|data)/[^"]+)"', html):
        assert (target / file).is_file()


@pytest.mark.parametrize("target", ["pages.pdf", "there.txt", "full", "no/such/a.html", "no/such"])
def test_an_unusable_target_is_refused(beside: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "there.txt").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(ConfigError, match=r"--export|hoose another folder|Cannot write to"):
        export_pages(Library([RUN]), tmp_path / target)
    assert (tmp_path / "full" / "mine").is_file()


def test_an_export_needs_no_server_packages(beside: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None\n"
        "from pathlib import Path\n"
        "from coevo_gym.view.export.write import export_pages\n"
        "from coevo_gym.view.library import Library\n"
        f"print(export_pages(Library(['{EVAL}']), Path(sys.argv[1])).page)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_hostile_text_cannot_leave_the_data_script() -> None:
    hostile = ["</script><script>alert(1)</script>", "<!--<script>", "\u2028\u2029\n", "\ud800"]
    part = DataFile(Censor())
    part.add("x", {"texts": [text * 20 for text in hostile], "short": hostile, "odd": math.nan})
    text = part.finish()
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", text)
    line, _ = zlib.decompress(base64.b64decode(text)).decode().split("\n")[:2]
    entry = json.loads(line)
    answer = restore_texts(entry["answer"], entry["texts"])
    assert answer == {
        "texts": [text.replace("\ud800", "?") * 20 for text in hostile],
        "short": [*hostile[:3], "?"],
        "odd": None,
    }


QUERIES = {
    "trajectories": [
        {"arm": "static", "success": "false"},
        {"signal": ["boundary", "forgetting"], "sort": "-score"},
        {"signal": "none", "per_page": "7", "page": "3"},
        {"score_from": "0.5", "steps_to": "4", "sort": "steps"},
        {"q": "Buy NOW", "step_from": "2", "sort": "-step"},
        {"error": "false", "end": "solved"},
    ],
    "tasks": [
        {"origin": "evolved", "sort": "-success"},
        {"practised": "false"},
        {"arm": "coevolve", "success_to": "0.5", "sort": "name"},
    ],
    "drafts": [{"accepted": "false"}, {"arm": "static", "sort": "-found"}, {"gate": "prefix"}],
    "arms/coevolve/groups": [{"outcome": "some"}, {"stored": "true", "signal": "any"}],
}


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here; browser tests see it, too")
def test_exported_pages_filter_as_the_server_does(page: Path, beside: Path, tmp_path: Path) -> None:
    asked = [(path, query) for path, queries in QUERIES.items() for query in queries]
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    script = (
        "const fs = require('fs'); const coevo = globalThis.coevo = {};"
        f"eval(fs.readFileSync({json.dumps(str(STATIC / 'viewer' / 'exported.js'))}, 'utf8'));"
        "const read = (name) => JSON.parse(fs.readFileSync(name, 'utf8'));"
        f"const page = fs.readFileSync({json.dumps(str(page))}, 'utf8');"
        "const file = page.split('id=\"coevo-export\">')[1].split('<')[0];"
        "(async () => { const found = [];"
        "for (const [path, query] of read('asked.json')) found.push("
        f"await coevo.answerFrom(file, ['runs', '{RUN}', ...path.split('/')], query));"
        "console.log(JSON.stringify(found)); })();"
    )
    done = subprocess.run(
        ["node", "-e", script], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr
    collection = RunCollection(Library())
    for (path, query), exported in zip(asked, json.loads(done.stdout), strict=True):
        pairs = [
            f"{name}={one}"
            for name, value in query.items()
            for one in (value if isinstance(value, list) else [value])
        ]
        expected = json.loads(
            json_response(collection, f"runs/{RUN}/{path}", "&".join(pairs).replace(" ", "+"))
        )
        assert [row["id"] for row in exported["rows"]] == [row["id"] for row in expected["rows"]], (
            query
        )
        for field in ("total", "page", "pages", "gates", "accepted"):
            assert exported.get(field) == expected.get(field), (query, field)
