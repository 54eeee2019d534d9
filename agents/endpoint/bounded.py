"""An HTTP client with a limit on the size of responses."""

from __future__ import annotations

from typing import Any

MAX_ANSWER_BYTES = 16 << 20
"""Maximum body size to read, including errors; a long chat completion takes about 1 MB."""
_MAX_REDIRECTS = 5


class UnreadableAnswer(Exception):
    """An answer whose body was not read because it is too large or compressed."""


def bounded_client(openai: Any, max_bytes: int = MAX_ANSWER_BYTES) -> Any:
    """Create the HTTP client for ``openai.AsyncOpenAI(http_client=...)``.

    It requests uncompressed answers and refuses compressed ones, because a few kilobytes can expand
    to gigabytes. The bodies of redirects are not read at all.

    Args:
        openai: the imported module, whose defaults (proxies, limits, certificates) are used.
        max_bytes: maximum body size of an answer.

    Returns:
        The client. Its requests raise :class:`UnreadableAnswer`, which some versions of ``openai``
        wrap in an ``APIConnectionError``.
    """

    class Client(openai.DefaultAsyncHttpxClient):  # type: ignore[misc]
        async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
            """Send a request and read its answer; ``stream`` is ignored."""
            request.headers["accept-encoding"] = "identity"
            options["follow_redirects"] = False
            response = await super().send(request, stream=True, **options)
            try:
                for _ in range(_MAX_REDIRECTS):
                    if response.next_request is None:
                        break
                    await response.aclose()
                    response = await super().send(response.next_request, stream=True, **options)
                return await _read(response, max_bytes)
            finally:
                await response.aclose()

    return Client()


async def _read(response: Any, max_bytes: int) -> Any:
    """Return the same response with its body read."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise UnreadableAnswer(f"its answer is compressed ({encoding[:40]!r})")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            raise UnreadableAnswer(f"its answer is larger than {max_bytes:,} bytes")
    headers = []
    for name, value in response.headers.raw:
        if name.lower() == b"content-type":
            value = value.partition(b";")[0]  # JSON is UTF-8; some charsets are not text encodings
        if name.lower() not in (b"content-encoding", b"content-length", b"transfer-encoding"):
            headers.append((name, value))
    return type(response)(
        response.status_code, headers=headers, content=bytes(body), request=response.request
    )
