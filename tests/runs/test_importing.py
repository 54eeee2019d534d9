"""Tasks from a file go through the gates, whatever they claim."""

from __future__ import annotations

import codecs
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import EnvBackendError, TaskError
from coevo_gym.core.evolution import Round
from coevo_gym.core.task import Split, Task
from coevo_gym.core.task_file import read_tasks, write_tasks
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.runs.tasks.importing import ImportedLine, Importer
from coevo_gym.store.database import RunStore
from coevo_gym.store.reader import RunReader
from tests.runs import stored_round
from tests.runs.conftest import Coevo
from tests.runs.test_stories import beside, run  # noqa: F401 (fixtures)
from tests.toy import BENCHMARK, ToyBenchmark, ToyVerifier

ACCEPTED, HELD = stored_round.ACCEPTED, stored_round.HELD
DRAFT = stored_round.DRAFTS[5]
LEAK = next(t for t in BENCHMARK.tasks(Split.VAL))
PROPOSAL = {
    "source": stored_round.PARENT.name,
    "description": "Four buttons.",
    "turns": [DRAFT.instruction],
    "actions": list(DRAFT.solution),
    "confidence": 0.9,
}


def write(path: Path, *lines: Mapping[str, Any] | Task | str) -> Path:
    texts = [
        one.to_json() if isinstance(one, Task) else one if isinstance(one, str) else json.dumps(one)
        for one in lines
    ]
    path.write_text("\n".join(texts) + "\n")
    return path


def judge(path: Path, *lines: Mapping[str, Any] | Task | str) -> list[ImportedLine]:
    return list(Importer().judge(write(path / "mine.jsonl", *lines)))


def test_imported_tasks_drafts_and_proposals_go_through_the_gates(tmp_path: Path) -> None:
    draft = stored_round.DRAFTS[4].model_dump(mode="json")
    task, drafted, proposed = judge(tmp_path, ACCEPTED, draft, PROPOSAL)
    assert task.task == ACCEPTED
    assert drafted.task is not None
    assert drafted.task.origin == "evolved"
    assert drafted.task.provenance["kind"] == "imported"
    assert proposed.task is not None
    assert proposed.task.parents[0] == stored_round.PARENT.id
    for one in (task, drafted, proposed):
        assert one.verdict is not None
        assert {"parse", "replay"} <= {check.gate for check in one.verdict.checks}


def test_the_verifier_of_an_imported_task_is_derived_and_never_trusted(tmp_path: Path) -> None:
    liar = ACCEPTED.model_copy(update={"name": "", "verifier": ToyVerifier(order=("red",))})
    (one,) = judge(tmp_path, liar)
    assert one.task is not None
    assert one.task.verifier == ACCEPTED.verifier
    assert one.task.id == ACCEPTED.id


def test_bad_lines_are_reported_by_number_and_do_not_affect_others(tmp_path: Path) -> None:
    bad = {
        1: ("nonsense", "is not valid JSON"),
        2: ("[1]", "is not a task (with a world and a verifier), a draft"),
        4: ({"turns": []}, 'the proposal has no "source"'),
        5: ({**PROPOSAL, "source": "toy/nosuch"}, "toy has no task 'toy/nosuch'"),
        6: ({**PROPOSAL, "confidence": 7}, "is not a valid proposal: confidence"),
        7: ({**json.loads(ACCEPTED.to_json()), "more": 1}, "is not a valid task: more"),
        8: ({**DRAFT.model_dump(mode="json"), "benchmark": "nosuch"}, "nosuch"),
        9: ({**DRAFT.model_dump(mode="json"), "instruction": "\ud800"}, "valid draft: instruction"),
        10: ("[" * 100_000, "is nested too deeply"),
        11: (LEAK, "is a val task"),
        12: ({**PROPOSAL, "source": LEAK.name}, "is a val task"),
        13: (BENCHMARK.open(stored_round.PARENT), "describes an open task"),
    }
    lines: dict[int, Any] = {number: line for number, (line, _) in bad.items()}
    lines |= {3: "", 14: ACCEPTED}
    judged = judge(tmp_path, *(lines[number] for number in sorted(lines)))
    assert [one.line for one in judged] == sorted(lines.keys() - {3})
    for one in judged[:-1]:
        assert bad[one.line][1] in one.problem, one
        assert one.task is None
    assert judged[-1].task == ACCEPTED


