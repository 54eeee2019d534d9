"""What agents and explorers do in the stored prompts, and what models answer to them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where an explorer begins, and its walks.

    Attributes:
        task: place of the native training task.
        walks: the actions of each walk.
        guided: whether the task is shown, and a signal guides; else it is opened.
    """

    task: int
    walks: tuple[tuple[str, ...], ...]
    guided: bool = False


class Scene(NamedTuple):
    """The rollouts and walks of one benchmark.

    Attributes:
        benchmark: its name.
        subset: of its native training tasks.
        failing: what an agent does in the first place's task, in vain.
        passing: what it does in another attempt, which succeeds.
        places: where explorers begin, the first one guided.
        target: tags that are looked for.
    """

    benchmark: str
    subset: str | None
    failing: tuple[str, ...]
    passing: tuple[str, ...]
    places: tuple[Place, ...]
    target: tuple[str, ...]


def call(**arguments: Any) -> str:
    """A message with one call: ``call(to="cd", folder="a")``."""
    name = arguments.pop("to")
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


WEBSHOP = Scene(
    "webshop",
    "builtin",
    ("search[sun dress]", "click[c232w6xuz2]", "click[quilted]", "click[buy now]"),
    ("search[sun dress]", "click[c232w6xuz2]", "click[dotted]", "click[buy now]"),
    (
        Place(
            0,
            (
                (
                    "search[ruffled sun dress]",
                    "click[c4lkpdvg37]",
                    "click[features]",
                    "click[< prev]",
                    "click[back to search]",
                    "search[midi length sun dress]",
                    "click[cqyjobwpja]",
                    "click[buy now]",
                ),
                (
                    "search[dress puff sleeves garden]",
                    "click[cv5gn3u423]",
                    "click[features]",
                    "click[< prev]",
                    "click[buy now]",
                ),
            ),
            guided=True,
        ),
        Place(
            11,
            (
                (
                    "search[insulated water bottle]",
                    "click[cqfas7lp2d]",
                    "click[< prev]",
                    "click[cm4jpu3two]",
                    "click[< prev]",
                    "click[cg7kthp5sx]",
                    "click[buy now]",
                ),
                (
                    "search[waterproof bluetooth speaker]",
                    "click[cdewy3exfx]",
                    "click[< prev]",
                    "click[c7ridy7inz]",
                    "click[< prev]",
                    "click[crdl4fzdn3]",
                    "click[buy now]",
                ),
            ),
        ),
        Place(
            6,
            (
                (
                    "search[slide sandals cork]",
                    "click[c24wypiupb]",
                    "click[< prev]",
                    "click[cmhvbybaje]",
                    "click[< prev]",
                    "click[c62trhnbyk]",
                    "click[buy now]",
                ),
                (
                    "search[yoga mat cork]",
                    "click[c23xkqjrg2]",
                    "click[features]",
                    "click[< prev]",
                    "click[buy now]",
                ),
            ),
        ),
    ),
    ("category:outdoors", "option:size"),
)
ALFWORLD = Scene(
    "alfworld",
    "builtin",
    ("go to cabinet 1", "open cabinet 1", "go to fridge 1", "open fridge 1", "look"),
    (
        "go to cabinet 1",
        "open cabinet 1",
        "go to sinkbasin 1",
        "take plate 2 from sinkbasin 1",
        "go to cabinet 1",
        "move plate 2 to cabinet 1",
    ),
    (
        Place(
            0,
            (
                (
                    "go to countertop 2",
                    "take mug 3 from countertop 2",
                    "go to microwave 1",
                    "heat mug 3 with microwave 1",
                    "go to shelf 1",
                    "move mug 3 to shelf 1",
                    "go to sinkbasin 1",
                    "take butterknife 3 from sinkbasin 1",
                    "clean butterknife 3 with sinkbasin 1",
                    "go to drawer 1",
                    "open drawer 1",
                    "move butterknife 3 to drawer 1",
                    "go to countertop 3",
                    "take lettuce 3 from countertop 3",
                    "go to fridge 1",
                    "cool lettuce 3 with fridge 1",
                ),
                (
                    "go to shelf 1",
                    "take statue 3 from shelf 1",
                    "go to countertop 1",
                    "move statue 3 to countertop 1",
                    "take cup 1 from countertop 1",
                    "go to sinkbasin 1",
                    "clean cup 1 with sinkbasin 1",
                    "go to shelf 1",
                    "move cup 1 to shelf 1",
                    "take statue 2 from shelf 1",
                    "go to countertop 1",
                    "move statue 2 to countertop 1",
                    "go to countertop 3",
                    "take creditcard 1 from countertop 3",
                    "go to shelf 1",
                    "move creditcard 1 to shelf 1",
                ),
            ),
            guided=True,
        ),
        Place(
            126,
            (
                (
                    "go to bed 1",
                    "take book 1 from bed 1",
                    "go to desk 1",
                    "use desklamp 1",
                    "move book 1 to desk 1",
                    "take watch 3 from desk 1",
                    "go to drawer 1",
                    "open drawer 1",
                    "move watch 3 to drawer 1",
                    "go to dresser 1",
                    "take pen 2 from dresser 1",
                    "go to desk 1",
                    "move pen 2 to desk 1",
                    "go to dresser 1",
                    "take pen 3 from dresser 1",
                    "go to drawer 1",
                ),
                (
                    "go to garbagecan 1",
                    "take cd 2 from garbagecan 1",
                    "go to desk 1",
                    "use desklamp 1",
                    "go to dresser 1",
                    "move cd 2 to dresser 1",
                    "go to garbagecan 1",
                    "take cd 3 from garbagecan 1",
                    "go to dresser 1",
                    "move cd 3 to dresser 1",
                    "take mug 3 from dresser 1",
                    "go to shelf 1",
                    "move mug 3 to shelf 1",
                ),
            ),
        ),
    ),
    ("goal:heat", "object:egg"),
)
ALFWORLD_OFFICIAL = Scene(
    "alfworld",
    "train",
    (
        "go to cabinet 1",
        "open cabinet 1",
        "go to countertop 3",
        "take cup 4 from countertop 3",
        "go to shelf 2",
        "move cup 4 to shelf 2",
        "look",
    ),
    (
        "go to countertop 3",
        "take cup 4 from countertop 3",
        "go to sinkbasin 1",
        "clean cup 4 with sinkbasin 1",
        "go to shelf 2",
        "move cup 4 to shelf 2",
    ),
    (
        Place(
            1234,
            (
                (
                    "go to countertop 3",
                    "take lettuce 1 from countertop 3",
                    "go to sinkbasin 1",
                    "clean lettuce 1 with sinkbasin 1",
                    "go to fridge 1",
                    "open fridge 1",
                    "move lettuce 1 to fridge 1",
                ),
                (
                    "go to cabinet 1",
                    "open cabinet 1",
                    "take cup 1 from cabinet 1",
                    "go to microwave 1",
                    "heat cup 1 with microwave 1",
                    "go to shelf 2",
                    "move cup 1 to shelf 2",
                ),
            ),
            guided=True,
        ),
        Place(
            100,
            (
                (
                    "go to desk 1",
                    "take keychain 3 from desk 1",
                    "go to shelf 1",
                    "use desklamp 1",
                    "move keychain 3 to shelf 1",
                ),
            ),
        ),
    ),
    ("goal:heat", "object:egg"),
)
BFCL = Scene(
    "bfcl",
    "base",
    (call(to="cd", folder="document"), call(to="touch", file_name="TeamNotes.txt"), "Done."),
    (
        call(to="cd", folder="documents"),
        call(to="touch", file_name="TeamNotes.txt"),
        "I have made it.",
        call(
            to="echo",
            content="Collaboration leads to success. Innovation ignites growth.",
            file_name="TeamNotes.txt",
        ),
        "I have written it down.",
    ),
    (
        Place(
            0,
            (
                (
                    call(to="ls"),
                    call(to="cd", folder="documents"),
                    call(to="ls", a=True),
                    call(to="cat", file_name="ideas.txt"),
                    call(to="cp", source="ideas.txt", destination="Archived"),
                    call(to="touch", file_name="plan.txt"),
                    call(to="echo", content="Meet on Monday.", file_name="plan.txt"),
                    call(to="wc", file_name="ideas.txt", mode="w"),
                    "That is all.",
                ),
                (
                    call(to="cd", folder="documents"),
                    call(to="mkdir", dir_name="drafts"),
                    call(to="mv", source="ideas.txt", destination="drafts"),
                    call(to="create_ticket", title="Printer", description="No ink.", priority=3),
                    call(to="ticket_login", username="simona", password="s1"),
                    call(to="create_ticket", title="Printer", description="No ink.", priority=3),
                    call(to="get_ticket", ticket_id=1),
                    "That is all.",
                ),
            ),
            guided=True,
        ),
        Place(
            16,
            (
                (
                    call(to="ls"),
                    call(to="cd", folder="data"),
                    call(to="ls"),
                    call(to="grep", file_name="analysis_report.txt", pattern="error"),
                    call(to="sort", file_name="file3.txt"),
                    call(to="mean", numbers=[3, 4, 8]),
                    call(to="tail", file_name="project_summary.txt", lines=1),
                    call(to="mv", source="file3.txt", destination="animals.txt"),
                ),
            ),
        ),
        Place(
            64,
            (
                (
                    call(to="get_stock_info", symbol="NVDA"),
                    call(
                        to="place_order", order_type="Buy", symbol="NVDA", price=220.34, amount=10
                    ),
                    call(to="get_order_details", order_id=12446),
                    call(to="cancel_order", order_id=12446),
                    call(to="add_to_watchlist", stock="TSLA"),
                    call(to="get_watchlist"),
                    call(to="get_account_info"),
                    call(to="get_ticket", ticket_id=1),
                    call(to="edit_ticket", ticket_id=1, updates={"priority": 5}),
                ),
            ),
        ),
        Place(
            48,
            (
                (
                    call(to="displayCarStatus", option="fuel"),
                    call(to="fillFuelTank", fuelAmount=20),
                    call(to="lockDoors", unlock=False, door=["driver", "passenger"]),
                    call(to="set_navigation", destination="Oakwood"),
                    call(to="check_tire_pressure"),
                    call(to="get_zipcode_based_on_city", city="Rivermist"),
                    call(to="adjustClimateControl", temperature=21, unit="celsius", fanSpeed=40),
                ),
            ),
        ),
    ),
    ("api:MessageAPI", "turns:few"),
)


