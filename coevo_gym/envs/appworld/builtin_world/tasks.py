"""The files of the built-in world, and the engine runs that verify and measure its tasks.

All tasks share the API docs and the base databases.
"""

import json
import re
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import Any

from appworld.apps import get_all_apps
from appworld.collections.api_docs import ApiDocCollection
from appworld.collections.models import ModelCollection
from appworld.common.constants import CANARY_STRING, DB_VERSION
from appworld.common.utils import freeze_time
from appworld.environment import AppWorld
from appworld.evaluator import TestTracker, evaluate_task

from .desk import add_words
from .judge import evaluation_code
from .money import add_money
from .music import add_music
from .people import NOW, add_people
from .scenario import Asker, Scenario

ALL_APPS = tuple(get_all_apps())
EXPERIMENT = "mini_world"
_NOT_COUNTED = {"admin", "api_docs", "supervisor"}


class MiniWorldError(Exception):
    """Raised if a task of the built-in world is invalid."""


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, creating its parent folders if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def build_api_docs(data: Path) -> ApiDocCollection:
    """Write the documentation of all public APIs, in the only format that the engine reads."""
    docs = ApiDocCollection.build(
        load_apps=tuple(get_all_apps(skip_admin=True)), include_response_schemas=True
    )
    for app, apis in docs.items():
        with_canary = {name: {**doc, "canary_string": CANARY_STRING} for name, doc in apis.items()}
        write_json(data / "api_docs" / "standard" / f"{app}.json", with_canary)
    return docs


def build_base(data: Path, docs: ApiDocCollection) -> None:
    """Write the databases that all tasks start from."""
    home = ":memory:mini-base"
    fields = ("path", "method", "description", "parameters", "response_schemas")
    with freeze_time(NOW):
        models = ModelCollection.load(
            to_db_home_path=home, from_db_home_path=home, load_apps=list(ALL_APPS), create_db=True
        )
        for app, apis in docs.items():
            for name, doc in apis.items():
                described = {field: doc[field] for field in fields}
                models.api_docs.ApiDoc.create_save(app_name_=app, api_name=name, **described)
        add_people(models)
        add_music(models)
        add_money(models)
        add_words(models)
        save(models, data / "base_dbs", "full")


def save(models: ModelCollection, folder: Path, form: str) -> None:
    """Write the databases to a folder, and close them."""
    models.save(
        db_home_path=str(folder),
        format=form,
        app_names=list(ALL_APPS),
        delete_if_exists=True,
        save_model_hashes=True,
    )
    models.close()


def write_task(data: Path, scenario: Scenario, task_id: str) -> None:
    """Write a task's files, then run the task to count its API calls and grade it.

    Raises:
        MiniWorldError: if the reference solution fails, or doing nothing passes.
    """
    with freeze_time(NOW):
        _write_files(data, scenario, task_id)
    _measure(data / "tasks" / task_id / "ground_truth", task_id, scenario.difficulty)


