"""``coevo serve``: a curriculum and its envs for trainers of other processes and machines."""

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
        typer.Option(help="Method whose curriculum it is.", show_default=METHODS.default),
    ] = None,
    db: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that keeps the session; the same file goes on with it.",
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
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for one that is free.")] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Tokens, one a line: the first opens both faces, others the envs face only. "
            "Needed for any --host but this machine's own.",
            show_default="none",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name the server is reached by; repeatable."),
    ] = None,
    group_size: Annotated[int, typer.Option(min=1, help="K, episodes a group.")] = 8,
    groups_per_step: Annotated[
        int, typer.Option(min=1, help="Groups that your trainer learns from at once.")
    ] = 1,
    evolve_every: Annotated[
        int, typer.Option(min=1, help="Groups between two rounds of evolution.")
    ] = 320,
    initial_size: Annotated[
        int, typer.Option(min=1, help="Tasks that the first round looks for.")
    ] = 100,
    max_staleness: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="VERSIONS",
            help="Most versions of the policy that a group may span and still be judged: above 0 "
            "for a trainer whose rollouts go on while it learns.",
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
            min=1, metavar="SECONDS", help="How long a worker may be silent before it is given up."
        ),
    ] = 900.0,
    sessions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most envs that clients may have.")
    ] = 64,
    idle: Annotated[
        float,
        typer.Option(
            min=1, metavar="SECONDS", help="How long a client's env may be idle before it closes."
        ),
    ] = 600.0,
    body_mb: Annotated[
        float,
        typer.Option(min=0.001, metavar="MIB", help="Largest request of the tickets face, in MiB."),
    ] = 64.0,
    message_kb: Annotated[
        float,
        typer.Option(min=1, metavar="KIB", help="Largest message of the envs face, in KiB."),
    ] = 256.0,
) -> None:
    """Serve a curriculum and its envs to trainers of other processes, venvs and machines.

    Two faces. Tickets, for workers that you trust: they take a task with its verifier, run it and
    report the episode. Envs, for anybody's agents, in OpenEnv's protocol: they reset and step an
    env that runs here, and see what an agent sees. coevo_gym/remote.py is a client for both, in one
    file; docs/serve.md has the messages.

    What has been answered is in the --db file, whatever happens to this process. The same command
    goes on where it stopped: tickets that are out stay out, and no episode is lost or counted
    twice. Ctrl-C stops it.

    For example:

      coevo serve webshop

      coevo serve webshop --curriculum plr --group-size 4 --port 0

      coevo serve alfworld --host 0.0.0.0 --token-file token --allow-host trainer.lan
    """
    from coevo_gym.serve.limits import Limits
    from coevo_gym.serve.server import Practice, listen
    from coevo_gym.serve.server import serve as run
    from coevo_gym.serve.tokens import Tokens, require_safe

    spec = find_benchmark(benchmark)
    tokens = Tokens() if token_file is None else Tokens.read(token_file)
    require_safe(host, tokens)
    practice = Practice(
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
    limits = Limits(sessions, idle, body_mb, message_kb)
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
    say_aside(f"Stopped. The same command goes on from {path}.")


def _tell(session: JournaledSession, stopped: threading.Event, tell: Callable[[str], None]) -> None:
    """Say now and then how far it is, if anything has happened."""
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
