"""``coevo serve``: serve a curriculum and its envs to trainers in other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coevo_gym.cli.output import say, say_aside
from coevo_gym.cli.sources import BenchmarkName, find_benchmark
from coevo_gym.core.errors import StoreError
from coevo_gym.core.registry import METHODS

if TYPE_CHECKING:
    from coevo_gym.serve.session import JournaledSession

_EVERY_S = 30.0


def serve(
    benchmark: BenchmarkName,
    curriculum: Annotated[
        str | None,
        typer.Option(help="Method whose curriculum is served.", show_default=METHODS.default),
    ] = None,
    db: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of the session; the same file resumes it.",
            show_default="served/BENCHMARK-CURRICULUM.db",
        ),
    ] = None,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover",
            help="If a call in that file cannot be replayed, continue from the state before it. "
            "A copy of the whole file is kept.",
        ),
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with one token per line: the first gives access to both APIs, the others to "
            "the envs API only. Required unless --host is this machine.",
            show_default="none",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Host name under which clients reach the server; repeatable."
        ),
    ] = None,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes per group (K).")] = 8,
    groups_per_step: Annotated[
        int, typer.Option(min=1, help="Groups per learner step of your trainer.")
    ] = 1,
    evolve_every: Annotated[
        int, typer.Option(min=1, help="Groups between two rounds of evolution.")
    ] = 320,
    initial_size: Annotated[
        int, typer.Option(min=1, help="Tasks that the first round should find.")
    ] = 100,
    max_staleness: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="VERSIONS",
            help="Most policy updates that a group may span and still count; above 0 for a trainer "
            "that rolls out while it learns.",
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the whole stream.")] = 0,
    max_steps: Annotated[
        int | None,
        typer.Option(min=1, help="Most steps of an episode.", show_default="the benchmark's"),
    ] = None,
    lease: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Seconds without a message after which a worker counts as lost.",
        ),
    ] = 900.0,
    sessions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most envs that clients may open.")
    ] = 64,
    idle: Annotated[
        float,
        typer.Option(
            min=1, metavar="SECONDS", help="Seconds after which an idle env of a client is closed."
        ),
    ] = 600.0,
    body_mb: Annotated[
        float,
        typer.Option(min=0.001, metavar="MIB", help="Largest request to the tickets API, in MiB."),
    ] = 64.0,
    message_kb: Annotated[
        float,
        typer.Option(min=1, metavar="KIB", help="Largest message to the envs API, in KiB."),
    ] = 256.0,
) -> None:
    """Serve a curriculum and its envs to trainers in other processes and on other machines.

    There are two APIs. The tickets API is for trusted workers: they take a task with its verifier,
    run it and report the episode. The envs API is for any agent and speaks OpenEnv's protocol:
    clients reset and step an env that runs here, and see what an agent sees. coevo_gym/remote.py is
    a client for both in one file; docs/serve.md describes the messages.

    Every answered request is saved in the --db file first, so a crash loses none. Run the same
    command to resume: open tickets stay open, and no episode is lost or counted twice. Ctrl-C
    stops the server.

    For example:

      coevo serve webshop

      coevo serve webshop --curriculum plr --group-size 4 --port 0

      coevo serve alfworld --host 0.0.0.0 --token-file token --allow-host trainer.lan
    """
    from coevo_gym.serve.limits import ServerLimits
    from coevo_gym.serve.server import ServedCurriculum, listen
    from coevo_gym.serve.server import serve as run
    from coevo_gym.serve.tokens import Tokens, require_safe

    spec = find_benchmark(benchmark)
    tokens = Tokens() if token_file is None else Tokens.read(token_file)
    require_safe(host, tokens)
    practice = ServedCurriculum(
        benchmark=spec.name,
        curriculum=curriculum or METHODS.default,
        group_size=group_size,
        groups_per_step=groups_per_step,
        evolve_every_groups=evolve_every,
        initial_size=initial_size,
        seed=seed,
        lease_s=lease,
        max_staleness=max_staleness,
        max_steps=max_steps,
    )
    limits = ServerLimits(sessions, idle, body_mb, message_kb)
    path = db or Path("served") / f"{spec.name}-{practice.curriculum}.db"
    with listen(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listening.getsockname()[1]}"
        stopped = threading.Event()

        def ready(session: JournaledSession) -> None:
            if session.recovered:
                say(session.recovered)
            begun = "goes on from" if session.replayed else "is kept in"
            say(f"serving {spec.name} at {url}; the session {begun} {path}")
            say_aside("tickets: POST /tickets/take … · envs: WebSocket /ws · Ctrl-C stops it")
            threading.Thread(target=_tell, args=(session, stopped, say_aside), daemon=True).start()

        try:
            run(
                practice,
                path,
                listening,
                tokens=tokens,
                hosts=allow_host or (),
                limits=limits,
                ready=ready,
                recover=recover,
            )
        finally:
            stopped.set()
    say_aside(f"Stopped. The same command resumes from {path}.")


def _tell(session: JournaledSession, stopped: threading.Event, tell: Callable[[str], None]) -> None:
    """Print the progress from time to time, if there is any."""
    told = ""
    while not stopped.wait(_EVERY_S):
        try:
            now = session.metrics()
        except StoreError as error:
            tell(str(error))
            return
        line = " · ".join(
            f"{label} {now.get(name, 0):.0f}"
            for label, name in (
                ("tickets taken", "tickets_taken"),
                ("reported", "tickets_reported"),
                ("out", "tickets_out"),
                ("lapsed", "tickets_lapsed"),
                ("dropped", "tickets_late"),
                ("groups", "groups"),
                ("pool", "pool_size"),
                ("rounds", "rounds"),
            )
        )
        if line != told:
            told = line
            tell(line)