def _sign_in(*apps: str) -> str:
    lines = ["me = apis.supervisor.show_profile()"]
    lines.append("rows = apis.supervisor.show_account_passwords()")
    lines.append("passwords = {row['account_name']: row['password'] for row in rows}")
    for app in apps:
        user = "phone_number" if app == "phone" else "email"
        lines.append(
            f"{app} = apis.{app}.login(username=me['{user}'], password=passwords['{app}'])"
            "['access_token']"
        )
    return "\n".join(lines)


LIBRARY = """\
songs = apis.spotify.show_song_library(access_token=spotify, page_limit=20)
for song in songs:
    print(song['song_id'], song['title'], [artist['name'] for artist in song['artists']])"""
ALARMS = """\
for alarm in apis.phone.show_alarms(access_token=phone, page_limit=20):
    print(alarm['alarm_id'], alarm['time'], alarm['label'], alarm['enabled'])"""
NOTES = """\
for note in apis.simple_note.search_notes(access_token=simple_note, page_limit=20):
    print(note['note_id'], note['title'], note['tags'], note['pinned'])"""
APPWORLD = Scene(
    "appworld",
    "builtin",
    (
        _sign_in("spotify"),
        f"{LIBRARY}\nprint(len(songs))",
        f"{LIBRARY}\nprint(songs[0]['genre'])",
        "apis.supervisor.complete_task(answer=20)",
    ),
    (
        _sign_in("spotify"),
        f"{LIBRARY}\ngenres = [apis.spotify.show_song(song_id=song['song_id'])['genre'] "
        "for song in songs]\nprint(genres)",
        "page = apis.spotify.show_song_library(access_token=spotify, page_index=1,"
        " page_limit=20)\n"
        "genres += [apis.spotify.show_song(song_id=song['song_id'])['genre'] for song in page]\n"
        "apis.supervisor.complete_task(answer=genres.count('jazz'))",
    ),
    (
        Place(
            0,
            (
                (
                    _sign_in("spotify"),
                    LIBRARY,
                    "print(apis.spotify.like_song(song_id=19, access_token=spotify))",
                    "lists = apis.spotify.show_playlist_library(access_token=spotify)\n"
                    "for row in lists:\n"
                    "    print(row['playlist_id'], row['title'], len(row['song_ids']))",
                    "print(apis.spotify.update_playlist(playlist_id=3, is_public=True,"
                    " access_token=spotify))",
                ),
                (
                    _sign_in("phone", "simple_note"),
                    ALARMS,
                    "print(apis.phone.update_alarm(alarm_id=5, enabled=False, access_token=phone))",
                    NOTES,
                    "print(apis.simple_note.show_note(note_id=7, access_token=simple_note)"
                    "['content'])",
                    "print(apis.simple_note.update_note(note_id=7, pinned=True,"
                    " access_token=simple_note))",
                ),
            ),
            guided=True,
        ),
        Place(
            6,
            (
                (
                    _sign_in("venmo", "phone"),
                    "for friend in apis.venmo.search_friends(access_token=venmo):\n"
                    "    print(friend['first_name'], friend['last_name'], friend['email'])",
                    "for row in apis.venmo.show_received_payment_requests(access_token=venmo,"
                    " page_limit=20):\n"
                    "    print(row['payment_request_id'], row['sender']['name'], row['amount'],"
                    " row['description'], row['approved_at'], row['denied_at'])",
                    "print(apis.venmo.show_venmo_balance(access_token=venmo))",
                    "print(apis.venmo.create_transaction(receiver_email='bo.lind@gmail.com',"
                    " amount=7.5, description='Coffee', access_token=venmo))",
                    "for row in apis.phone.search_contacts(access_token=phone, page_limit=20):\n"
                    "    print(row['first_name'], row['last_name'], row['relationships'])",
                ),
            ),
        ),
    ),
    ("app:gmail", "goal:change"),
)
SCENES = {
    "alfworld": ALFWORLD,
    "alfworld_official": ALFWORLD_OFFICIAL,
    "appworld": APPWORLD,
    "bfcl": BFCL,
    "webshop": WEBSHOP,
}
