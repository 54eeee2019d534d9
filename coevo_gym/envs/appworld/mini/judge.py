"""Code generation for a task's tests in the stock form, from the task's outcome."""

from .scenario import Change, Outcome

_HEAD = '''\
import json


def plain(value):
    """A value as it compares: numbers in cents, dates as text, lists in an order of their own."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return round(float(value), 2)
    if isinstance(value, (list, tuple)):
        return sorted((plain(item) for item in value), key=str)
    return value.isoformat() if hasattr(value, "isoformat") else value


def texts(rows):
    """Rows as sorted text, so that their order does not count."""
    return sorted(
        json.dumps({key: plain(value) for key, value in row.items()}, sort_keys=True)
        for row in rows
    )


def added(models, name, fields):
    """These fields of the new rows of a table."""
    rows, _, _ = models.changed_records(name)
    return texts({field: getattr(row, field) for field in fields} for row in rows)


def updated(models, name):
    """Id and new values of the rows of a table that are not as they were."""
    _, rows, _ = models.changed_records(name)
    fields = {
        row.id: models.changed_field_names(name, row.id, ignore=["updated_at"]) for row in rows
    }
    return texts(
        {"id": row.id, **{field: getattr(row, field) for field in fields[row.id]}}
        for row in rows
        if fields[row.id]
    )


def removed(models, name):
    """Ids of the rows of a table that are gone."""
    _, _, rows = models.changed_records(name)
    return sorted(row.id for row in rows)


def changed(models, name):
    """Whether a table differs in more than what the engine recomputes."""
    return bool(added(models, name, []) or updated(models, name) or removed(models, name))


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    with test("assert answers match."):
        answer = json.loads(models.end.supervisor.Task.all()[0].answer)
        test.answer(answer, ground_truth_answer)
'''


def evaluation_code(outcome: Outcome) -> str:
    """Return the text of ``evaluation.py``: tests for the answer, each table, and all others."""
    blocks = [_HEAD, _others(sorted(outcome.changes))]
    for name, change in sorted(outcome.changes.items()):
        blocks += _table(name, change)
    return "\n".join(blocks)


def _test(requirement: str, *body: str) -> str:
    lines = [f'    with test("{requirement}"):', *(f"        {line}" for line in body)]
    return "\n".join(lines) + "\n"


def _others(names: list[str]) -> str:
    but = f" other than {', '.join(names)}" if names else ""
    return _test(
        f"assert nothing{but} changed.",
        f"names = models.changed_model_names() - set({names!r})",
        'test.case({name for name in names if changed(models, name)}, "==", set())',
    )


def _table(name: str, change: Change) -> list[str]:
    expected = f'private_data.changes["{name}"]'
    blocks, still = [], []
    if change.added:
        fields = sorted(change.added[0])
        compared = f", compared by {', '.join(fields)}" if fields else ""
        blocks.append(
            _test(
                f"assert exactly the expected {name} records were added{compared}.",
                f"found = added(models, {name!r}, {fields!r})",
                f'test.case(found, "==", texts({expected}.added))',
            )
        )
    else:
        still.append(("added", f"added(models, {name!r}, [])"))
    if change.updated:
        blocks.append(
            _test(
                f"assert exactly the expected {name} records were updated, to the expected values.",
                f"found = updated(models, {name!r})",
                f'test.case(found, "==", texts({expected}.updated))',
            )
        )
    else:
        still.append(("updated", f"updated(models, {name!r})"))
    if change.removed:
        blocks.append(
            _test(
                f"assert exactly the expected {name} records were removed.",
                f"found = removed(models, {name!r})",
                f'test.case(found, "==", sorted({expected}.removed))',
            )
        )
    else:
        still.append(("removed", f"removed(models, {name!r})"))
    if still:
        blocks.append(
            _test(
                f"assert no {name} record was {' or '.join(word for word, _ in still)}.",
                f'test.case({" + ".join(call for _, call in still)}, "==", [])',
            )
        )
    return blocks
