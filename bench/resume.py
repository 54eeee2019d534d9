"""Check that a repeatedly killed and resumed run has the same result as an undisturbed run.

Trains each arm once without kills. Then trains it again, kills the process with SIGKILL at ten
random times, and resumes it after each kill. The results of both runs must be equal to the last
bit: the weights, and the memories of methods that have any, such as agentevolver's experiences and
their utilities. If a run finishes before its last kill, its result is compared, and another run is
started.

With --analyst, a local server answers the methods' questions by rule: why episodes failed and which
other tasks would fail (role_agent); which steps helped, what an episode teaches, and which lessons
fit a task (agentevolver). Its requests are counted, and the tape is read after each kill. A resumed
run must not repeat a question whose answer is on the tape. It does repeat requests that were in
flight at a kill: those that the server had not answered, or whose answer was not committed and thus
not used.

Run: python bench/resume.py                  # 2 to 5 minutes per arm
     python bench/resume.py --arms role_agent --analyst
     python bench/resume.py --arms agentevolver --analyst --steps 12000
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from feedback_overlap import Endpoint, Messages

from coevo_gym.core.evolution import digest
from coevo_gym.core.registry import METHODS
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.folder import RunFolder, read_json

IN_FLIGHT = 16
"""Maximum number of concurrent requests to an endpoint."""
_MARK = re.compile(r"\(question (\w+)\)$")


ASKING = {
    "role_agent": {"modes": "model", "retrieve": True},
    "agentevolver": {
        "attribution_by": "both",
        "experiences_by": "model",
        "check": True,
        "refine": True,
    },
}
"""Settings that make a method query a model, by arm."""


SOONER = {"agentevolver": {"loop.study_only_steps": 1, "method.update_every": 1}}
"""Settings that make even a short run use and evaluate experiences, by arm."""


def answer_as_analyst(messages: Messages) -> str:
    """Return an answer to a study's question by rule; every third answer is useless."""
    question = messages[-1]["content"]
    draw = int(digest([message["content"] for message in messages]), 16)
    if "Other tasks:" in question:
        return json.dumps({"chosen": [1, 1 + draw % 4, 99]})
    modes = re.findall(r"^- (\w+)", question.rpartition("The failure modes:")[2], re.MULTILINE)
    if draw % 3 == 0:
        return "I cannot say."
    if modes:
        lesson = f"Do otherwise ({draw % 5})."
        chosen = [modes[draw % len(modes)], modes[0]]
        return json.dumps({"detail": "It failed.", "step": 1, "modes": chosen, "lesson": lesson})
    return json.dumps(_answer_about_experiences(question, draw))


def _answer_about_experiences(question: str, draw: int) -> dict[str, Any]:
    """Return an answer to a question of agentevolver by rule."""
    if "Label each of these" in question:
        steps = re.findall(r"^\[step (\d+)\]", question, re.MULTILINE)
        labels = ["good" if (draw >> int(n)) % 2 else "bad" for n in steps]
        lines = zip(steps, labels, strict=True)
        return {"steps": [{"step": int(n), "label": label} for n, label in lines]}
    if "do you confirm?" in question:
        return {"confirmed": [1, 2][: 1 + draw % 2]}
    if "Which of them fit" in question:
        return {"chosen": [1], "advice": f"Look twice ({draw % 5})."}
    when = question.partition("The task:\n")[2].partition("\n")[0]
    lessons = [{"when": when, "advice": f"Look {draw % 50} times."}, {"when": "never"}]
    return {"lessons": lessons}


def query_settings(url: str, arm: str) -> dict[str, Any]:
    """Return the settings that make an arm query a server."""
    return {
        **{f"arm.{arm}.set.method.{key}": value for key, value in ASKING.get(arm, {}).items()},
        "analyst.model.kind": "openai",
        "analyst.model.endpoint.base_url": url,
        "analyst.model.endpoint.model": "analyst",
        "analyst.model.endpoint.api_key_env": "null",
    }


class Counting(Endpoint):
    """A server that answers studies without delay, and counts each question.

    Each answer ends with a hash of its question, so that it can be found on a tape.
    """

    def __init__(self) -> None:
        self.questions = Counter[str]()
        super().__init__(self._count_and_answer, slowness=0.0)

    def _count_and_answer(self, messages: Sequence[Mapping[str, str]]) -> str:
        question = digest(list(messages))
        with self._lock:
            self.questions[question] += 1
        return f"{answer_as_analyst(messages)} (question {question})"

    def take_questions(self) -> Counter[str]:
        """Return the questions that were asked since the last call."""
        questions, self.questions = self.questions, Counter()
        return questions


class End(NamedTuple):
    """The result of a run.

    Attributes:
        weights: hash of the weights.
        memories: hash of the method's memories, or "" if it has none.
    """

    weights: str
    memories: str


