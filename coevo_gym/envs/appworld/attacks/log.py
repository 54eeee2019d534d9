"""Attacks that call an API without a log entry, or forge a log entry without a call."""

from __future__ import annotations

from coevo_gym.envs.appworld.attacks.seen import EngineObservations, hidden, logged, noted
from coevo_gym.sandbox.attacks import Payload

PAYLOADS: tuple[Payload[EngineObservations], ...] = (
    Payload("untracked", "call an API so that it is not logged", "note(track=False)", hidden),
    Payload(
        "untracked-line",
        "the same with a line of one's own on the socket to the apps",
        """
ask("simple_note", "create_note", title="a", content="b", access_token=log_in("simple_note"),
    track=False)
""",
        hidden,
    ),
    Payload(
        "forged-client",
        "have an API logged that is not called, with one's own client",
        """
answer = types.SimpleNamespace(status_code=200, text="{}", json=dict)
note(client=types.SimpleNamespace(post=lambda *_, **__: answer))
""",
        lambda seen: logged(seen) and not noted(seen),
    ),
    Payload(
        "forged-log",
        "have an API logged that is not called, in the log of calls",
        """
if stock: requester.request_tracker.add_request(method="post", url="/venmo/forged", data={})
else: raw(app="venmo", api="forged", kwargs={})
""",
        lambda seen: any("forged" in call for call in seen.calls),
    ),
)