def test_gates_reject_invalid_leaked_and_duplicate_tasks(tmp_path: Path) -> None:
    padded = DRAFT.model_copy(update={"solution": ("press red", "fly", "done")})
    relabelled = LEAK.model_copy(update={"split": Split.TRAIN})
    judged = judge(tmp_path, padded.model_dump(mode="json"), relabelled, ACCEPTED, ACCEPTED)
    gates = [one.verdict.gate for one in judged if one.verdict]
    assert gates == ["build", "split_leak", "", "near_duplicate"]


def test_a_task_is_judged_again_if_its_engine_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, failures = ToyBenchmark.build, iter([True, False, True, True, True])

    def fails(self: ToyBenchmark, draft: Any) -> Task:
        if next(failures, False):
            raise EnvBackendError("the engine is gone")
        return build(self, draft)

    monkeypatch.setattr(ToyBenchmark, "build", fails)
    first, second, third = judge(tmp_path, ACCEPTED, HELD, stored_round.SECOND)
    assert first.task == ACCEPTED
    assert second.task is None
    assert second.problem == "not judged because its engine failed: the engine is gone"
    assert third.task == stored_round.SECOND


@pytest.mark.parametrize("name", ["webshop", "bfcl", "alfworld"])
def test_tasks_found_by_a_round_are_imported_unchanged(
    name: str, tmp_path: Path, engine: Callable[[str], None]
) -> None:
    engine(name)
    benchmark = get_benchmark(name)
    explorer = ScriptedExplorer(benchmark)
    accepted = GatedEvolver(benchmark, explorer).run(Round.unguided(3, seed=3)).accepted
    assert len(accepted) == 3
    assert tuple(one.task for one in judge(tmp_path, *accepted)) == accepted


@given(st.lists(st.binary(max_size=60)))
def test_a_file_of_any_bytes_is_read_to_its_end(
    tmp_path_factory: pytest.TempPathFactory, lines: Any
) -> None:
    path = tmp_path_factory.mktemp("any") / "mine.jsonl"
    path.write_bytes(b"\n".join([*lines, ACCEPTED.to_json().encode()]))
    *_, last = Importer().judge(path)
    assert last.task == ACCEPTED


def test_the_importer_and_read_tasks_accept_the_same_lines(tmp_path: Path) -> None:
    path, line = tmp_path / "mine.jsonl", ACCEPTED.to_json()
    path.write_bytes(codecs.BOM_UTF8 + f"{line}\n{HELD.to_json()}\n".encode())
    assert read_tasks(path) == (ACCEPTED, HELD)
    assert [one.task for one in Importer().judge(path)] == [ACCEPTED, HELD]
    path.write_bytes(line.encode() + b"\n" + HELD.to_json().encode("utf-16-le"))
    with pytest.raises(TaskError, match="line 2: "):
        read_tasks(path)
    first, second = Importer().judge(path)
    assert (first.task, second.task) == (ACCEPTED, None)
    path.write_bytes(line.encode("utf-16"))
    with pytest.raises(TaskError, match=r"line 1: the line is not UTF-8 text .* Save the file as"):
        read_tasks(path)
    assert "is not UTF-8 text" in next(Importer().judge(path)).problem


# As a command.


