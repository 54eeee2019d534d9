"""Base classes of all responses, and the error response."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Shape(BaseModel):
    """A frozen base model for responses. Numbers that are not finite become ``null``."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Paged(Shape):
    """One page of a list; subclasses add ``rows``.

    Attributes:
        total: number of rows that match the filters, on all pages.
        page: number of this page, from 1.
        pages: number of pages; 1 for an empty list.
        per_page: maximum number of rows on a page.
    """

    total: int
    page: int
    pages: int
    per_page: int


class ApiProblem(Shape):
    """An error response.

    Attributes:
        error: ``BadRequest``, ``NotFound``, ``Damaged``, ``Refused`` or ``Failed``.
        message: the error in words: what happened, with which value, and what to do.
        places: paths of existing pages to offer instead, such as ``runs/quickstart``.
    """

    error: Literal["BadRequest", "NotFound", "Damaged", "Refused", "Failed"]
    message: str
    places: tuple[str, ...] = ()


class KindInfo(Shape):
    """A kind of signal, or a reason to explore.

    Attributes:
        name: the name used in rows.
        label: the name shown to users.
        colour: colour ``#rrggbb`` in the light theme.
        dark: colour ``#rrggbb`` in the dark theme.
        fires: true if rollouts fire this kind; false if it is only a reason to explore.
    """

    name: str
    label: str
    colour: str
    dark: str
    fires: bool


class About(Shape):
    """The contents and the version of this viewer.

    Attributes:
        version: version of coevo_gym.
        exported: true for an export, whose files never change; false for a server.
        made_at: creation time of an export in UTC (ISO 8601); null for a server.
        left_out: sentences that list what an export leaves out; empty for a server.
        kinds: kinds of signals and contexts in display order, with labels and colours. Rows may
            contain other kinds, which are shown by name in grey.
        home: start page of a viewer of a single run or evaluation, such as ``runs/quickstart``; ""
            to start at the list.
    """

    version: str
    exported: bool = False
    made_at: str | None = None
    left_out: tuple[str, ...] = ()
    kinds: tuple[KindInfo, ...] = ()
    home: str = ""
