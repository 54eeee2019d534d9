"""`coevo_gym/remote.py` behind a proxy that encrypts, and while nobody answers."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from coevo_gym.remote import RemoteError, RemoteTaskEnv, TicketClient
from tests.serve.standing import open_session, run_server


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certificate of this machine, with its key, that clients trust."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("apt-get install openssl")
    path = tmp_path / "this.pem"
    wanted = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(path), "-out", str(tmp_path / "public.pem")]
    subprocess.run([openssl, *wanted.split(), *names, *files], check=True, capture_output=True)
    public = tmp_path / "public.pem"
    path.write_text(path.read_text() + public.read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(public))
    return path


@contextmanager
def encrypting(address: str, certificate: Path) -> Iterator[str]:
    """The address of a proxy that takes TLS and passes all on to ``address`` as it is."""
    behind = urlsplit(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def copy(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client = context.wrap_socket(listening.accept()[0], server_side=True)
                    server = socket.create_connection((behind.hostname, behind.port))
                    stack.enter_context(client)
                    stack.enter_context(server)
                    for pair in ((client, server), (server, client)):
                        threading.Thread(target=copy, args=pair, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"https://localhost:{listening.getsockname()[1]}"
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def test_both_apis_work_behind_a_tls_proxy(tmp_path: Path, certificate: Path) -> None:
    session = open_session(tmp_path / "s.db")
    with run_server(session) as server, encrypting(server.address, certificate) as address:
        tickets = TicketClient(address)
        assert tickets.give_back(tickets.take()["id"]) == "given back"
        env = RemoteTaskEnv(address, split="val")
        observation, info = env.reset()
        assert observation
        assert info["instruction"]
        *_, info = env.step("look")
        assert info["step"] == 1
        env.close()


@pytest.mark.parametrize("address", ["localhost", "ftp://localhost:1", "http://localhost", ""])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="The address must look like"):
        TicketClient(address)
    with pytest.raises(ValueError, match="The address must look like"):
        RemoteTaskEnv(address)


def test_a_client_that_waits_for_a_server_logs_a_warning_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    caplog.set_level(logging.WARNING)
    with pytest.raises(RemoteError, match="ServerLost"):
        TicketClient(address, patience_s=0.3).metrics()
    with pytest.raises(RemoteError, match="ServerLost"):
        RemoteTaskEnv(address, patience_s=0.3).reset()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert all(address in text and "retrying for up to 0.3 s" in text for text in messages)
