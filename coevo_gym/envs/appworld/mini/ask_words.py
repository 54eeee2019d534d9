"""Scenarios about lists, reminders and messages."""

from typing import Any

from .people import BY_NAME, related
from .scenario import Asker, Change, Outcome, Scenario


def _alarms(w: Asker) -> Outcome:
    alarms = w.models.phone.Alarm.find_all(user_id=w.user_id("phone"))
    off = [
        {"id": alarm.id, "enabled": False}
        for alarm in alarms
        if alarm.enabled and alarm.time < w["time"]
    ]
    return Outcome(changes={"phone.Alarm": Change(updated=off)})


def _overdue(w: Asker) -> Outcome:
    todoist = w.models.todoist
    project = todoist.Project.find_one(user_id=w.user_id("todoist"), name=w["project"])
    done = [
        {"id": task.id, "is_completed": True}
        for task in todoist.Task.find_all(project_id=project.id)
        if not task.is_completed and task.due_date.isoformat() < w["date"]
    ]
    return Outcome(changes={"todoist.Task": Change(updated=done)})


def _starred(w: Asker) -> Outcome:
    sender = BY_NAME[w["friend"].split()[0]].email
    threads = w.models.gmail.UserEmailThread.find_all(user_id=w.user_id("gmail"))
    star = [
        {"id": thread.id, "starred": True}
        for thread in threads
        if not thread.read and thread.sender_email_addresses == [sender]
    ]
    return Outcome(changes={"gmail.UserEmailThread": Change(updated=star)})


def _film(w: Asker) -> Outcome:
    note = w.note("Films to watch")
    row = {"id": note.id, "content": f"{note.content}\n- {w['film']}"}
    return Outcome(changes={"simple_note.Note": Change(updated=[row])})


def _last_text(w: Asker) -> Outcome:
    (other,) = related(w.name, w["relation"])
    return Outcome(answer=w.texts_from(other)[-1])


def _packing(w: Asker) -> Outcome:
    user_id = w.user_id("todoist")
    project = w.models.todoist.Project.find_one(user_id=user_id, name=w["project"])
    lines = w.note("Packing list").content.splitlines()
    todo = [line.removeprefix("[ ] ") for line in lines if line.startswith("[ ]")]
    tasks = [{"user_id": user_id, "project_id": project.id, "title": title} for title in todo]
    return Outcome(changes={"todoist.Task": Change(added=tasks)})


def _mailed(w: Asker, names: list[str], subject: str, body: str) -> Outcome:
    """Return one new mail from the supervisor to these people."""
    me, ids = w.user_id("gmail"), [w.user_id("gmail", name) for name in names]
    mail: dict[str, Any] = {"sender_id": me, "recipient_ids": ids, "subject": subject, "body": body}
    return Outcome(
        changes={
            "gmail.Email": Change(added=[mail]),
            "gmail.GlobalEmailThread": Change(added=[{}]),
            "gmail.UserEmailThread": Change(added=[{"user_id": user_id} for user_id in (me, *ids)]),
        }
    )


def _mail(w: Asker) -> Outcome:
    (other,) = related(w.name, w["relation"])
    return _mailed(w, [other], w["subject"], w["body"])


def _urgent(w: Asker) -> Outcome:
    todoist = w.models.todoist
    project = todoist.Project.find_one(user_id=w.user_id("todoist"), name=w["project"])
    tasks = todoist.Task.find_all(project_id=project.id, priority="high", is_completed=False)
    (other,) = related(w.name, w["relation"])
    me, them = w.user_id("phone"), w.user_id("phone", other)
    text = ", ".join(sorted(task.title for task in tasks))
    return Outcome(
        changes={
            "phone.GlobalTextMessage": Change(
                added=[{"sender_id": me, "receiver_id": them, "message": text}]
            ),
            "phone.UserTextMessage": Change(added=[{"user_id": me}, {"user_id": them}]),
        }
    )


def _flat_total(w: Asker) -> Outcome:
    group = w.models.splitwise.Group.find_one(name=w["group"])
    total = sum(
        expense.amount
        for expense in w.models.splitwise.Expense.find_all(group_id=group.id)
        if expense.description.startswith(w["kind"])
    )
    others = related(w.name, "roommate")
    return _mailed(w, others, w["kind"], f"Total: ${total:.2f}")


