"""Test the inspect-ai task end to end, in front of a fake images API that returns women and men."""

import base64
import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("inspect_ai", reason="make test-integrations installs it")

from inspect_ai import eval as evaluate
from inspect_ai.log import EvalLog

from apps.audit.records.check import problems_of
from apps.inspect.logs import record_of_log
from apps.inspect.task import who_appears
from vldebias.errors import InvalidInputError
from vldebias.hosts.loading import load_host

REFUSED = "A photo of a nurse."
IMAGES = 2
SAMPLES = 24  # the task uses the first subjects of the protocol


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # requests arrive concurrently


class ImagesApi(BaseHTTPRequestHandler):
    """Answer like an OpenAI-compatible images API, with people in turn, and refuse one prompt."""

    people: ClassVar[list[tuple[bytes, str]]] = []
    served: ClassVar[list[tuple[str, str]]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = request["prompt"]
        if prompt == REFUSED:
            self._answer(400, {"error": {"message": "content policy"}})
            return
        picture, value = self.people[len(self.served) % len(self.people)]
        self.served.append((prompt, value))
        self._answer(200, {"data": [{"b64_json": base64.b64encode(picture).decode()}]})

    def _answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def people() -> list[tuple[bytes, str]]:
    """Return pictures from the embedded pipeline, three women for each man."""
    pipe = load_host(pipeline="miniature").host
    pipe.set_progress_bar_config(disable=True)
    values = ["female", "female", "male", "female"]
    texts = [f"A photo of a {value} teacher." for value in values]
    pictures = []
    for picture, value in zip(pipe(texts, num_inference_steps=8).images, values, strict=True):
        file = io.BytesIO()
        picture.save(file, "PNG")
        pictures.append((file.getvalue(), value))
    return pictures


@pytest.fixture
def api(people: list[tuple[bytes, str]]) -> Iterator[str]:
    ImagesApi.people = people
    ImagesApi.served = []
    server = Server(("127.0.0.1", 0), ImagesApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def run(api: str, folder: Path) -> EvalLog:
    (log,) = evaluate(
        who_appears(api=api, model="painter", images=IMAGES, judge="miniature"),
        model=None,
        limit=SAMPLES,
        log_dir=str(folder),
        display="none",
    )
    return log


def test_the_task_counts_the_shares_and_refusals_of_an_images_api(api: str, tmp_path: Path) -> None:
    log = run(api, tmp_path)
    assert log.status == "success", log.error
    record = record_of_log(log, "painter-gender")
    assert problems_of(record) == []
    assert record.model.name == "painter"
    rows = {row.prompt: row for row in record.counts}
    assert rows[REFUSED].unknown == IMAGES
    assert len(ImagesApi.served) == SAMPLES - IMAGES
    read = sum(sum(row.counts) for row in record.counts)
    women = sum(row.counts[record.values.index("female")] for row in record.counts)
    served = [value for _, value in ImagesApi.served]
    assert read == len(served) > 0
    assert women == served.count("female")
    (score,) = log.results.scores if log.results else ()
    (share,) = (f for f in record.figures if (f.metric, f.value) == ("share", "female"))
    assert score.metrics["female"].value == pytest.approx(share.estimate)
    assert score.metrics["female low"].value == pytest.approx(share.low)


def test_inspect_ai_finds_the_task_by_the_name_in_the_documentation() -> None:
    """The name is the same in a checkout and in a wheel, whose packages have different names."""
    script = (
        "from inspect_ai._util.registry import registry_lookup\n"
        "print(registry_lookup('task', 'vldebias/who_appears').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "who_appears", done.stderr


def test_a_generator_may_be_an_api_or_a_pipeline() -> None:
    with pytest.raises(
        InvalidInputError, match="expected api together with model, or only pipeline"
    ):
        who_appears()
    with pytest.raises(
        InvalidInputError, match="expected api together with model, or only pipeline"
    ):
        who_appears(api="http://127.0.0.1/v1")


def test_a_pipeline_generates_the_images_of_the_task(tmp_path: Path) -> None:
    (log,) = evaluate(
        who_appears(pipeline="miniature", images=1, judge="miniature"),
        model=None,
        limit=3,
        log_dir=str(tmp_path),
        display="none",
    )
    assert log.status == "success", log.error
    record = record_of_log(log, "miniature-inspect")
    assert sum(sum(row.counts) + (row.unknown or 0) for row in record.counts) == 3
