"""The server behind the pages: who is let in, and what is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from coevo_gym.view.play.server import BODY_BYTES, PlayRoutes, make_app
from tests.play.managers import TASK, toy_manager
from tests.serve.standing import break_off

HERE = "http://127.0.0.1:8000"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    routes = PlayRoutes(toy_manager(tmp_path))
    with TestClient(make_app(routes), base_url=HERE) as client:
        page = client.get("/").text
        match = re.search(r'name="play-token" content="([^"]+)"', page)
        assert match is not None
        client.headers["X-Play-Token"] = match[1]
        yield client


def begun(client: TestClient) -> dict[str, Any]:
    answer = client.post("/api/play/games", json={"task": TASK.id})
    assert answer.status_code == 200
    state: dict[str, Any] = answer.json()
    return state


def test_an_episode_can_be_played_and_saved_over_http(client: TestClient) -> None:
    about = client.get("/api/play").json()
    assert about["benchmark"] == "toy"
    assert client.get("/api/play/tasks", params={"q": "red"}).json()["total"] > 0
    state = begun(client)
    for step, action in enumerate(TASK.solution):
        payload = {"action": action, "step": step}
        state = client.post(f"/api/play/games/{state['id']}/act", json=payload).json()
    assert state["grade"]["success"]
    assert client.post(f"/api/play/games/{state['id']}/keep", json={}).json()["keep"]["kept"]
    gone = client.get("/api/play/games/another")
    assert gone.status_code == 404
    assert "no longer exists" in gone.json()["message"]


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("token", ["", "x", "ü"])
def test_requests_without_the_token_of_the_page_are_refused(
    client: TestClient, method: str, token: str
) -> None:
    state = begun(client)
    headers = {"X-Play-Token": token.encode()}
    paths = ["/api/play", "/api/play/tasks", f"/api/play/games/{state['id']}"]
    if method == "post":
        game = f"/api/play/games/{state['id']}"
        paths = ["/api/play/games", *(f"{game}/{do}" for do in ("act", "give-up", "keep", "go-on"))]
    for path in paths:
        assert client.request(method, path, headers=headers).status_code == 403
    assert client.get(f"/api/play/games/{state['id']}").json()["step"] == 0


def test_actions_must_be_posted_as_json(client: TestClient) -> None:
    id = begun(client)["id"]
    assert client.get(f"/api/play/games/{id}/act").status_code == 405
    response = client.post(f"/api/play/games/{id}/act", data={"action": "done", "step": "0"})
    assert response.status_code == 415  # what a form of another site could send


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8000"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "null"},
    ],
)
def test_requests_from_other_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    for path in ("/", "/api/play", "/static/play.css"):
        assert client.get(path, headers=headers).status_code == 403
    assert client.post("/api/play/games", json={}, headers=headers).status_code == 403


def test_a_request_body_over_the_limit_is_refused(client: TestClient) -> None:
    id = begun(client)["id"]
    payload = {"action": "x" * BODY_BYTES, "step": 0}
    assert client.post(f"/api/play/games/{id}/act", json=payload).status_code == 413
    parts = iter([b'{"action": "', b"x" * BODY_BYTES, b'", "step": 0}'])
    headers = {"Content-Type": "application/json"}
    response = client.post(f"/api/play/games/{id}/act", content=parts, headers=headers)
    assert response.status_code == 413


NO_ORDERS = (
    *(b"", b"[]", b"{", b"{}", b"[" * 100_000),
    *(b'{"action": 1, "step": 0}', b'{"action": "\xff", "step": 0}'),
    *(b'{"action": "done", "step": true}', b'{"action": "done", "step": "0"}'),
)


@pytest.mark.parametrize("body", NO_ORDERS)
def test_a_malformed_action_request_is_refused(client: TestClient, body: bytes) -> None:
    id = begun(client)["id"]
    headers = {"Content-Type": "application/json"}
    response = client.post(f"/api/play/games/{id}/act", content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["message"]
    assert client.get(f"/api/play/games/{id}").json()["step"] == 0


def test_pages_forbid_loading_content_from_other_sites(client: TestClient) -> None:
    for path in ("/", "/static/play.css", "/static/play/start.js", "/api/play"):
        answer = client.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "no-store" in client.get("/").headers["cache-control"]


def test_every_file_that_the_page_references_is_served(client: TestClient) -> None:
    page = client.get("/").text
    paths = re.findall(r'(?:src|href)="(static/[^"]+)"', page)
    assert len(paths) > 10
    for path in paths:
        assert client.get(f"/{path}").status_code == 200, path
    assert client.get("/static/../play/server.py").status_code == 404
    assert client.get("/static/%2e%2e/play/server.py").status_code == 404


def test_a_connection_broken_while_sending_logs_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    routes = PlayRoutes(toy_manager(tmp_path))
    headers = {"x_play_token": routes.token, "content_type": "application/json"}
    break_off(make_app(routes), "/api/play/games", **headers)
    assert not caplog.records
