"""A real browser for tests of pages: Chromium as it is installed, without a network.

A page's requests are answered here, from the viewer's own files and from hand-made answers, under
the policy that the server sends; what the browser has to complain of is kept.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Route,
    ViewportSize,
    expect,
    sync_playwright,
)

import coevo_gym
from coevo_gym.core.task import FrozenDict
from coevo_gym.view.shell import HEADERS
from tests import needs

STATIC = Path(coevo_gym.__file__).parent / "view" / "static"
ADDRESS = "http://127.0.0.1:9"
PATIENCE_MS = 60_000
"""How long a page or an engine may take on a busy machine."""
expect.set_options(timeout=PATIENCE_MS)
JUMP = """place => new Promise(resolve => {
    const before = window.location.hash;
    window.location.hash = place;
    if (window.location.hash === before) return resolve();
    const drawn = () => requestAnimationFrame(() => setTimeout(resolve));
    window.addEventListener("hashchange", drawn, { once: true });
})"""
"""Change the place, and wait until the page has drawn it once."""
NARROW: ViewportSize = {"width": 360, "height": 740}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium; the test is skipped where there is none."""
    if why := needs.chromium():
        pytest.skip(why)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=needs.CHROMIUM, args=FLAGS)
        try:
            yield started
        finally:
            started.close()


@dataclass
class Visit:
    """A tab of the browser.

    Attributes:
        page: the tab.
        complaints: errors in its console and faults in its scripts.
        asked: paths and parameters of the API that it asked for, in order.
    """

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[tuple[str, dict[str, list[str]]]] = field(default_factory=list)

    def record_complaints(self) -> None:
        """Keep what the browser complains of from now on."""

        def remember(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self.complaints.append(message.text)

        self.page.on("console", remember)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def go(self, place: str, address: str = ADDRESS) -> None:
        """Open a place of the viewer, and wait until what it shows is there."""
        self.page.goto(address + ("" if address.endswith(".html") else "/") + place)
        self.wait_until_loaded()

    def jump(self, place: str) -> None:
        """Go to a place without loading the page anew."""
        self.page.evaluate(JUMP, place)
        self.wait_until_loaded()

    def wait_until_loaded(self) -> None:
        """Wait until nothing is being loaded."""
        expect(self.page.locator("main h1")).to_be_visible()
        expect(self.page.locator(".loading, [aria-busy=true]")).to_have_count(0)

    def overflow_px(self) -> int:
        """By how many pixels the page is wider than its window."""
        root = "document.documentElement"
        return max(0, self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))

    def assert_sound(self) -> None:
        """Nobody complains of the page, and it fits a narrow window."""
        main = self.page.locator("main")
        expect(main.locator("h1")).not_to_be_empty()
        assert not main.locator(".problem").count()
        assert "This page failed" not in main.inner_text()
        wide = self.page.viewport_size
        self.page.set_viewport_size(NARROW)
        try:
            assert self.overflow_px() == 0
        finally:
            if wide:
                self.page.set_viewport_size(wide)
        assert not self.complaints


def make_route_handler(
    visit: Visit, answers: Mapping[str, Any], refused: Mapping[str, Any]
) -> Callable[[Route], None]:
    """Answers requests from the viewer's files, and from ``answers`` by the API's paths.

    The answers in ``refused`` have the status 404, as have all other paths.
    """

    def answer(route: Route) -> None:
        parts = urlsplit(route.request.url)
        path = unquote(parts.path).lstrip("/")
        if not path.startswith("api/"):
            file = STATIC / (path.removeprefix("static/") or "index.html")
            kind = mimetypes.guess_type(file.name)[0] or "text/plain"
            headers = {**HEADERS, "content-type": kind}
            route.fulfill(status=200 if file.is_file() else 404, headers=headers,
                          body=file.read_bytes() if file.is_file() else b"")  # fmt: skip
            return
        path = path.removeprefix("api/")
        if path == "live":
            body = "retry: 600000\n\n"
            route.fulfill(
                status=200, headers={**HEADERS, "content-type": "text/event-stream"}, body=body
            )
            return
        visit.asked.append((path, parse_qs(parts.query)))
        missing = {"error": "NotFound", "message": f"There is no {path}."}
        body = json.dumps(answers.get(path, refused.get(path, missing)))
        route.fulfill(status=200 if path in answers else 404, body=body,
                      headers={**HEADERS, "content-type": "application/json"})  # fmt: skip

    return answer


@contextmanager
def visit(
    browser: Browser,
    answers: Mapping[str, Any] | None = None,
    *,
    refused: Mapping[str, Any] = FrozenDict(),
    **options: Any,
) -> Iterator[Visit]:
    """A tab of its own, as in a browser that was never used before.

    Args:
        browser: the browser.
        answers: of the API, by path; None to let requests through to a server.
        refused: answers with the status 404, by path.
        options: of the context, such as ``viewport`` and ``color_scheme``.
    """
    context: BrowserContext = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    try:
        visit = Visit(context.new_page())
        visit.record_complaints()
        if answers is not None:
            visit.page.route(f"{ADDRESS}/**", make_route_handler(visit, answers, refused))
        yield visit
    finally:
        context.close()