def test_importing_a_file_without_tasks_is_an_error(coevo: Coevo, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("\n  \n")
    text = coevo("tasks", "import", str(tmp_path / "mine.jsonl"), code=2)
    assert "contains no lines. Each line must be a task as JSON" in text


def test_accepted_tasks_are_written_to_a_file(coevo: Coevo, tmp_path: Path) -> None:
    mine, out = tmp_path / "mine.jsonl", tmp_path / "proven.jsonl"
    write_tasks(mine, [ACCEPTED, HELD])
    assert "2 of 2 accepted" in coevo("tasks", "import", str(mine), "--out", str(out))
    assert read_tasks(out) == (ACCEPTED, HELD)
    write(mine, "nonsense", ACCEPTED)
    text = coevo("tasks", "import", str(mine), "--out", str(out), code=1)
    assert "is not valid JSON" in text
    assert "1 of 2 accepted" in text
    assert read_tasks(out) == (ACCEPTED,)
    rows = json.loads(coevo("tasks", "import", str(mine), "--json", code=1))
    assert [(row["line"], row["accepted"]) for row in rows] == [(1, False), (2, True)]
    assert "Cannot write to" in coevo("tasks", "import", str(mine), "--out", "no/x", code=2)
    both = ("--out", str(out), "--run", "told")
    assert "not both" in coevo("tasks", "import", str(mine), *both, code=2)


def test_only_tasks_that_are_new_to_a_run_are_imported_into_it(
    coevo: Coevo,
    run: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    mine = write(tmp_path / "mine.jsonl", ACCEPTED, HELD, DRAFT.model_dump(mode="json"))
    text = coevo("tasks", "import", str(mine), "--run", "told", code=1)
    assert "1 of 3 accepted" in text
    assert text.count("rejected by near_duplicate") == 2
    reader = RunReader(run / "run.db")
    (decision,) = reader.decisions().values()
    assert decision.what == "imported"
    ((task, verdict),) = reader.tasks_to_join("static")
    assert task.instruction == DRAFT.instruction
    assert verdict is not None
    assert verdict.accepted
    output = coevo("tasks", "show", task.id, "--run", "told")
    assert "imported by a user" in output
    assert "substance" in output
    again = coevo("tasks", "import", str(mine), "--run", "told", code=1)
    assert "0 of 3 accepted" in again


def test_tasks_can_be_imported_into_a_run_while_it_trains(
    coevo: Coevo,
    run: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    mine = write(tmp_path / "mine.jsonl", DRAFT.model_dump(mode="json"))
    with closing(RunStore(run / "run.db")) as training:
        coevo("tasks", "review", "told", "--release", HELD.name)
        coevo("tasks", "import", str(mine), "--run", "told")
        joining = training.tasks_to_join(stored_round.ARM)
        assert [task.instruction for task, _ in joining] == [HELD.instruction, DRAFT.instruction]
        imported, verdict = joining[1]
        assert verdict is not None
        update = {"accepted": (imported,), "verdicts": (verdict,), "held": (), "explored": ()}
        order = stored_round.ROUND.model_copy(update={"id": "round-51"})
        result = stored_round.RESULT.model_copy(update={"round_id": order.id, **update})
        training.add_round(stored_round.ARM, 8, 2000, 13, order, result)
        assert [task.id for task, _ in training.tasks_to_join(stored_round.ARM)] == [HELD.id]
    output = coevo("tasks", "show", imported.name, "--run", "told")
    assert "round-51 of coevolve" in output
    assert "imported by a user on" in output


def test_tasks_of_another_benchmark_are_not_imported_into_a_run(
    coevo: Coevo,
    run: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    other = run.with_name("other")
    shutil.copytree(run, other)
    manifest = (other / "manifest.json").read_text()
    changed = json.loads(manifest)
    changed["config"]["benchmark"]["name"] = "webshop"
    (other / "manifest.json").write_text(json.dumps(changed))
    mine = write(tmp_path / "mine.jsonl", DRAFT.model_dump(mode="json"))
    text = coevo("tasks", "import", str(mine), "--run", "other", code=1)
    assert "the benchmark is toy, but the run trains on webshop" in text
