"""``coevo serve``: serve a curriculum and its envs to trainers in other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coevo_gym.cli.output import say, say_to_stderr
from coevo_gym.cli.settings import Tools, Verify
from coevo_gym.cli.sources import BenchmarkOrRows, find_benchmark_or_rows
from coevo_gym.core.errors import StoreError
from coevo_gym.core.registry import METHODS

if TYPE_CHECKING:
    from coevo_gym.serve.journaled_session import JournaledSession

_EVERY_S = 30.0


def serve(
    benchmark: BenchmarkOrRows,
    curriculum: Annotated[
        str | None,
        typer.Option(help="Serve the curriculum of this method.", show_default=METHODS.default),
    ] = None,
    verify: Verify = "",
    tools: Tools = None,
    db: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Session file; pass the same file again to resume the session.",
            show_default="served/BENCHMARK-CURRICULUM.db",
        ),
    ] = None,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover",
            help="If a call in the session file cannot be replayed, continue from the state before "
            "that call. A copy of the original file is kept.",
        ),
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")
    ] = 8765,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with one token per line. The first token grants access to both APIs, the "
            "others only to the envs API. Required unless --host is a loopback address.",
            show_default="none",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Hostname that clients use for this server; may be repeated."
        ),
    ] = None,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes per group (K).")] = 8,
    groups_per_step: Annotated[
        int, typer.Option(min=1, help="Number of groups that your trainer uses per learner step.")
    ] = 1,
    evolve_every: Annotated[
        int, typer.Option(min=1, help="Number of groups between consecutive evolution rounds.")
    ] = 320,
    initial_size: Annotated[
        int, typer.Option(min=1, help="Number of tasks that the first round should find.")
    ] = 100,
    max_staleness: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="VERSIONS",
            help="Maximum number of policy updates while a group is being collected; groups that "
            "exceed it are ignored. Use a value above 0 if your trainer learns during rollouts.",
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed for the whole task stream.")] = 0,
    max_steps: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum steps per episode.", show_default="the benchmark's"),
    ] = None,
    lease: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Seconds without a message after which a worker is considered lost.",
        ),
    ] = 900.0,
    sessions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of open client envs.")
    ] = 64,
    idle: Annotated[
        float,
        typer.Option(
            min=1, metavar="SECONDS", help="Seconds after which a client's idle env is closed."
        ),
    ] = 600.0,
    body_mb: Annotated[
        float,
        typer.Option(min=0.001, metavar="MIB", help="Maximum request size in MiB (tickets API)."),
    ] = 64.0,
    message_kb: Annotated[
        float,
        typer.Option(min=1, metavar="KIB", help="Maximum message size in KiB (envs API)."),
    ] = 256.0,
) -> None:
    """Serve a curriculum and its envs to trainers in other processes and on other machines.

    There are two APIs. The tickets API is for trusted workers: they take a task with its verifier,
    run it and report the episode. An HTTPSession uses it, so all processes of a trainer can share
    one curriculum. The envs API is for any agent and uses OpenEnv's protocol:
    clients reset and step an env that runs on the server, and see only what an agent sees. The file
    coevo_gym/remote.py contains clients for both APIs; docs/serve.md describes the messages.

    Every request is saved in the --db file before it is answered, so a crash does not lose
    requests. Run the same command to resume: outstanding tickets stay valid, and episodes are
    neither lost nor counted twice. Ctrl-C stops the server.

    For example:

      coevo serve webshop

      coevo serve webshop --curriculum plr --group-size 4 --port 0

      coevo serve rows.jsonl --verify mine.py:check --group-size 4

      coevo serve alfworld --host 0.0.0.0 --token-file token --allow-host trainer.lan
    """
    from coevo_gym.serve.limits import ServerLimits
    from coevo_gym.serve.server import ServedCurriculum, listen
    from coevo_gym.serve.server import serve as run
    from coevo_gym.serve.tokens import Tokens, require_token_or_loopback

    spec = find_benchmark_or_rows(benchmark, verify, tools or ())
    tokens = Tokens() if token_file is None else Tokens.read(token_file)
    require_token_or_loopback(host, tokens)
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
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{listening.getsockname()[1]}"
        stopped = threading.Event()

        def ready(session: JournaledSession) -> None:
            if session.recovered:
                say(session.recovered)
            begun = "resumes from" if session.replayed else "is saved in"
            say(f"serving {spec.name} at {url}; the session {begun} {path}")
            say_to_stderr("tickets: POST /tickets/take … · envs: WebSocket /ws · Ctrl-C stops it")
            threading.Thread(
                target=_print_progress, args=(session, stopped, say_to_stderr), daemon=True
            ).start()

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
    say_to_stderr(f"Stopped. Run the same command to resume from {path}.")


def _print_progress(
    session: JournaledSession, stopped: threading.Event, tell: Callable[[str], None]
) -> None:
    """Print the session's progress at intervals if it has changed."""
    last = ""
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
                ("outstanding", "tickets_out"),
                ("lapsed", "tickets_lapsed"),
                ("dropped", "tickets_late"),
                ("groups", "groups"),
                ("pool", "pool_size"),
                ("rounds", "rounds"),
            )
        )
        if line != last:
            last = line
            tell(line)
