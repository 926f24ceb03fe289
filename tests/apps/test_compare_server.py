"""The demo served in a process of its own: its endpoints for programs, and what it refuses."""

import base64
import io
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_parts import BAD_UPLOADS, ODD_PROMPTS, built, drawing, drawn, encoded, engine, mitigation
from gradio_client import Client
from PIL import Image

from tests.refusals import refused
from vldebias.pictures import KEY

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")]

ENDPOINTS = {"/generate", "/classify", "/retrieve", "/inspect", "/export"}


@pytest.fixture(scope="module")
def page() -> Any:
    return built(engine())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server writes for whoever runs it."""
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="module")
def address(log: Path) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name("compare_server.py"))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("w") as written, subprocess.Popen(command, env=environment, stderr=written, **pipes) as process:
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Client]:
    found = Client(address, verbose=False)
    yield found
    found.close()


def test_the_endpoints_are_the_public_ones_and_no_other(client: Client) -> None:
    assert set(client.view_api(return_format="dict", print_info=False)["named_endpoints"]) == ENDPOINTS


def test_generate_gives_what_the_engine_gives(client: Client) -> None:
    found = client.predict("A photo of a doctor.", number=2, seed=5, steps=2, api_name="/generate")
    expected = drawn(drawing(number=2, seed=5), mitigation())[-1]
    for side, pictures in found["pictures"].items():
        for i, text in enumerate(pictures):
            with Image.open(io.BytesIO(base64.b64decode(text))) as picture:
                assert json.loads(picture.info[KEY])["seed"] == 5 + i
                assert np.array_equal(np.asarray(picture), np.asarray(expected.pictures[side][i]))
    assert found["method"] == "cali"


@pytest.mark.parametrize("kind", ODD_PROMPTS)
def test_odd_prompts_come_back_as_a_message(client: Client, kind: str) -> None:
    prompt, told = ODD_PROMPTS[kind]
    for endpoint in ("/generate", "/retrieve"):
        with pytest.raises(Exception, match=told.replace("prompt", "(prompt|query)")):
            client.predict(prompt, api_name=endpoint)


@pytest.mark.parametrize("kind", ["empty", "bomb", "huge"])
def test_bad_pictures_come_back_as_a_message(client: Client, kind: str) -> None:
    data, told = BAD_UPLOADS[kind]
    told = "expected base64 of at most 10 MiB" if kind == "huge" else told.replace("(", ".")
    with pytest.raises(Exception, match=told):
        client.predict(base64.b64encode(data).decode(), api_name="/classify")


@refused(
    ({"others": -1}, "others: expected a list of pictures in base64, got -1"),
    ({"others": "a landbird on land"}, "others: expected a list of pictures in base64"),
    ({"others": [-1], "offset": True}, "picture: expected base64"),
    ({"picture": -1}, "picture: expected base64"),
    ({"classes": -1}, "class prompts: expected lines of text, got int"),
    ({"lam": "high"}, "lambda: expected a number"),
    error=Exception,
)
def test_values_of_another_type_come_back_as_a_message(client: Client, given: dict[str, Any]) -> None:
    client.predict(**given, api_name="/classify")


@pytest.mark.parametrize("path", ["../../../etc/passwd", "http://127.0.0.1:1/picture.png"])
def test_no_path_is_read_that_a_visitor_names(client: Client, path: str) -> None:
    with pytest.raises(Exception, match="paths are not read"):
        client.predict(path, api_name="/classify")


@pytest.mark.parametrize("path", ["/proc/self/environ", "../../etc/passwd", "pyproject.toml"])
def test_no_file_is_served_that_a_visitor_names(address: str, path: str) -> None:
    quoted = urllib.request.quote(path, safe="/")
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"{address}gradio_api/file={quoted}", timeout=20)
    with told.value:
        assert told.value.code in (403, 404)


@pytest.mark.parametrize("path", ["/etc/passwd", "http://example.com/a.png"])
def test_the_upload_field_takes_uploads_alone(page: Any, address: str, path: str) -> None:
    """What a browser sends for a file is a path on the server: another one than that of an upload is refused."""
    place = next(i for i, fn in page.fns.items() if getattr(fn.fn, "__name__", "") == "look")
    sent = {"path": path, "meta": {"_type": "gradio.FileData"}, "orig_name": "a.png"}
    asked = {"data": ["a landbird on water", [sent]], "fn_index": place, "session_hash": "visitor"}
    answer = join(address, asked)
    assert answer["success"] is False
    assert "root:" not in json.dumps(answer)


@pytest.mark.parametrize("sent", [[], ["a photo of a doctor"]], ids=["none", "one"])
@pytest.mark.parametrize("way", ["run", "queue"])
def test_too_few_values_are_said_and_no_fault_of_the_server(
    page: Any, address: str, log: Path, way: str, sent: list[str]
) -> None:
    """A program that sends them by hand: a client of Gradio fills in what is left out."""
    place, wanted = next((i, len(fn.inputs)) for i, fn in page.fns.items() if fn.api_name == "retrieve")
    before = log.read_text()
    if way == "queue":
        answer = join(address, {"data": sent, "fn_index": place, "session_hash": "visitor"})["output"]
    else:
        body = json.dumps({"data": sent}).encode()
        request = urllib.request.Request(
            f"{address}gradio_api/run/retrieve", body, {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(request, timeout=30)
        with told.value:
            answer = json.load(told.value)
    assert answer["error"] == f"expected {wanted} values, got {len(sent)}"
    assert "Traceback" not in log.read_text().removeprefix(before)


def join(address: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What the page's own script does: join the queue, then read how it ended."""
    request = urllib.request.Request(
        f"{address}gradio_api/queue/join", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=20).close()
    with urllib.request.urlopen(f"{address}gradio_api/queue/data?session_hash=visitor", timeout=30) as stream:
        for line in stream:
            told = json.loads(line.removeprefix(b"data:")) if line.startswith(b"data:") else {}
            if told.get("msg") == "process_completed":
                return told
    raise AssertionError("the queue ended without an answer")