class Runs:
    """Short runs of one arm in their own folder, each in a separate process."""

    def __init__(
        self, arm: str, arguments: argparse.Namespace, folder: Path, server: Counting | None
    ) -> None:
        self.arm, self.folder = arm, folder
        sooner = SOONER.get(arm, {}).items()
        sets = [f"arms={arm}", f"loop.max_env_steps={arguments.steps}"]
        sets += [*(f"arm.{arm}.set.{key}={value}" for key, value in sooner), *arguments.set]
        if server is not None:
            sets += [
                f"{key}={str(value).lower()}"
                for key, value in query_settings(server.url, arm).items()
            ]
        sets += ["store.checkpoint_every_steps=1", f"seed={arguments.seed}"]
        self.sets = [word for item in sets for word in ("--set", item)]

    def start(self, name: str) -> subprocess.Popen[str]:
        """Start a run, or resume it."""
        begun = (self.folder / "runs" / name / "manifest.json").is_file()
        verb = ["resume", name] if begun else ["train", "quickstart", "--name", name, "--overwrite"]
        return subprocess.Popen(
            [sys.executable, "-m", "coevo_gym.cli", *verb, *([] if begun else self.sets)],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, name: str) -> End:
        """Let a run finish, and return its result."""
        process = self.start(name)
        errors = process.communicate()[1]
        if process.returncode:
            raise SystemExit(f"{self.arm}: {name} ended with {process.returncode}:\n{errors}")
        return self.read_result(name)

    def read_result(self, name: str) -> End:
        """Return the result of a finished run."""
        run = RunFolder(self.folder / "runs" / name)
        weights = str(read_json(run.summary)["arms"][self.arm]["weights"])
        saved = Checkpoints(run.checkpoints / self.arm).load_latest()
        assert saved is not None
        memories = json.loads(saved.state["loop"]).get("memories", {})
        return End(weights, digest(memories) if memories else "")

    def recorded_questions(self, name: str) -> Counter[str]:
        """Return the questions whose answers are recorded in a run."""
        database = self.folder / "runs" / name / "run.db"
        if not database.is_file():
            return Counter()
        with closing(sqlite3.connect(database, timeout=30)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'answers'").fetchone():
                return Counter()
            bodies = db.execute("SELECT body FROM answers").fetchall()
        marks = (_MARK.search(json.loads(zlib.decompress(body))["text"]) for (body,) in bodies)
        return Counter(mark[1] for mark in marks if mark)

    def kill_after(self, name: str, delay_s: float) -> bool:
        """Start or resume a run and kill it; return False if it finished first."""
        process = self.start(name)
        try:
            errors = process.communicate(timeout=delay_s)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return True
        if process.returncode:
            raise SystemExit(f"{self.arm}: {name} ended with {process.returncode}:\n{errors}")
        return False


def check_arm(
    arm: str, arguments: argparse.Namespace, folder: Path, server: Counting | None
) -> dict[str, object]:
    """Train an arm without kills and with kills, and compare the results."""
    runs, rng = Runs(arm, arguments, folder, server), np.random.default_rng(arguments.seed)
    started = time.perf_counter()
    peaceful = runs.finish("peace")
    asked = Counter[str]() if server is None else server.take_questions()
    whole_s = time.perf_counter() - started
    kills, ends, number = 0, [], 0
    questions = known = 0
    taped = Counter[str]()

    def count_questions(name: str) -> None:
        """Count the questions since the last start, and those whose answers were recorded."""
        nonlocal questions, known, taped
        if server is not None:
            new = server.take_questions()
            known += (new - (asked - taped)).total()
            questions += new.total()
            taped = runs.recorded_questions(name)

    while kills < arguments.kills:
        name = f"fire-{number}"
        killed = runs.kill_after(name, rng.uniform(0.2, 0.7) * whole_s)
        count_questions(name)
        if killed:
            kills += 1
        else:
            ends.append(runs.read_result(name))
            number, taped = number + 1, Counter()
    ends.append(runs.finish(f"fire-{number}"))
    count_questions(f"fire-{number}")
    same = all(end == peaceful for end in ends)
    result = {"arm": arm, "kills": kills, "runs": len(ends), **peaceful._asdict(), "same": same}
    if server is None:
        return result
    in_flight = questions - asked.total() * len(ends) - known
    result["same"] = same and known == 0 and 0 <= in_flight <= IN_FLIGHT * kills
    return {
        **result,
        "questions": asked.total() * len(ends),
        "in flight at a kill, asked again": in_flight,
        "on the tape, asked again": known,
    }


def main() -> None:
    """Check all arms, and print a table; return 1 if any result differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--arms", nargs="+", default=METHODS.names(), help="arms to check (default: every method)"
    )
    parser.add_argument("--steps", type=int, default=3000, help="loop.max_env_steps")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="section.key=value")
    parser.add_argument(
        "--analyst", action="store_true", help="let methods query a server that answers by rule"
    )
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    rows, head = [], ["arm", "kills", "runs", "weights", "memories", "the same"]
    if arguments.analyst:
        head += ["questions", "in flight at a kill, asked again", "on the tape, asked again"]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|", flush=True)
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    for arm in arguments.arms:
        with (
            Counting() if arguments.analyst else nullcontext() as server,
            tempfile.TemporaryDirectory() as folder,
        ):
            rows.append(check_arm(arm, arguments, Path(folder), server))
        hashes = {name: str(rows[-1][name])[:12] for name in End._fields}
        row = {**rows[-1], **hashes}
        print("| " + " | ".join(str(cell) for cell in row.values()) + " |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    sys.exit(not all(row["same"] for row in rows))


if __name__ == "__main__":
    main()
