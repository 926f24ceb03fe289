"""Cancel calls whose results are never fetched, so that other visitors do not wait for them.

Gradio answers a call with an event id and processes the event even if nobody requests the result.
Browsers request it at once, so a client that has not done so after `PATIENCE` seconds has left.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)
PATIENCE = 10.0  # seconds to wait for a request for the result
_CALL = re.compile(r"(?P<api>.*)/call/(?P<v2>v2/)?[^/]+")
_JOIN = re.compile(r"(?P<api>.*)/queue/join")
_RESULT = re.compile(r".*/call/(?:v2/)?[^/]+/(?P<event>\w+)")
_STREAM = re.compile(r".*/queue/data")


@dataclass
class _Call:
    """An accepted call with its event id, its session and whether its result was requested."""

    event: str
    session: str
    api: str
    is_fetched: bool = False


class Abandoned:
    """Cancel a Gradio page's events if their results are never fetched.

    Args:
        app: Gradio's ASGI application.
        patience: seconds to wait for the result to be requested.
    """

    def __init__(self, app: App, *, patience: float = PATIENCE) -> None:
        from gradio import queueing

        queueing.set_task_name = _named_once_started
        self.app = app
        self.patience = patience
        self.calls: dict[str, _Call] = {}
        self.streams: dict[str, int] = {}  # open streams per session
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward a request, and record calls and requests for results."""
        path = ""
        if scope["type"] == "http":
            path = scope.get("path", "").rstrip("/")
        method = scope.get("method")
        call = _CALL.fullmatch(path) or _JOIN.fullmatch(path)
        session = ""
        if method == "GET":
            session = self._session_of(scope, path)
        if method == "POST" and call:
            # The body of /call/v2 contains the function's arguments, and no session.
            has_session = not call.groupdict().get("v2")
            await self._begin(scope, receive, send, call["api"], has_session=has_session)
        elif session:
            await self._fetch(scope, receive, send, session)
        else:
            await self.app(scope, receive, send)

    def _session_of(self, scope: Message, path: str) -> str:
        """Return the session for which a request fetches results, or "" if it fetches none."""
        result = _RESULT.fullmatch(path)
        if result:
            call = self.calls.get(result["event"])
            return call.session if call else ""
        if _STREAM.fullmatch(path):
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            return query.get("session_hash", [""])[0]
        return ""

    async def _begin(
        self, scope: Message, receive: Receive, send: Send, api: str, *, has_session: bool
    ) -> None:
        """Forward a call, and parse the event id from its response."""
        request = bytearray()
        answer = bytearray()
        failure: list[Message] = []  # the messages of a response with status 500

        async def reading() -> Message:
            message = await receive()
            request.extend(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            answer.extend(message.get("body", b""))
            if failure or message.get("status") == 500:
                failure.append(message)
            else:
                await send(message)

        try:
            await self.app(scope, reading, sending)
        except Exception as error:
            from gradio.route_utils import FnIndexInferError

            # Gradio looks up the names in a call without checking them.
            is_name = isinstance(error, LookupError | TypeError | ValueError | FnIndexInferError)
            if not is_name or (answer and not failure):
                raise
            log.warning("%s: rejected (%s)", scope["path"], type(error).__name__)
            await _reject(send)
            return
        for message in failure:
            await send(message)
        event = _field(answer, "event_id")
        if event:
            session = (_field(request, "session_hash") if has_session else "") or event
            # If the session already has an open stream, that stream also fetches this result.
            call = _Call(event, session, api, is_fetched=session in self.streams)
            self.calls[event] = call
            task = asyncio.create_task(self._wait(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fetch(self, scope: Message, receive: Receive, send: Send, session: str) -> None:
        """Forward a request for a session's stream, which fetches all of the session's results."""
        self.streams[session] = self.streams.get(session, 0) + 1
        for call in self.calls.values():
            call.is_fetched |= call.session == session
        try:
            await self.app(scope, receive, send)
        finally:
            self.streams[session] -= 1
            if not self.streams[session]:
                del self.streams[session]

    async def _wait(self, call: _Call) -> None:
        """Cancel a call if its result was not requested in time."""
        await asyncio.sleep(self.patience)
        # Forget the call in any case, to limit memory use.
        del self.calls[call.event]
        if not call.is_fetched:
            await self._cancel(call)

    async def _cancel(self, call: _Call) -> None:
        """Cancel an event through the route that Gradio's own pages use."""
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
            """Ignore the response."""

        await self.app(scope, receive, send)


def _named_once_started(task: asyncio.Task[None], *names: Any) -> None:
    """Give the task of an event its name once it has started.

    Gradio cancels tasks by name. If it cancelled one before its first step, the queue would count
    that event as running for ever, and no visitor would be served any more.
    """
    from gradio.utils import set_task_name

    # The first step was scheduled when the task was created, so it runs before this call.
    asyncio.get_running_loop().call_soon(set_task_name, task, *names)


async def _reject(send: Send) -> None:
    """Respond to a call that names a function or an argument that does not exist."""
    message = (
        "got a function, an argument or a number of arguments that this page does not have; see"
        " /gradio_api/info for its functions"
    )
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 422, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": message}).encode()})


def _field(content: bytes | bytearray, name: str) -> str:
    """Return a string field of a JSON object, or "" if there is none."""
    try:
        value = json.loads(content)[name]
    except (ValueError, KeyError, TypeError):
        return ""
    return value if isinstance(value, str) else ""