def _write_files(data: Path, scenario: Scenario, task_id: str) -> None:
    """Write a task's files, with placeholders for the values that a run measures later."""
    name, values = scenario.variant(task_id)
    folder = data / "tasks" / task_id
    models = ModelCollection.load(
        to_db_home_path=f":memory:mini-{task_id}",
        from_db_home_path=str(data / "base_dbs"),
        load_apps=list(ALL_APPS),
    )
    asker = Asker(models, name, values)
    answer = scenario.answer(asker) if scenario.answer else None
    changes = scenario.changes(asker) if scenario.changes else {}
    instruction = scenario.instruction.format(**values)
    person = models.admin.MainUser.find_one(first_name=name)
    _add_supervisor(models.supervisor, person, instruction)
    specs = {
        "instruction": instruction,
        "supervisor": _copied(person, "first_name", "last_name", "email", "phone_number"),
        "datetime": NOW.isoformat(),
        "db_version": DB_VERSION,
    }
    write_json(folder / "specs.json", specs)
    save(models, folder / "dbs", "changes")
    code = scenario.code(values)
    truth = folder / "ground_truth"
    write_json(truth / "public_data.json", values)
    rows = {table: asdict(change) for table, change in changes.items()}
    write_json(truth / "private_data.json", {"changes": rows})
    write_json(truth / "answer.json", answer)
    (truth / "solution.py").write_text(code, encoding="utf-8")
    compiled = f"def solution(apis, requester):\n{indent(code, '    ')}"
    (truth / "compiled_solution.py").write_text(compiled, encoding="utf-8")
    (truth / "evaluation.py").write_text(evaluation_code(changes), encoding="utf-8")
    # The engine needs these two to load a task; the measured ones replace them.
    unknown = dict.fromkeys(("num_apps", "num_apis", "num_api_calls", "num_solution_code_lines"), 0)
    metadata = {"mode": "full", "difficulty": scenario.difficulty, **unknown}
    write_json(truth / "metadata.json", metadata)
    write_json(truth / "test_data.json", [])


def _copied(row: Any, *fields: str) -> dict[str, Any]:
    return {field: getattr(row, field) for field in fields}


def _add_supervisor(tables: Any, person: Any, instruction: str) -> None:
    fields = _copied(person, "first_name", "last_name", "email", "phone_number", "birthday", "sex")
    supervisor = tables.Supervisor.create_save(**fields)
    owned = {"supervisor_id": supervisor.id}
    tables.Task.create_save(instruction=instruction, **owned)
    for account in person.account_passwords:
        tables.AccountPassword.create_save(**owned, **_copied(account, "account_name", "password"))
    for card in person.payment_cards:
        fields = _copied(card, "owner_name", "card_name", "card_number")
        dated = _copied(card, "expiry_year", "expiry_month", "cvv_number")
        tables.PaymentCard.create_save(**owned, **fields, **dated)


def _measure(truth: Path, task_id: str, difficulty: int) -> None:
    """Grade an agent that does nothing and the reference solution; write the measured values."""
    code = (truth / "compiled_solution.py").read_text(encoding="utf-8")
    with AppWorld(task_id, experiment_name=EXPERIMENT) as world:
        world.execute("apis.supervisor.complete_task()")
        idle = _grade(task_id)
        before = _calls(world)
        output = world.execute(f"{code}\nsolution(apis, requester)")
        done = _grade(task_id)
        calls = _calls(world)[len(before) :]
    if done.failures or "Traceback" in output:
        raise MiniWorldError(f"{task_id}: the solution failed: {output}\n{done.failures}\n{code}")
    if not idle.failures:
        raise MiniWorldError(f"{task_id}: doing nothing passes.")
    labels = TestTracker.prepare_test_data(
        [{"requirement": row["requirement"]} for row in done.passes],
        [{"requirement": row["requirement"]} for row in idle.passes],
    )
    apps = sorted({url.lstrip("/").split("/")[0] for url in calls} - _NOT_COUNTED)
    write_json(truth / "test_data.json", labels)
    write_json(truth / "required_apps.json", apps)
    write_json(
        truth / "metadata.json",
        {
            "mode": "full",
            "difficulty": difficulty,
            "num_apps": len(apps),
            "num_apis": len(set(re.findall(r"apis\.(\w+\.\w+)", code))),
            "num_api_calls": len(calls),
            "num_solution_code_lines": len([line for line in code.splitlines()[1:] if line]),
        },
    )


def _grade(task_id: str) -> Any:
    return evaluate_task(task_id, experiment_name=EXPERIMENT, save_report=False)


def _calls(world: Any) -> list[str]:
    """Return the paths of all API requests so far."""
    log = Path(world.output_logs_directory) / "api_calls.jsonl"
    return [json.loads(line)["url"] for line in log.read_text(encoding="utf-8").splitlines()]
