"""Code snippets that sign in to an app, list the user's items, and act on one item.

These moves are for agents that cannot write code: a policy that chooses among candidates, and an
explorer without a model. A move is identified by its text, so that a walk can be reconstructed from
its actions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class ListAction(NamedTuple):
    """An action that can be performed on a row of a list.

    Attributes:
        call: the API and its arguments, with the row's fields in braces.
        words: the request, with the row's fields in braces.
    """

    call: str
    words: str


class Look(NamedTuple):
    """A list of the signed-in user's items in an app.

    Attributes:
        app: the app.
        call: the API that returns the list, and its arguments.
        words: description of the items.
        name: template for the name of a row, with fields in braces.
        acts: actions on a row.
        counted: template for the value by which rows are counted, with fields in braces, and the
            question about the count; empty strings if there is no such question.
    """

    app: str
    call: str
    words: str
    name: str
    acts: tuple[ListAction, ...]
    counted: tuple[str, str] = ("", "")


LOOKS = (
    Look(
        "spotify",
        "show_song_library(page_limit=20)",
        "songs in my Spotify library",
        "{title}",
        (
            ListAction("like_song(song_id={song_id})", "like the song {title} on Spotify"),
            ListAction("download_song(song_id={song_id})", "download the song {title} on Spotify"),
            ListAction(
                "remove_song_from_library(song_id={song_id})",
                "take the song {title} out of my Spotify library",
            ),
        ),
        ("{artists[0][name]}", "how many songs in my Spotify library are by {}"),
    ),
    Look(
        "spotify",
        "show_liked_songs(page_limit=20)",
        "songs that I like on Spotify",
        "{title}",
        (ListAction("unlike_song(song_id={song_id})", "take back my like of the song {title}"),),
        ("{artists[0][name]}", "how many of the songs that I like on Spotify are by {}"),
    ),
    Look(
        "spotify",
        "show_following_artists(page_limit=20)",
        "artists that I follow on Spotify",
        "{name}",
        (ListAction("unfollow_artist(artist_id={artist_id})", "stop following {name} on Spotify"),),
        ("{genre}", "how many of the artists that I follow on Spotify play {}"),
    ),
    Look(
        "spotify",
        "show_playlist_library(page_limit=20)",
        "playlists of mine on Spotify",
        "{title}",
        (
            ListAction(
                "delete_playlist(playlist_id={playlist_id})",
                "delete my playlist {title} on Spotify",
            ),
            ListAction(
                "update_playlist(playlist_id={playlist_id}, is_public=True)",
                "make my playlist {title} on Spotify public",
            ),
        ),
    ),
    Look(
        "venmo",
        'show_received_payment_requests(status="pending", page_limit=20)',
        "payment requests on Venmo that wait for me",
        "{description}",
        (
            ListAction(
                "approve_payment_request(payment_request_id={payment_request_id})",
                "pay what I am asked for on Venmo for {description}",
            ),
            ListAction(
                "deny_payment_request(payment_request_id={payment_request_id})",
                "turn down the Venmo request for {description}",
            ),
        ),
    ),
    Look(
        "venmo",
        "search_friends(page_limit=20)",
        "friends of mine on Venmo",
        "{first_name} {last_name}",
        (
            ListAction(
                'create_transaction(receiver_email="{email}", amount=12.0, description="lunch")',
                "send 12 dollars to {first_name} {last_name} on Venmo, with the words lunch",
            ),
            ListAction(
                'create_payment_request(user_email="{email}", amount=8.0, description="tickets")',
                "ask {first_name} {last_name} for 8 dollars on Venmo, with the words tickets",
            ),
            ListAction(
                'remove_friend(user_email="{email}")',
                "take {first_name} {last_name} off my friends on Venmo",
            ),
        ),
    ),
    Look(
        "phone",
        "search_contacts(page_limit=20)",
        "contacts in my phone",
        "{first_name} {last_name}",
        (
            ListAction(
                'send_text_message(phone_number="{phone_number}", message="On my way")',
                "text {first_name} {last_name} the words On my way",
            ),
            ListAction(
                "delete_contact(contact_id={contact_id})",
                "delete {first_name} {last_name} from the contacts in my phone",
            ),
        ),
    ),
    Look(
        "phone",
        "show_alarms(page_limit=20)",
        "alarms in my phone",
        "{label}",
        (
            ListAction(
                "update_alarm(alarm_id={alarm_id}, enabled=False)", "turn off my alarm {label}"
            ),
            ListAction("delete_alarm(alarm_id={alarm_id})", "delete my alarm {label}"),
        ),
    ),
    Look(
        "simple_note",
        "search_notes(page_limit=20)",
        "notes in Simple Note",
        "{title}",
        (
            ListAction("update_note(note_id={note_id}, pinned=True)", "pin my note {title}"),
            ListAction("delete_note(note_id={note_id})", "delete my note {title}"),
        ),
    ),
    Look(
        "todoist",
        "show_projects(page_limit=20)",
        "projects in Todoist",
        "{name}",
        (
            ListAction(
                'create_task(project_id={project_id}, title="Call the landlord")',
                "add the task Call the landlord to my Todoist project {name}",
            ),
            ListAction(
                "update_project(project_id={project_id}, is_favorite=True)",
                "make {name} a favourite of my Todoist projects",
            ),
        ),
    ),
    Look(
        "gmail",
        "show_inbox_threads(page_limit=20)",
        "threads in my Gmail inbox",
        "{subject}",
        (
            ListAction(
                "mark_thread_starred(email_thread_id={email_thread_id})",
                "star the mail {subject} in my Gmail inbox",
            ),
            ListAction(
                "mark_thread_archived(email_thread_id={email_thread_id})",
                "archive the mail {subject} in my Gmail inbox",
            ),
        ),
    ),
)
FINISH = "# the task is done\napis.supervisor.complete_task()"
_BY_NUMBER = "phone"  # its username is a phone number; all other apps use the email address
FAILED = "Execution failed"
"""Prefix of the output of a failed action."""
_FULL = 20


class Done(NamedTuple):
    """An action that was performed on a row."""

    look: Look
    act: ListAction
    row: Mapping[str, Any]


class PrintedList(NamedTuple):
    """The rows of a printed list."""

    look: Look
    rows: Sequence[Mapping[str, Any]]

    @property
    def is_complete(self) -> bool:
        """Return True if the printed list is complete."""
        return len(self.rows) < _FULL

    def values_to_count(self) -> list[str]:
        """Return the values that counting questions ask about, one per row."""
        return [_fill_template(self.look.counted[0], row) for row in self.rows]

    def rows_with_unique_names(self) -> Iterator[Mapping[str, Any]]:
        """Yield the rows whose names are unique in the list."""
        names = [_fill_template(self.look.name, row) for row in self.rows]
        for row, name in zip(self.rows, names, strict=True):
            if name and names.count(name) == 1:
                yield row


def sign_in_code(app: str) -> str:
    """Return code that signs in to an app and stores its token in a variable named after the app.

    Example:
        >>> sign_in_code("venmo").splitlines()[0]
        '# sign in to venmo'
    """
    user = "phone_number" if app == _BY_NUMBER else "email"
    return (
        f"# sign in to {app}\n"
        "me = apis.supervisor.show_profile()\n"
        "passwords = {row['account_name']: row['password']"
        " for row in apis.supervisor.show_account_passwords()}\n"
        f"{app} = apis.{app}.login(username=me['{user}'], password=passwords['{app}'])"
        "['access_token']"
    )


def look_code(look: Look) -> str:
    """Return the code that prints a list. Run the code from :func:`sign_in_code` first."""
    return _call_code(f"list {look.words}", look.app, look.call)


def act_code(look: Look, act: ListAction, row: Mapping[str, Any]) -> str:
    """Return Python code that performs the action of a row, after :func:`sign_in_code`."""
    return _call_code(act.words.format(**row), look.app, act.call.format(**row))


def answer_code(answer: int) -> str:
    """Return the code that submits an answer and ends the task."""
    return f"# the answer is {answer}\napis.supervisor.complete_task(answer={answer})"


def _call_code(words: str, app: str, call: str) -> str:
    comment = " ".join(words.split())  # a title may contain a line break
    return f"# {comment}\nprint(apis.{app}.{call.removesuffix(')')}, access_token={app}))"


class MoveState:
    """The state reached after a sequence of moves.

    Args:
        turns: (action, outcome) of each step so far.

    Attributes:
        signed_in: apps signed in to.
        listed: lists that were printed, the latest of each kind.
        done: actions that were performed.
    """

    def __init__(self, turns: Sequence[tuple[str, str]]) -> None:
        self.signed_in: list[str] = []
        self.listed: dict[Look, PrintedList] = {}
        self.done: list[Done] = []
        for action, outcome in turns:
            if not outcome.startswith(FAILED):
                self._record(action, outcome)

    def _record(self, action: str, outcome: str) -> None:
        for look in LOOKS:
            if action == sign_in_code(look.app) and look.app not in self.signed_in:
                self.signed_in.append(look.app)
            if action == look_code(look) and (rows := _parse_rows(outcome)) is not None:
                self.listed[look] = PrintedList(look, rows)
        self.done += [done for code, done in self.possible_acts() if code == action]

    def possible_acts(self) -> Iterator[tuple[str, Done]]:
        """Yield all actions that can be performed on the list entries printed so far."""
        for listing in self.listed.values():
            for row in listing.rows_with_unique_names():
                for act in listing.look.acts:
                    yield act_code(listing.look, act, row), Done(listing.look, act, row)


def _fill_template(template: str, row: Mapping[str, Any]) -> str:
    """Fill a template with a row's fields, or return "" if a field is missing."""
    try:
        return template.format(**row)
    except (KeyError, IndexError, TypeError):
        return ""


def _parse_rows(outcome: str) -> Sequence[Mapping[str, Any]] | None:
    """Parse a printed list of rows, or return None for any other text."""
    try:
        rows = json.loads(outcome)
    except (ValueError, RecursionError):  # code may print anything
        return None
    whole = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if whole else None
