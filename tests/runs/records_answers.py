"""The ``coevo`` command, which prints a line for each recorded answer of an endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.inquiry import StoredAnswer
from coevo_gym.store.answers import AnswerFile
from tests.runs.child import main

if __name__ == "__main__":
    real = AnswerFile.put

    def put_and_say(self: AnswerFile, answers: Sequence[StoredAnswer]) -> None:
        real(self, answers)
        for _ in answers:
            print("recorded", flush=True)

    AnswerFile.put = put_and_say  # type: ignore[method-assign]
    main()
