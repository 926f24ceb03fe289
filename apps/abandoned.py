"""Cancel calls whose results nobody fetches, so that the next visitor does not wait for them.

Gradio answers a call with the id of an event, and works on it whether or not somebody asks for its
result. A browser asks at once. Who has not asked after `PATIENCE` seconds is gone.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

PATIENCE = 10.0  # seconds
_CALL = re.compile(r"(?P<api>.*)/call/[^/]+")
_JOIN = re.compile(r"(?P<api>.*)/queue/join")
_RESULT = re.compile(r".*/call/(?:v2/)?[^/]+/(?P<event>\w+)")
_STREAM = re.compile(r".*/queue/data")


@dataclass
class _Call:
    """One call that was accepted: its event, the session that fetches it, and whether one did."""

    event: str
    session: str
    api: str
    is_fetched: bool = False


class Abandoned:
    """Cancel, behind a page of Gradio, the events that nobody fetches.

    Args:
        app: the ASGI application of Gradio. patience: seconds to wait for the one who fetches.
    """

    def __init__(self, app: App, *, patience: float = PATIENCE) -> None:
        self.app = app
        self.patience = patience
        self.calls: dict[str, _Call] = {}
        self.streams: dict[str, int] = {}  # session -> streams that are open
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, and note who calls and who fetches."""
        path = ""
        if scope["type"] == "http":
            path = scope.get("path", "").rstrip("/")
        method = scope.get("method")
        call = _CALL.fullmatch(path) or _JOIN.fullmatch(path)
        session = ""
        if method == "GET":
            session = self._session_of(scope, path)
        if method == "POST" and call:
            await self._begin(scope, receive, send, call["api"])
        elif session:
            await self._fetch(scope, receive, send, session)
        else:
            await self.app(scope, receive, send)

    def _session_of(self, scope: Message, path: str) -> str:
        """Return the session whose results a request fetches, or ""."""
        result = _RESULT.fullmatch(path)
        if result:
            call = self.calls.get(result["event"])
            return call.session if call else ""
        if _STREAM.fullmatch(path):
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            return query.get("session_hash", [""])[0]
        return ""

    async def _begin(self, scope: Message, receive: Receive, send: Send, api: str) -> None:
        """Pass a call on, and read the event from its answer."""
        request = bytearray()
        answer = bytearray()

        async def reading() -> Message:
            message = await receive()
            request.extend(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            answer.extend(message.get("body", b""))
            await send(message)

        # Passed on as it comes; request and answer are only read along.
        await self.app(scope, reading, sending)
        event = _field(answer, "event_id")
        if event:
            # A call without a session is fetched by the id of its event.
            session = _field(request, "session_hash") or event
            # The stream of the session may be open already, and fetches this one as well.
            call = _Call(event, session, api, is_fetched=session in self.streams)
            self.calls[event] = call
            task = asyncio.create_task(self._wait(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fetch(self, scope: Message, receive: Receive, send: Send, session: str) -> None:
        """Pass the stream of a session on; the calls of the session are fetched by it."""
        self.streams[session] = self.streams.get(session, 0) + 1
        for call in self.calls.values():
            # A stream fetches the results of all calls of its session.
            call.is_fetched |= call.session == session
        try:
            await self.app(scope, receive, send)
        finally:
            self.streams[session] -= 1
            if not self.streams[session]:
                del self.streams[session]

    async def _wait(self, call: _Call) -> None:
        """Cancel a call that nobody has fetched in time."""
        await asyncio.sleep(self.patience)
        # Forgotten in any case, so that a busy page does not grow.
        del self.calls[call.event]
        if not call.is_fetched:
            await self._cancel(call)

    async def _cancel(self, call: _Call) -> None:
        """Ask Gradio to end an event, by the route that its own pages use."""
        content = {"event_id": call.event, "session_hash": call.session, "fn_index": 0}
        body = json.dumps(content).encode()
        path = f"{call.api}/cancel"
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 80),
        }
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            """Drop the answer."""

        await self.app(scope, receive, send)


def _field(content: bytes | bytearray, name: str) -> str:
    """Return a text of a JSON object, or "" where there is none."""
    try:
        value = json.loads(content)[name]
    except (ValueError, KeyError, TypeError):
        return ""
    return value if isinstance(value, str) else ""
