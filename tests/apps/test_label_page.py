"""The labelling page over HTTP, without a browser: what it lets out, whom it lets in, what programs may ask it."""

import asyncio
import base64
import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from label_parts import AGE, GENDER, draw, study
from PIL import Image

from vldebias.cli.apps import page as app_page
from vldebias.errors import InvalidInputError
from vldebias.evaluation.answers import AnnotationLog, read_log

serving, pages, findings = map(app_page, ("serving", "label.page", "label.results"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "images"
    draw(path)
    return path


@dataclass(frozen=True)
class Served:
    """Where the pages are, an engine that reads the same file, and the process behind them."""

    engine: Any
    label: str
    locked: str
    besieged: str
    results: str
    process: subprocess.Popen[str]

    def reached(self) -> set[str]:
        """The hosts that the process has connected to so far."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return set(json.loads(self.process.stdout.readline()))


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    out = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    command = [sys.executable, Path(__file__).with_name("label_server.py"), folder, out]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        where = json.loads(process.stdout.readline())
        yield Served(study(folder, GENDER, AGE, out=out), process=process, **where)
        process.kill()


@pytest.fixture(scope="module")
def client(served: Served) -> Client:
    return Client(served.label, verbose=False)


def get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return bytes(answer.read())


def test_a_program_can_label_through_the_api(served: Served, client: Client) -> None:
    engine = served.engine
    first = client.predict("Grace", api_name="/question")
    assert (first["annotator"], first["step"], first["images"], first["done"]) == ("Grace", 0, 12, 0)
    assert (first["attribute"], first["choices"]) == ("gender", ["male", "female", "cannot tell", "no person"])
    record, _ = engine._asked("Grace", 0)
    with Image.open(io.BytesIO(base64.b64decode(first["picture"]))) as shown:
        assert shown.tobytes() == Image.open(engine.folder.root / record.path).convert("RGB").tobytes()
    second = client.predict("Grace", 0, "female", api_name="/answer")
    assert (second["step"], second["attribute"]) == (1, "age")
    assert AnnotationLog(engine.log.path).answers()["Grace", record.path, "gender"].value == "female"
    assert client.predict("grace", api_name="/question")["step"] == 1


@pytest.mark.parametrize(
    ("arguments", "api_name", "text"),
    [
        (("../../etc",), "/question", "leave out /"),
        (("x" * 10_000,), "/question", "at most 40 characters, this one has 10000"),
        (("",), "/question", "Type your name"),
        (("Grace", 0, "purple"), "/answer", "expected one of male, female, cannot tell, no person, got 'purple'"),
        (("Grace", 999, "male"), "/answer", "step: expected a number from 0 to 23, got 999"),
        (("Grace", "0", "male"), "/answer", "step: expected a number from 0 to 23, got '0'"),
        (("Grace", 0, ["male"]), "/answer", "expected one of male, female"),
        ((5,), "/question", "A name is a text, this one is of the type int"),
    ],
)
def test_what_a_program_gets_wrong_is_said(
    served: Served, client: Client, arguments: tuple[Any, ...], api_name: str, text: str
) -> None:
    engine = served.engine
    before = engine.log.path.read_bytes() if engine.log.path.exists() else b""
    with pytest.raises(AppError, match=text):
        client.predict(*arguments, api_name=api_name)
    assert (engine.log.path.read_bytes() if engine.log.path.exists() else b"") == before
    assert client.predict("Grace", api_name="/question")["images"] == 12  # it goes on serving


def test_nothing_that_is_sent_says_where_an_image_comes_from(served: Served, client: Client) -> None:
    engine, address = served.engine, served.label
    sent = b"\n".join(get(address + path) for path in ("", "config", "gradio_api/info", "gradio_api/openapi.json"))
    sent += json.dumps(client.predict("Grace", api_name="/question")).encode()
    record, _ = engine._asked("Grace", 0)
    assert b"Label images" in sent
    for secret in (
        record.path,
        record.prompt,
        record.concept,
        str(engine.folder.root),
        "cali",
        "pilot",
        "answers.jsonl",
    ):
        assert secret.encode() not in sent, secret


def test_no_file_of_the_study_can_be_fetched(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, address = served.engine, served.label
    image = engine.folder.root / engine.folder.records[0].path
    assert image.is_file()
    for path in (image, engine.folder.root / "plan.json", "/etc/passwd", f"{engine.folder.root}/../images/plan.json"):
        for route in ("gradio_api/file=", "file="):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(f"{address}{route}{path}")
            assert refused.value.code in (403, 404)


def test_uploads_are_refused(served: Served) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
        + b"0" * 5000
        + b"\r\n--x--\r\n"
    )
    asked = urllib.request.Request(
        f"{served.label}gradio_api/upload", body, {"Content-Type": "multipart/form-data; boundary=x"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=60)
    assert refused.value.code == 403


def test_it_reaches_nothing_but_this_machine(served: Served) -> None:
    get(served.label)
    reached = served.reached()
    assert "127.0.0.1" in reached
    assert reached <= {"127.0.0.1", "localhost", "::1", "file"}


def test_a_page_fetches_no_fonts(served: Served) -> None:
    page = get(served.label) + get(served.label + "theme.css")
    assert b"system-ui" in page
    assert b"fonts.googleapis" not in page.replace(
        b'<link rel="preconnect" href="https://fonts.googleapis.com" />', b""
    )


# ---- serving -------------------------------------------------------------------------------------------------


def test_a_public_page_is_not_served_without_a_password(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(serving.AUTH, raising=False)
    demo = pages.build_demo(study(folder))
    with pytest.raises(InvalidInputError, match="needs a password"):
        serving.serve(demo, public=True, block=False)
    assert not demo.is_running


def test_with_a_password_nothing_is_answered_without_it(served: Served) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(served.locked + "gradio_api/info")
    assert refused.value.code == 401
    client = Client(served.locked, auth=("ada", "secret"), verbose=False)
    assert client.predict("Ada", api_name="/question")["step"] == 0


def send(address: str, *requests: bytes) -> list[bytes]:
    """The answer to each of some raw requests that are all under way at once, connections first."""

    async def ask() -> list[bytes]:
        to = urlsplit(address)
        ways = await asyncio.gather(*(asyncio.open_connection(to.hostname, to.port) for _ in requests))
        for (_, writer), request in zip(ways, requests, strict=True):
            writer.write(request)
        answers = await asyncio.gather(*(reader.read() for reader, _ in ways))
        for _, writer in ways:
            writer.close()
        return list(answers)

    return asyncio.run(ask())


def request(path: str = "/", method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
    """Headers as `x_forwarded_for`."""
    told = {"host": "127.0.0.1", "connection": "close", "content_length": str(len(body))} | headers
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in told.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1") + body


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def login(number: int, password: str = "wrong") -> bytes:
    """A password from a client that says it is another one each time."""
    body = f"username=ada&password={password}{number}".encode()
    forwarded = f"10.0.{number // 250}.{number % 250}"
    kind = "application/x-www-form-urlencoded"
    return request("/login", "POST", body, content_type=kind, x_forwarded_for=forwarded)


def test_of_400_passwords_at_once_five_are_tried(served: Served) -> None:
    answers = [status(one) for one in send(served.besieged, *map(login, range(400)))]
    assert sorted(answers) == [400] * 5 + [429] * 395


def test_who_a_named_proxy_says_is_calling_is_believed(served: Served) -> None:
    assert {status(one) for one in send(served.locked, *map(login, range(40)))} == {400}


def test_every_answer_tells_the_browser_what_it_may_do(served: Served) -> None:
    asked = {
        200: (served.label, request()),
        401: (served.locked, request("/gradio_api/info")),
        403: (served.label, request(host="evil.example")),
        404: (served.label, request("/nowhere")),
    }
    for code, (address, one) in asked.items():
        (answer,) = send(address, one)
        head = answer.split(b"\r\n\r\n")[0].decode().lower()
        assert status(answer) == code
        assert head.count("\r\nx-frame-options: deny") == 1, code
        assert head.count("\r\nx-content-type-options: nosniff") == 1, code
        (policy,) = (line for line in head.split("\r\n") if line.startswith("content-security-policy: "))
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "name", ["[evil", "[evil]:1", "]", "a:b", "localhost:b", "localhost:99999", "a b", "a/b", "a@b", "", "\xe9"]
)
def test_a_host_that_is_none_is_no_fault_of_the_server(served: Served, name: str) -> None:
    sent = (request(host=name), request(x_forwarded_host=name), request(origin=f"http://{name}"))
    assert {status(one) for one in send(served.label, *sent)} <= {200, 400, 403}


# ---- the events, without a browser ---------------------------------------------------------------------------


def page_of(engine: Any) -> Any:
    import gradio as gr

    with gr.Blocks(analytics_enabled=False):
        return pages.Page(engine)


def text_of(shown: list[Any]) -> str:
    return "\n".join(value for value in shown if isinstance(value, str))


def test_an_odd_name_leaves_the_first_screen(folder: Path) -> None:
    page = page_of(study(folder))
    shown = page._start("<script>alert(1)</script>")
    assert shown[0] is None
    assert "A name has letters" in text_of(shown)
    assert "<script>" not in text_of(shown)
    assert [s["visible"] for s in shown[2:6]] == [True, False, False, False]
    assert "<b>" not in pages.HTML.said("<b>")


def test_a_session_that_was_lost_is_asked_for_its_name(folder: Path) -> None:
    page = page_of(study(folder))
    for shown in (page._answering(0)(None, "0"), page._move(page.engine.back)(None)):
        assert shown[0] is None
        assert "you go on where you were" in text_of(shown)


def test_a_full_disk_is_said_on_the_page(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(study(folder, out=tmp_path / "x.jsonl"))
    place = page.engine.start("Ada")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(AnnotationLog, "append", full)
    shown = page._answering(0)(place, "0")
    assert shown[0] == place
    assert "Not saved: [Errno 28] No space left on device" in text_of(shown)


@pytest.mark.parametrize("name", [" 1 .png", "a /1.png", "='1.png", "\u3000\u202f.png"])
def test_a_picture_by_any_name_is_labelled(tmp_path: Path, name: str) -> None:
    path = tmp_path / "images" / name
    path.parent.mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(path)
    page = page_of(study(tmp_path / "images", out=tmp_path / "x.jsonl"))
    shown = page._answering(0)(page.engine.start("Ada"), "0")
    assert shown[0].step is None
    assert [answer.image for answer in read_log(tmp_path / "x.jsonl")[0]] == [name]
    again = study(tmp_path / "images", out=tmp_path / "x.jsonl")
    assert again.start("Ada").step is None
    assert findings.measure(again, resamples=20)[0].row("gender by people", "unknown", again.folder.records[0].variant)


@pytest.mark.parametrize("name", ["a\\b.png", "\udcff.png"])
def test_a_name_that_answers_cannot_hold_is_said_at_once(tmp_path: Path, name: str) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "0.png")
    (tmp_path / "0.png").rename(tmp_path / name)
    with pytest.raises(InvalidInputError, match=r"the answers cannot name 1 of its images, such as .*; rename"):
        study(tmp_path)


@pytest.mark.parametrize("said", ["", "1", "x²", "9" * 400])
def test_an_answer_to_another_step_than_the_one_shown_is_dropped(folder: Path, tmp_path: Path, said: str) -> None:
    page = page_of(study(folder, out=tmp_path / "x.jsonl"))
    place = page.engine.start("Ada")
    assert page._answering(0)(place, said)[0] == place
    assert not (tmp_path / "x.jsonl").exists()
    assert page._answering(0)(place, "0")[0].step == 1


def test_a_broken_image_and_the_end_have_words(tmp_path: Path) -> None:
    drawn = draw(tmp_path, images=1)
    for image in drawn:
        drawn.path(image).write_bytes(b"no image")
    page = page_of(study(tmp_path))
    shown = page._start("Ada & Ben".replace("&", "-"))
    assert "This image cannot be read. Choose <b>no person</b>." in text_of(shown)
    place = shown[0]
    while place.step is not None:
        place = page._answering(3)(place, str(place.step))[0]
    assert "Thank you, Ada - Ben." in text_of(page._show(place))
    assert "All 4 images are labelled" in text_of(page._show(place))


# ---- results -------------------------------------------------------------------------------------------------


def labelled(folder: Path, out: Path, **options: Any) -> Any:
    engine = study(folder, GENDER, AGE, out=out, **options)
    for name, shift in (("Ada", 0), ("Ben", 1)):
        place = engine.start(name)
        while place.step is not None:
            place = engine.answer(place, (place.step + shift * (place.step > 8)) % 2)
    return engine


@pytest.mark.usefixtures("no_charts")
def test_results_are_those_of_the_human_suite(folder: Path, tmp_path: Path) -> None:
    from rich.console import Console

    from vldebias.evaluation.run import run_suite
    from vldebias.evaluation.suite import load_suite
    from vldebias.evaluation.task import Options

    labelled(folder, tmp_path / "answers.jsonl", part="both")
    engine = study(folder, GENDER, AGE, out=tmp_path / "answers.jsonl")  # asks for less than was labelled
    options = Options(out=tmp_path / "out", labels=(engine.log.path,), drawn=folder, resamples=20)
    suite = run_suite(load_suite("human"), options, console=Console(file=io.StringIO()))
    result, missing = findings.measure(engine, resamples=20)
    assert missing == {}
    ours = [figure for figure in result.rows if figure.task == "gender by people"]
    assert ours == suite.rows
    assert {figure.metric for figure in ours} > {"discrepancy", "unknown", "share", "alpha"}


def test_the_results_page_shows_every_measure(folder: Path, tmp_path: Path) -> None:
    engine = labelled(folder, tmp_path / "answers.jsonl")
    result, missing = findings.measure(engine, resamples=50)
    page = findings.results_html(engine, result, missing)
    for text in ("Gender", "Age", "Ada", "12 of 12", "unknown", "cannot tell", "no person", "Krippendorff"):
        assert text in page
    alpha = result.row("gender by people", "alpha", "all images")
    assert f"{alpha.value:.3f} [{alpha.interval[0]:.3f}, {alpha.interval[1]:.3f}]" in page
    share = result.row("gender by people", "share", "none", subset="male")
    assert f"width:{100 * share.value:.1f}%" in page


def test_results_say_what_is_missing(folder: Path, tmp_path: Path) -> None:
    engine = study(folder, GENDER, AGE, out=tmp_path / "x.jsonl")
    result, missing = findings.measure(engine)
    assert set(missing) == {"gender", "age"}
    assert "Nothing to show yet" in findings.results_html(engine, result, missing)
    engine.answer(engine.start("<Ada>".strip("<>")), 0)
    assert "nobody yet" not in findings.results_html(engine, *findings.measure(engine))
    with pytest.raises(InvalidInputError, match="--votes: expected one of majority, each, got 'all'"):
        findings.measure(engine, votes="all")


def test_results_of_any_folder(tmp_path: Path) -> None:
    for path in ("none/1.png", "none/2.png", "after/1.png", "after/2.png"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / path)
    engine = study(tmp_path, GENDER)
    place = engine.start("Ada")
    while place.step is not None:
        record, _ = engine._asked("Ada", place.step)
        place = engine.answer(place, 0 if record.variant == "none" else record.seed)
    result, missing = findings.measure(engine, resamples=50)
    assert missing == {}
    found = {m: result.row("gender by people", "discrepancy", m).value for m in ("none", "after")}
    assert found == pytest.approx({"none": 0.5**0.5, "after": 0.0})


def test_the_page_of_results_reads_the_file_anew(served: Served) -> None:
    client = Client(served.results, verbose=False)
    assert "Hopper" not in client.predict(api_name="/results")
    served.engine.answer(served.engine.start("Hopper"), 0)
    assert "Hopper" in client.predict(api_name="/results")
