"""Scenarios about lists, reminders and messages."""

from .people import BY_NAME, related
from .scenario import Asker, Change, Changes, Rows, Scenario


def _alarms(w: Asker) -> Changes:
    off = [
        {"id": alarm.id, "enabled": False}
        for alarm in w.own("phone.Alarm", enabled=True)
        if alarm.time < w["time"]
    ]
    return {"phone.Alarm": Change(updated=off)}


def _project_id(w: Asker) -> int:
    (project,) = w.own("todoist.Project", name=w["project"])
    return int(project.id)


def _overdue(w: Asker) -> Changes:
    done = [
        {"id": task.id, "is_completed": True}
        for task in w.own("todoist.Task", project_id=_project_id(w), is_completed=False)
        if task.due_date.isoformat() < w["date"]
    ]
    return {"todoist.Task": Change(updated=done)}


def _starred(w: Asker) -> Changes:
    sender = BY_NAME[w["friend"].split()[0]].email
    star = [
        {"id": thread.id, "starred": True}
        for thread in w.own("gmail.UserEmailThread", read=False)
        if thread.sender_email_addresses == [sender]
    ]
    return {"gmail.UserEmailThread": Change(updated=star)}


def _film(w: Asker) -> Changes:
    note = w.note("Films to watch")
    row = {"id": note.id, "content": f"{note.content}\n- {w['film']}"}
    return {"simple_note.Note": Change(updated=[row])}


def _last_text(w: Asker) -> str:
    (other,) = related(w.name, w["relation"])
    return w.texts_from(other)[-1]


def _packing(w: Asker) -> Changes:
    task = {"user_id": w.user_id("todoist"), "project_id": _project_id(w)}
    lines = w.note("Packing list").content.splitlines()
    todo = [line.removeprefix("[ ] ") for line in lines if line.startswith("[ ]")]
    return {"todoist.Task": Change(added=[{**task, "title": title} for title in todo])}


def _mailed(w: Asker, names: list[str], subject: str, body: str) -> Changes:
    """Return the database changes made when the supervisor emails the named people."""
    me, ids = w.user_id("gmail"), [w.user_id("gmail", name) for name in names]
    mail: Rows = [{"sender_id": me, "recipient_ids": ids, "subject": subject, "body": body}]
    return {
        "gmail.Email": Change(added=mail),
        "gmail.GlobalEmailThread": Change(added=[{}]),
        "gmail.UserEmailThread": Change(added=[{"user_id": user_id} for user_id in (me, *ids)]),
    }


def _mail(w: Asker) -> Changes:
    return _mailed(w, related(w.name, w["relation"]), w["subject"], w["body"])


def _urgent(w: Asker) -> Changes:
    urgent = {"priority": "high", "is_completed": False}
    tasks = w.own("todoist.Task", project_id=_project_id(w), **urgent)
    text = ", ".join(sorted(task.title for task in tasks))
    (other,) = related(w.name, w["relation"])
    me, them = w.user_id("phone"), w.user_id("phone", other)
    message = {"sender_id": me, "receiver_id": them, "message": text}
    return {
        "phone.GlobalTextMessage": Change(added=[message]),
        "phone.UserTextMessage": Change(added=[{"user_id": me}, {"user_id": them}]),
    }


def _flat_total(w: Asker) -> Changes:
    splitwise = w.models.splitwise
    group = splitwise.Group.find_one(name=w["group"])
    expenses = splitwise.Expense.find_all(group_id=group.id)
    total = sum(row.amount for row in expenses if row.description.startswith(w["kind"]))
    return _mailed(w, related(w.name, "roommate"), w["kind"], f"Total: ${total:.2f}")


WORDS = (
    Scenario(
        name="early alarms off",
        split="train",
        difficulty=1,
        instruction="Turn off every alarm on my phone that is set for earlier than {time}.",
        variants=(("Cleo", "08:00"), ("Dan", "10:00"), ("Finn", "19:00")),
        solution="""
for alarm in pages(apis.phone.show_alarms, access_token=phone_token):
    if alarm["enabled"] and alarm["time"] < time:
        apis.phone.update_alarm(
            alarm_id=alarm["alarm_id"], enabled=False, access_token=phone_token
        )
""",
        changes=_alarms,
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
            ("Ada", "Home", "2023-05-18"),
            ("Eva", "Garden", "2023-05-15"),
            ("Dan", "Work", "2023-05-20"),
        ),
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
""",
        changes=_overdue,
    ),
    Scenario(
        name="star unread mail",
        split="train",
        difficulty=1,
        instruction="Star each unread thread in my Gmail inbox that came from {friend}.",
        variants=(("Bo", "Ada Nord"), ("Cleo", "Eva Lind"), ("Finn", "Dan Marsh")),
        solution="""
threads = pages(apis.gmail.show_inbox_threads, access_token=gmail_token, read=False)
for thread in threads:
    if friend in [person["name"] for person in thread["participants"]]:
        apis.gmail.mark_thread_starred(
            email_thread_id=thread["email_thread_id"], access_token=gmail_token
        )
""",
        changes=_starred,
    ),
    Scenario(
        name="film into a note",
        split="dev",
        difficulty=1,
        instruction=(
            'Put the film {film} at the end of my note "Films to watch" in Simple Note, on a line '
            'of its own that looks like the others ("- " and the name).'
        ),
        variants=(("Ada", "The Third Man"), ("Bo", "Rear Window"), ("Dan", "Modern Times")),
        solution="""
notes = pages(apis.simple_note.search_notes, access_token=simple_note_token)
note_id = next(note["note_id"] for note in notes if note["title"] == "Films to watch")
apis.simple_note.add_content_to_note(
    note_id=note_id,
    append_or_prepend="append",
    added_content=f"- {film}",
    access_token=simple_note_token,
)
""",
        changes=_film,
    ),
    Scenario(
        name="last text of somebody",
        split="test_normal",
        difficulty=1,
        instruction="Quote, word for word, the last text message that my {relation} sent me.",
        variants=(("Ada", "sibling"), ("Dan", "coworker"), ("Cleo", "friend")),
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
        answer=_last_text,
    ),
    Scenario(
        name="pack what is missing",
        split="dev",
        difficulty=2,
        instruction=(
            'My Simple Note "Packing list" marks with [x] what is packed. Add a task to my Todoist '
            "project {project} for each thing that is not packed, with its name as the title."
        ),
        variants=(("Dan", "Home"), ("Cleo", "Inbox"), ("Finn", "Garden")),
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
""",
        changes=_packing,
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
            ("Eva", "coworker", "Monday", "I start at ten."),
            ("Bo", "sibling", "Keys", "They are with me."),
            ("Finn", "friend", "Climbing", "Saturday at two?"),
        ),
        solution="""
contact = apis.phone.search_contacts(relationship=relation, access_token=phone_token)[0]
apis.gmail.send_email(
    email_addresses=[contact["email"]], subject=subject, body=body, access_token=gmail_token
)
""",
        changes=_mail,
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
            ("Bo", "coworker", "Work"),
            ("Eva", "sibling", "Home"),
            ("Dan", "sibling", "Garden"),
        ),
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
""",
        changes=_urgent,
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
            ("Bo", "Maple Flat", "Internet"),
            ("Finn", "Harbour Flat", "Heating"),
            ("Dan", "Harbour Flat", "Repairs"),
        ),
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
""",
        changes=_flat_total,
    ),
)
