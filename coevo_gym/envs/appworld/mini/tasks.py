"""Tasks of the mini world: their files, and the runs in the engine that prove and measure them."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from appworld.collections.models import ModelCollection
from appworld.common.constants import DB_VERSION
from appworld.common.utils import freeze_time
from appworld.environment import AppWorld
from appworld.evaluator import TestTracker, evaluate_task

from .build import ALL_APPS, write_json
from .judge import evaluation_code
from .people import BY_NAME, NOW
from .scenario import Asker, Outcome, Scenario

EXPERIMENT = "mini_world"
_NOT_COUNTED = {"admin", "api_docs", "supervisor"}


class MiniWorldError(Exception):
    """A task of the mini world is invalid."""


def write_task(data: Path, scenario: Scenario, task_id: str) -> None:
    """Write all files of a task, then run it to fill in the measured values.

    Raises:
        MiniWorldError: if the reference solution fails, or doing nothing passes.
    """
    with freeze_time(NOW):
        _write_files(data, scenario, task_id)
    _measure(data / "tasks" / task_id / "ground_truth", task_id, scenario.difficulty)


def _write_files(data: Path, scenario: Scenario, task_id: str) -> None:
    """Write all files; values that need a run get placeholders."""
    name, values = scenario.variants[scenario.task_ids.index(task_id)]
    folder = data / "tasks" / task_id
    home = f":memory:mini-{task_id}"
    models = ModelCollection.load(
        to_db_home_path=home,
        from_db_home_path=str(data / "base_dbs"),
        load_apps=list(ALL_APPS),
    )
    outcome = scenario.outcome(Asker(models, name, values))
    instruction = scenario.instruction.format(**values)
    _add_supervisor(models, name, instruction)
    models.save(
        db_home_path=str(folder / "dbs"),
        format="changes",
        app_names=list(ALL_APPS),
        delete_if_exists=True,
        save_model_hashes=True,
    )
    models.close()
    person = BY_NAME[name]
    supervisor = {
        "first_name": person.first,
        "last_name": person.last,
        "email": person.email,
        "phone_number": person.phone,
    }
    write_json(
        folder / "specs.json",
        {
            "instruction": instruction,
            "supervisor": supervisor,
            "datetime": NOW.isoformat(),
            "db_version": DB_VERSION,
        },
    )
    truth = folder / "ground_truth"
    _write_truth(truth, scenario.difficulty, values, outcome, scenario.code(values))


def _add_supervisor(models: Any, name: str, instruction: str) -> None:
    main_user = models.admin.MainUser.find_one(first_name=name)
    supervisor = models.supervisor.Supervisor.create_save(
        first_name=main_user.first_name,
        last_name=main_user.last_name,
        email=main_user.email,
        phone_number=main_user.phone_number,
        birthday=main_user.birthday,
        sex=main_user.sex,
    )
    models.supervisor.Task.create_save(supervisor_id=supervisor.id, instruction=instruction)
    for account in main_user.account_passwords:
        models.supervisor.AccountPassword.create_save(
            supervisor_id=supervisor.id,
            account_name=account.account_name,
            password=account.password,
        )
    for card in main_user.payment_cards:
        models.supervisor.PaymentCard.create_save(
            supervisor_id=supervisor.id,
            owner_name=card.owner_name,
            card_name=card.card_name,
            card_number=card.card_number,
            expiry_year=card.expiry_year,
            expiry_month=card.expiry_month,
            cvv_number=card.cvv_number,
        )


def _write_truth(
    truth: Path, difficulty: int, values: dict[str, Any], outcome: Outcome, code: str
) -> None:
    body = "\n".join(f"    {line}" if line else "" for line in code.splitlines())
    changes = {name: asdict(change) for name, change in outcome.changes.items()}
    write_json(truth / "public_data.json", values)
    write_json(truth / "private_data.json", {"changes": changes})
    write_json(truth / "answer.json", outcome.answer)
    (truth / "solution.py").write_text(code, encoding="utf-8")
    (truth / "compiled_solution.py").write_text(
        f"def solution(apis, requester):\n{body}\n", encoding="utf-8"
    )
    (truth / "evaluation.py").write_text(evaluation_code(outcome), encoding="utf-8")
    # The engine needs these two to load a task; the measured ones replace them.
    unknown = dict.fromkeys(("num_apps", "num_apis", "num_api_calls", "num_solution_code_lines"), 0)
    write_json(truth / "metadata.json", {"mode": "full", "difficulty": difficulty, **unknown})
    write_json(truth / "test_data.json", [])


def _measure(truth: Path, task_id: str, difficulty: int) -> None:
    """Run nothing, then the reference, and write the measured labels, counts and apps."""
    code = (truth / "compiled_solution.py").read_text(encoding="utf-8")
    with AppWorld(task_id, experiment_name=EXPERIMENT) as world:
        world.execute("apis.supervisor.complete_task()")
        idle = _grade(task_id)
        before = _calls(world)
        output = world.execute(f"{code}\nsolution(apis, requester)")
        done = _grade(task_id)
        calls = _calls(world)[len(before) :]
    if done.failures or "Traceback" in output:
        raise MiniWorldError(f"{task_id}: the reference fails: {output}\n{done.failures}\n{code}")
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
