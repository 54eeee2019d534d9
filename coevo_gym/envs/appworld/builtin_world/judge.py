"""Code that generates a task's tests, in AppWorld's format, from the expected changes."""

from .scenario import Change, Changes

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


def evaluation_code(changes: Changes) -> str:
    """Return the code of ``evaluation.py``: tests for the answer and for changes in all tables."""
    names = sorted(changes)
    but = f" other than {', '.join(names)}" if names else ""
    others = _test(
        f"assert nothing{but} changed.",
        f"names = models.changed_model_names() - set({names!r})",
        'test.case({name for name in names if changed(models, name)}, "==", set())',
    )
    return "\n".join(
        [_HEAD, others, *(test for name in names for test in _tests(name, changes[name]))]
    )


def _test(requirement: str, *body: str) -> str:
    lines = [f'    with test("{requirement}"):', *(f"        {line}" for line in body)]
    return "\n".join(lines) + "\n"


def _tests(name: str, change: Change) -> list[str]:
    """Return a test for each kind of expected change, and one that rules out all other kinds."""
    fields = sorted(change.added[0]) if change.added else []
    compared = f", compared by {', '.join(fields)}" if fields else ""
    kinds = (
        ("added", f"{name!r}, {fields!r}", "texts", compared),
        ("updated", repr(name), "texts", ", to the expected values"),
        ("removed", repr(name), "sorted", ""),
    )
    tests, still = [], {}
    for kind, arguments, order, how in kinds:
        call = f"{kind}(models, {arguments})"
        if getattr(change, kind):
            expected = f'{order}(private_data.changes["{name}"].{kind})'
            tests.append(
                _test(
                    f"assert exactly the expected {name} records were {kind}{how}.",
                    f"found = {call}",
                    f'test.case(found, "==", {expected})',
                )
            )
        else:
            still[kind] = call
    if still:
        none = f"assert no {name} record was {' or '.join(still)}."
        tests.append(_test(none, f'test.case({" + ".join(still.values())}, "==", [])'))
    return tests