WORDS = (
    Scenario(
        name="early alarms off",
        split="train",
        difficulty=1,
        instruction="Turn off every alarm on my phone that is set for earlier than {time}.",
        variants=(
            ("Cleo", {"time": "08:00"}),
            ("Dan", {"time": "10:00"}),
            ("Finn", {"time": "19:00"}),
        ),
        apps=("phone",),
        solution="""
for alarm in pages(apis.phone.show_alarms, access_token=phone_token):
    if alarm["enabled"] and alarm["time"] < time:
        apis.phone.update_alarm(
            alarm_id=alarm["alarm_id"], enabled=False, access_token=phone_token
        )
apis.supervisor.complete_task()
""",
        outcome=_alarms,
    ),
    Scenario(
        name="overdue tasks done",
        split="train",
        difficulty=1,
        instruction=(
            "Mark all open tasks in my Todoist project {project} that were due before {date} "
            "as completed."
        ),
        variants=(
            ("Ada", {"project": "Home", "date": "2023-05-18"}),
            ("Eva", {"project": "Garden", "date": "2023-05-15"}),
            ("Dan", {"project": "Work", "date": "2023-05-20"}),
        ),
        apps=("todoist",),
        solution="""
projects = pages(apis.todoist.show_projects, access_token=todoist_token)
project_id = next(row["project_id"] for row in projects if row["name"] == project)
tasks = apis.todoist.show_tasks(
    project_id=project_id, is_completed=False, access_token=todoist_token
)
for task in tasks["no_section_tasks"]:
    if task["due_date"] < date:
        apis.todoist.update_task(
            task_id=task["task_id"], is_completed=True, access_token=todoist_token
        )
apis.supervisor.complete_task()
""",
        outcome=_overdue,
    ),
    Scenario(
        name="star unread mail",
        split="train",
        difficulty=1,
        instruction="Star each unread thread in my Gmail inbox that came from {friend}.",
        variants=(
            ("Bo", {"friend": "Ada Nord"}),
            ("Cleo", {"friend": "Eva Lind"}),
            ("Finn", {"friend": "Dan Marsh"}),
        ),
        apps=("gmail",),
        solution="""
threads = pages(apis.gmail.show_inbox_threads, access_token=gmail_token, read=False)
for thread in threads:
    if friend in [person["name"] for person in thread["participants"]]:
        apis.gmail.mark_thread_starred(
            email_thread_id=thread["email_thread_id"], access_token=gmail_token
        )
apis.supervisor.complete_task()
""",
        outcome=_starred,
    ),
    Scenario(
        name="film into a note",
        split="dev",
        difficulty=1,
        instruction=(
            'Put the film {film} at the end of my note "Films to watch" in Simple Note, on a line '
            'of its own that looks like the others ("- " and the name).'
        ),
        variants=(
            ("Ada", {"film": "The Third Man"}),
            ("Bo", {"film": "Rear Window"}),
            ("Dan", {"film": "Modern Times"}),
        ),
        apps=("simple_note",),
        solution="""
notes = pages(apis.simple_note.search_notes, access_token=simple_note_token)
note_id = next(note["note_id"] for note in notes if note["title"] == "Films to watch")
apis.simple_note.add_content_to_note(
    note_id=note_id,
    append_or_prepend="append",
    added_content=f"- {film}",
    access_token=simple_note_token,
)
apis.supervisor.complete_task()
""",
        outcome=_film,
    ),
    Scenario(
        name="last text of somebody",
        split="test_normal",
        difficulty=1,
        instruction="Quote, word for word, the last text message that my {relation} sent me.",
        variants=(
            ("Ada", {"relation": "sibling"}),
            ("Dan", {"relation": "coworker"}),
            ("Cleo", {"relation": "friend"}),
        ),
        apps=("phone",),
        solution="""
contact = apis.phone.search_contacts(relationship=relation, access_token=phone_token)[0]
texts = pages(
    apis.phone.search_text_messages,
    access_token=phone_token,
    phone_number=contact["phone_number"],
)
theirs = [row for row in texts if row["sender"]["phone_number"] == contact["phone_number"]]
last = max(theirs, key=lambda row: row["sent_at"])
apis.supervisor.complete_task(answer=last["message"])
""",
        outcome=_last_text,
    ),
    Scenario(
        name="pack what is missing",
        split="dev",
        difficulty=2,
        instruction=(
            'My Simple Note "Packing list" marks with [x] what is packed. Add a task to my Todoist '
            "project {project} for each thing that is not packed, with its name as the title."
        ),
        variants=(
            ("Dan", {"project": "Home"}),
            ("Cleo", {"project": "Inbox"}),
            ("Finn", {"project": "Garden"}),
        ),
        apps=("simple_note", "todoist"),
        solution="""
notes = pages(apis.simple_note.search_notes, access_token=simple_note_token)
note_id = next(note["note_id"] for note in notes if note["title"] == "Packing list")
note = apis.simple_note.show_note(note_id=note_id, access_token=simple_note_token)
projects = pages(apis.todoist.show_projects, access_token=todoist_token)
project_id = next(row["project_id"] for row in projects if row["name"] == project)
for line in note["content"].splitlines():
    if line.startswith("[ ] "):
        apis.todoist.create_task(
            project_id=project_id, title=line[4:], access_token=todoist_token
        )
apis.supervisor.complete_task()
""",
        outcome=_packing,
    ),
    Scenario(
        name="mail to a relation",
        split="test_normal",
        difficulty=2,
        instruction=(
            "Send my {relation} an email; the address is in my phone contacts. The subject is "
            '"{subject}" and the body "{body}".'
        ),
        variants=(
            ("Eva", {"relation": "coworker", "subject": "Monday", "body": "I start at ten."}),
            ("Bo", {"relation": "sibling", "subject": "Keys", "body": "They are with me."}),
            ("Finn", {"relation": "friend", "subject": "Climbing", "body": "Saturday at two?"}),
        ),
        apps=("phone", "gmail"),
        solution="""
contact = apis.phone.search_contacts(relationship=relation, access_token=phone_token)[0]
apis.gmail.send_email(
    email_addresses=[contact["email"]], subject=subject, body=body, access_token=gmail_token
)
apis.supervisor.complete_task()
""",
        outcome=_mail,
    ),
    Scenario(
        name="text the urgent tasks",
        split="dev",
        difficulty=3,
        instruction=(
            "Text my {relation} the titles of all open high-priority tasks in my Todoist project "
            "{project}: only the titles, in alphabetical order, with a comma and a space between "
            "them."
        ),
        variants=(
            ("Bo", {"relation": "coworker", "project": "Work"}),
            ("Eva", {"relation": "sibling", "project": "Home"}),
            ("Dan", {"relation": "sibling", "project": "Garden"}),
        ),
        apps=("todoist", "phone"),
        solution="""
projects = pages(apis.todoist.show_projects, access_token=todoist_token)
project_id = next(row["project_id"] for row in projects if row["name"] == project)
tasks = apis.todoist.show_tasks(
    project_id=project_id, priority="high", is_completed=False, access_token=todoist_token
)
contact = apis.phone.search_contacts(relationship=relation, access_token=phone_token)[0]
apis.phone.send_text_message(
    phone_number=contact["phone_number"],
    message=", ".join(sorted(task["title"] for task in tasks["no_section_tasks"])),
    access_token=phone_token,
)
apis.supervisor.complete_task()
""",
        outcome=_urgent,
    ),
    Scenario(
        name="mail a total to the flat",
        split="test_normal",
        difficulty=3,
        instruction=(
            "Add up all expenses of our Splitwise group {group} whose description begins with "
            '{kind}. Send the result in one email to all my roommates: subject "{kind}", body '
            '"Total: $" followed by the amount with two decimals. Their addresses are in my phone '
            "contacts."
        ),
        variants=(
            ("Bo", {"group": "Maple Flat", "kind": "Internet"}),
            ("Finn", {"group": "Harbour Flat", "kind": "Heating"}),
            ("Dan", {"group": "Harbour Flat", "kind": "Repairs"}),
        ),
        apps=("splitwise", "phone", "gmail"),
        solution="""
groups = pages(apis.splitwise.show_groups, access_token=splitwise_token)
group_id = next(row["group_id"] for row in groups if row["name"] == group)
expenses = pages(
    apis.splitwise.show_group_expenses, access_token=splitwise_token, group_id=group_id
)
total = sum(row["paid_amount"] for row in expenses if row["description"].startswith(kind))
contacts = pages(apis.phone.search_contacts, access_token=phone_token, relationship="roommate")
apis.gmail.send_email(
    email_addresses=[contact["email"] for contact in contacts],
    subject=kind,
    body=f"Total: ${total:.2f}",
    access_token=gmail_token,
)
apis.supervisor.complete_task()
""",
        outcome=_flat_total,
    ),
)
