"""Whatever is read, a reader has a value for it or says what is wrong, in an error of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from tests.fuzz.readers import READERS

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


def read(name: str, n: int, folder: Path) -> None:
    """Feed a reader ``n`` times."""
    reader = READERS[name]
    n_errors = n_read = 0

    @settings(max_examples=n, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def feed(data: st.DataObject) -> None:
        nonlocal n_errors, n_read
        try:
            reader.read(data.draw(reader.fed), folder)
        except reader.errors as error:
            n_errors += bool(str(error).strip())
        else:
            n_read += 1

    feed()
    assert n_read, "nothing of what it was fed was right"
    assert n_errors or not reader.errors, "nothing of what it was fed was wrong, or it was not told"


@pytest.mark.parametrize("name", READERS)
def test_the_simplest_valid_input_is_accepted(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    simplest = find(reader.fed, lambda _: True, settings=settings(database=None))
    reader.read(simplest, tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_any_text_is_parsed_or_refused(name: str, tmp_path: Path) -> None:
    read(name, 25, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", READERS)
def test_ten_thousand_texts_are_parsed_or_refused(name: str, tmp_path: Path) -> None:
    read(name, 10_000, tmp_path)
