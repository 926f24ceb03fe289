"""A server with the interface of a chat service, which gives prepared answers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Answer each request for a chat completion with the next status and text."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, str | None]] = []
        self.bodies: list[dict[str, Any]] = []
        self.release = threading.Event()  # late answers wait for it

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.server.bodies.append(json.loads(self.rfile.read(length)))
        index = min(len(self.server.bodies), len(self.server.answers)) - 1
        status, text = self.server.answers[index]
        if text is None:
            self.server.release.wait(30)
        message = {"role": "assistant", "content": text}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        completion = {"id": "1", "object": "chat.completion", "created": 0, "model": "a-model"}
        body = json.dumps(completion | {"choices": choices}).encode()
        if text == "<html>":
            body = b"<html>Bad gateway</html>"
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def chat_server() -> Iterator[Server]:
    """Run a server on a free port until the end of the block."""
    running = Server()
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield running
    finally:
        running.release.set()
        running.shutdown()
        thread.join()
        running.server_close()