def test_an_upload_that_is_too_large_is_refused(address: str) -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
        + b"\0" * (11 * 2**20)
        + b"\r\n--b--\r\n"
    )
    request = urllib.request.Request(
        f"{address}gradio_api/upload", body, {"Content-Type": "multipart/form-data; boundary=b"}
    )
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(request, timeout=30)
    with told.value:
        assert told.value.code == 413


def test_classify_retrieve_inspect_and_export_are_called(client: Client) -> None:
    turned = client.predict(api_name="/classify")
    assert turned["scores"]["none"][1] < 0.5 < turned["scores"]["mitigated"][1]  # a waterbird on land
    own = client.predict(base64.b64encode(encoded("webp")).decode(), api_name="/classify")
    assert sum(own["scores"]["none"]) == pytest.approx(1)
    assert turned["boundary"] is None
    moved = client.predict(offset=True, api_name="/classify")
    assert moved["boundary"]["images"] == 64
    assert moved["scores"]["mitigated"] != turned["scores"]["mitigated"]
    others = [base64.b64encode(encoded("png", (30, 50))).decode()]
    own = client.predict(base64.b64encode(encoded("webp")).decode(), offset=True, others=others, api_name="/classify")
    assert own["boundary"]["images"] == 2
    inspected = client.predict("model", api_name="/inspect")["joint"]["distances"]["unseen"]
    assert inspected["after"]["high"] < inspected["before"]["low"]
    taken = client.predict("model", ["age"], api_name="/export")
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(taken["zip"]))) as packed:
        assert "joint/config.json" in packed.namelist()
    assert "vldebias.debias(model, 'age', method='default', tokenizer=loaded.tokenizer)" in taken["code"]


def test_retrieve_over_the_miniature_world(client: Client) -> None:
    found = client.predict("A photo of a doctor.", api_name="/retrieve")
    place = found["k"].index(20)
    assert found["max_skew"]["mitigated"][place] < found["max_skew"]["none"][place]
    low, high = (ends[place] for ends in found["max_skew_95"]["none"])
    assert low <= found["max_skew"]["none"][place] <= high
    assert len(found["ids"]["none"]) == 12


def test_an_error_that_nobody_foresaw_does_not_tell_its_inside(client: Client) -> None:
    with pytest.raises(Exception, match=r"upstream|[Ee]rror") as told:
        client.predict("model", lam=666, api_name="/inspect")
    assert "secret" not in str(told.value)
    assert client.predict("model", api_name="/inspect")["joint"]["sigma"]  # still serving
