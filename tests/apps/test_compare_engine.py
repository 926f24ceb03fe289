"""The demo's engine: twins from the same noise, nothing left attached, honest shares, stopping, uploads, export."""

import ast
import io
import json
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compare_parts import BAD_UPLOADS, FINE_PROMPTS, drawing, drawn, encoded, engine, mitigation, module
from PIL import Image

import vldebias
from vldebias.data import Embeddings, Labels, save_embeddings
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.hosts.attachment import attachment_of
from vldebias.hosts.images import image_encoder
from vldebias.metrics import attribute_shares, max_skew
from vldebias.pictures import KEY

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")


def pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).astype(int)


def apart(one: np.ndarray, picture: Image.Image) -> int:
    """The largest difference of a pixel: of a batch within 1 of 255 from a picture that was drawn alone."""
    return int(np.abs(one - pixels(picture)).max())


def test_twins_share_their_noise_and_nothing_stays_attached() -> None:
    reports = drawn(drawing(number=3, steps=3), mitigation())
    last = reports[-1]
    assert last.whole
    assert attachment_of(engine().pipe()) is None

    def by_hand() -> np.ndarray:
        noise = [torch.Generator("cpu").manual_seed(1)]
        call = {"generator": noise, "num_inference_steps": 3, "guidance_scale": 3.0}
        return pixels(engine().pipe()(["A photo of a doctor."], **call).images[0])

    assert apart(by_hand(), last.pictures["none"][1]) <= 1
    assert apart(by_hand(), last.pictures["mitigated"][1]) > 5
    with vldebias.debias(engine().pipe(), "gender") as attached:
        (edit,) = attached.projections.values()
        assert apart(by_hand(), last.pictures["mitigated"][1]) <= 1
    shares = [report.share for report in reports]
    assert shares == sorted(shares)
    assert list(dict.fromkeys(report.pairs for report in reports)) == [
        0,
        1,
        3,
    ]  # the first pair alone, the others at once
    assert last.method == edit.method == "cali"
    assert last.lams == {"mitigated": (edit.lam,)}


def test_what_is_drawn_beside_is_what_would_be_drawn_alone() -> None:
    """One batch of the model as it is and three methods, values dealt, of the same noise as each by itself."""
    asked = drawing("A photo of an editor.", number=2, seed=5)
    last = drawn(replace(asked, beside=("cali", "steer")), mitigation(method="stated-value"))[-1]
    assert last.sides == ("none", "mitigated", "cali", "steer")
    assert last.whole
    assert set(last.lams) == {"mitigated", "cali", "steer"}
    for side, method in (("mitigated", "stated-value"), ("cali", "cali"), ("steer", "steer")):
        alone = drawn(asked, mitigation(method=method))[-1]
        for i in range(2):
            assert apart(pixels(alone.pictures["none"][i]), last.pictures["none"][i]) <= 1
            assert apart(pixels(alone.pictures["mitigated"][i]), last.pictures[side][i]) <= 1
        assert {len(shown) for shown in last.recognised.values()} == {2}
    assert module("packing").about(last, "cali", 1)["method"] == "cali"
    shown = module("view").HTML.comparison(last)
    assert [f"<h3>{name}</h3>" in shown for name in ("stated-value", "cali", "steer")] == [True] * 3
    assert attachment_of(engine().pipe()) is None


def test_a_prompt_that_states_its_attribute_is_left_alone_unless_told_otherwise() -> None:
    prompt = drawing("A photo of a female doctor.")
    kept = drawn(prompt, mitigation())[-1]
    assert kept.stated == ("female",)
    assert np.array_equal(pixels(kept.pictures["none"][0]), pixels(kept.pictures["mitigated"][0]))
    told = module("view").HTML.verdict(kept)
    assert "states its attribute (“female”): left alone" in told
    opened = drawn(prompt, mitigation(keep_stated=False))[-1]
    assert not np.array_equal(pixels(opened.pictures["none"][0]), pixels(opened.pictures["mitigated"][0]))
    assert "left alone" not in module("view").HTML.verdict(opened)


@pytest.mark.parametrize("kind", ["html", "control"])  # the others are checked, and end in the same place
def test_unusual_prompts_are_drawn_and_escaped(kind: str) -> None:
    last = drawn(drawing(FINE_PROMPTS[kind], steps=1), mitigation())[-1]
    shown = module("view").HTML.verdict(last) + module("view").HTML.comparison(last)
    assert last.whole
    assert "<script>" not in shown
    assert "<b>doctor" not in shown


def test_own_words_are_drawn_and_judged() -> None:
    own = module("settings").Mitigation.of([], "with glasses: bespectacled\nwithout: clear-eyed")
    last = drawn(drawing(), own)[-1]
    (found,) = last.measured["mitigated"]
    assert found.name == "own words"
    assert [share.value for share in found.shares] == ["with glasses", "without", "cannot tell"]
    assert last.judge.startswith("zero-shot")


class StopsAtThirdLook(threading.Event):
    """Set by the look itself, so that no thread has to be in time."""

    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        if self.looks == 3:
            self.set()
        return super().is_set()


def test_stopping_ends_within_a_step() -> None:
    stop = StopsAtThirdLook()
    reports = list(module("drawing").compare(engine(), drawing(number=16, steps=50), mitigation(), stop))
    assert stop.looks == 3
    assert len(reports) <= 3
    assert reports[-1].pairs == 0
    assert attachment_of(engine().pipe()) is None
    assert list(module("drawing").compare(engine(), drawing(), mitigation(), stop))[-1].pairs == 0  # already stopped


def test_closing_the_iterator_stops_the_work() -> None:
    reports = module("drawing").compare(engine(), drawing(number=16, steps=50), mitigation(), stop := threading.Event())
    next(reports)
    reports.close()
    assert stop.is_set()
    deadline = time.monotonic() + 20
    while any(t.name == "compare" for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(t.name == "compare" for t in threading.enumerate())


def test_an_error_in_the_work_is_raised_where_it_is_followed() -> None:
    def work(say: Any) -> None:
        say(1)
        raise InvalidInputError("no such thing")

    followed = module("drawing").followed(work, threading.Event())
    assert next(followed) == 1
    with pytest.raises(InvalidInputError, match="no such thing"):
        next(followed)


def test_two_visitors_at_once_get_what_each_asked_for() -> None:
    asked = [(drawing(seed=3), mitigation("gender")), (drawing(seed=4), mitigation("age"))]
    alone = [drawn(*one)[-1] for one in asked]
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda i=i, one=one: found.update({i: drawn(*one)[-1]})) for i, one in enumerate(asked)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, one in enumerate(alone):
        for side, pictures in one.pictures.items():
            assert np.array_equal(pixels(pictures[0]), pixels(found[i].pictures[side][0]))


def test_the_strip_starts_with_the_bare_picture_and_ends_with_the_mitigated_one() -> None:
    rows = list(module("drawing").strip(engine(), drawing(), mitigation(strength=0.3), threading.Event()))[-1]
    twins = drawn(drawing(), mitigation())[-1]
    assert [len(row) for row in rows] == [5]
    assert apart(pixels(rows[0][0]), twins.pictures["none"][0]) <= 1
    assert apart(pixels(rows[0][-1]), twins.pictures["mitigated"][0]) <= 1
    assert module("view").HTML.strengths(rows, module("drawing").STRENGTHS, drawing()).count("<img") == 5


def test_the_zip_says_how_each_picture_was_made() -> None:
    last = drawn(drawing(number=2, seed=7), mitigation(strength=0.5))[-1]
    with zipfile.ZipFile(io.BytesIO(module("packing").pack(last))) as packed:
        names = packed.namelist()
        assert names == [f"{side}/{seed:010d}.png" for side in ("none", "mitigated") for seed in (7, 8)] + [
            "metadata.json"
        ]
        about = json.loads(packed.read("metadata.json"))
        with Image.open(io.BytesIO(packed.read("mitigated/0000000008.png"))) as picture:
            told = json.loads(picture.info[KEY])
            assert np.array_equal(pixels(picture), pixels(last.pictures["mitigated"][1]))
    assert told["prompt"] == "A photo of a doctor."
    assert (told["seed"], told["strength"], told["method"], told["lam"]) == (
        8,
        0.5,
        "cali",
        list(last.lams["mitigated"]),
    )
    assert 0 < last.lams["mitigated"][0] < 500  # of a narrow space, where the default lowers it
    assert about["measured"]["none"][0]["n"] == 2
    assert about["judge"] == {"name": "miniature judge", "sure": 0.8}


def test_a_value_drawn_for_each_image_is_a_method_too() -> None:
    last = drawn(drawing(number=2), mitigation(method="steer"))[-1]
    assert last.method == "steer"
    assert not np.array_equal(pixels(last.pictures["none"][0]), pixels(last.pictures["mitigated"][0]))
    with pytest.raises(InvalidInputError, match="'steer' draws a value for each image, which texts alone do not show"):
        module("inspect").inspect(engine(), "pipeline", mitigation(method="steer"))
    with pytest.raises(VldebiasError, match="draws no images; method 'steer' is for pipelines"):
        engine().fit("model", mitigation(method="steer"))


# ---- shares -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codes", [[0, 0, 0, 1], [1], [0, -1, -1, 1, 0], [0] * 30])
def test_shares_agree_with_the_metric_and_count_the_unknown(codes: list[int]) -> None:
    found = module("drawing").measure("gender", ("male", "female"), np.array(codes))
    assert sum(share.count for share in found.shares) == len(codes)
    assert sum(share.share for share in found.shares) == pytest.approx(1)
    assert found.shares[-1].count == codes.count(-1)
    expected = attribute_shares(codes, 2, unknown=-1)
    value, low, high = found.discrepancy
    assert value == pytest.approx(expected.discrepancy)
    assert 0 <= low <= value <= high <= 0.5**0.5 + 1e-12
    for share in found.shares:
        assert share.low - 1e-12 <= share.share <= share.high + 1e-12
        assert share.high > share.low  # few pictures never make certain


def changed(before: Sequence[int], after: Sequence[int], values: int = 2) -> Any:
    """What became of pictures that show these codes, -1 for none."""
    sides = [module("drawing").measure("it", "abcdef"[:values], np.array(codes)) for codes in (before, after)]
    return sides[0].change_to(sides[1])


def test_pictures_of_one_noise_are_compared_as_pairs() -> None:
    found = changed([0] * 8 + [1, -1], [1] * 7 + [0, 0, 0])
    assert (found.value, found.pairs, found.before, found.after) == ("a", 9, 8, 2)
    assert (found.lost, found.gained, found.moved) == (7, 1, 8)
    assert found.p == pytest.approx(2 * 9 / 256)
    assert found.discrepancy == pytest.approx((2**0.5 * (8 / 9 - 0.5), 2**0.5 * (0.5 - 2 / 9)))
    assert changed([0] * 8, [-1] * 8) is None


@pytest.mark.parametrize(("number", "values"), [(7, 2), (8, 3), (16, 3)])  # around where a verdict begins
def test_no_verdict_is_a_false_alarm_more_often_than_one_in_twenty(number: int, values: int) -> None:
    """Where the sides of each pair are exchangeable: all ways to turn the pairs round, of many sets of pairs."""
    rng = np.random.default_rng(number)
    alarms = []
    for _ in range(3):
        pairs = rng.choice(values, size=(2, number), p=rng.dirichlet(np.ones(values)))
        ways = list(product((False, True), repeat=number)) if number <= 8 else rng.random((250, number)) < 0.5
        turned = [np.where(way, pairs[::-1], pairs) for way in ways]
        verdicts = [changed(*sides, values).verdict for sides in turned]
        alarms.append(np.mean([verdict in ("fewer", "more") for verdict in verdicts]))
        assert number >= 8 or set(verdicts) == {"too few"}
    assert max(alarms) <= (0.05 if number <= 8 else 0.05 + 3 * (0.05 * 0.95 / 250) ** 0.5)


def test_what_moves_clearly_is_said_to() -> None:
    assert changed([0] * 16, [0, 1] * 8).verdict == "fewer"
    assert changed([0, 1] * 8, [0] * 16).verdict == "more"
    assert changed([0] * 16, [1] + [0] * 15).verdict == "no clear change"
    assert changed([0] * 7, [1] * 7).verdict == "too few"
    assert changed([0] * 8 + [-1] * 8, [0] * 16).verdict == "the same"
    rng = np.random.default_rng(0)
    after = (rng.random((100, 16)) < 0.5).astype(int)  # from one value alone to even shares
    assert np.mean([changed([0] * 16, codes).verdict == "fewer" for codes in after]) > 0.8


@pytest.mark.parametrize("number", [1, 4, 7])
def test_values_are_dealt_over_a_run_although_each_picture_is_a_call(number: int) -> None:
    prompt, how, dealt = "A photo of a pilot.", mitigation(method="stated-value"), []
    for run in range(6):
        drawn_here: Counter[str | None] = Counter()
        for place in range(number):
            with engine().drawing(how, run=run, places=[place], of=number) as pipe:
                on = attachment_of(pipe)
                drawn_here.update(on.values([prompt], on.seeds))
        counts = [drawn_here["male"], drawn_here["female"]]
        assert sum(counts) == number
        assert abs(counts[0] - counts[1]) <= number % 2
        dealt.append(drawn_here["male"])
    assert number % 2 == 0 or len(set(dealt)) == 2  # an odd one goes to either


def test_a_comparison_and_its_strip_deal_over_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    drawing_of = engine().drawing

    def spied(*given: Any, **places: Any) -> Any:
        asked.append({name: list(one) if name == "places" else one for name, one in places.items()})
        return drawing_of(*given, **places)

    monkeypatch.setattr(engine(), "drawing", spied)
    drawn(drawing(number=7, seed=3, steps=1), mitigation())
    whole = {"run": 3, "of": 7, "beside": []}
    assert asked == [whole | {"places": places} for places in ([0], [1, 2, 3, 4], [5, 6])]


def test_what_it_cost_is_counted_by_whom_the_prompt_asks_for() -> None:
    last = drawn(drawing("A photo of a web developer.", number=2, steps=1), mitigation())[-1]
    assert last.subject == "web developer"
    assert {side: len(shown) for side, shown in last.recognised.items()} == {"none": 2, "mitigated": 2}
    assert drawn(drawing("A photo of a bird.", steps=1), mitigation())[-1].recognised == {}
    sure = replace(last, recognised={"none": (True, True), "mitigated": (True, False)})
    told = module("view").HTML.cost(sure)
    assert "recognised as “web developer” 2 as the model is, 1 under cali, of 2" in told


def test_nothing_told_has_no_discrepancy() -> None:
    found = module("drawing").measure("gender", ("male", "female"), np.array([-1, -1]))
    assert found.discrepancy is None
    assert "no picture can be told" in module("view").HTML.bars(found)


# ---- classify -----------------------------------------------------------------------------------------------------


def test_classify_turns_the_example_that_its_background_misleads() -> None:
    classify = module("classify")
    picture = classify.example("a waterbird on land")
    how = mitigation("background", method="orth")
    found = classify.classify(engine(), picture, classify.CLASSES, classify.SPURIOUS, how)
    assert found.scores["none"].argmax() == 0
    assert found.scores["mitigated"].argmax() == 1
    assert found.scores["none"].sum() == pytest.approx(1)
    assert np.abs(found.cosines["mitigated"]).max() < 1e-6  # P0: no class prompt leans to a spurious one
    model, tokenizer = engine().clip().host, engine().clip().tokenizer
    with torch.no_grad():
        texts = model.encode_text(tokenizer(classify.CLASSES.splitlines()), normalize=True)
        image = model.encode_image(engine().clip().preprocess(picture)[None], normalize=True)
        expected = (model.logit_scale.exp() * image @ texts.T).softmax(-1)[0]
    assert np.allclose(found.scores["none"], expected.numpy(), atol=1e-4)
    assert "(Table 7.1)" in module("view").HTML.classification(found)
    assert "-0.000" not in module("view").HTML.classification(found)


def birds(*uploads: bytes) -> tuple[Any, Any]:
    """The example on water without and with the offset, as the uploads see it."""
    classify = module("classify")
    asked = (classify.example("a landbird on water"), classify.CLASSES, classify.SPURIOUS)
    how, others = mitigation("background", method="cali"), classify.batch(engine(), uploads)
    return classify.classify(engine(), *asked, how), classify.classify(engine(), *asked, how, others)


def test_the_offset_of_a_picture_is_that_of_evaluate() -> None:
    classify = module("classify")
    plain, found = birds()
    assert plain.boundary is None
    data = classify._renders()
    model, preprocess, tokenizer = (getattr(engine().clip(), name) for name in ("host", "preprocess", "tokenizer"))
    features = image_encoder(model, preprocess).encode([data.read(i) for i in range(len(data))]).numpy()
    prompts = replace(
        vldebias.load_prompts("backgrounds"),
        classes=tuple(classify.CLASSES.splitlines()),
        class_names=("landbird", "waterbird"),
        spurious=tuple(classify.SPURIOUS.splitlines()),
    )
    task = {"task": "groups", "label": "label", "spurious": "place", "methods": ["none", "cali"], "offset": True}
    measured = vldebias.evaluate(
        model, Embeddings(features, data.ids, data.labels), prompts=prompts, tokenizer=tokenizer, lam=1000.0, **task
    )
    told = next(one for one in measured.provenance if "cali, offset" in one.methods).methods["cali, offset"]
    assert found.boundary.offset == pytest.approx(told["offset"], abs=1e-5)
    assert found.boundary.images == len(data) == 64
    logits = np.log(plain.scores["mitigated"]) - [0, model.logit_scale.exp().item() * found.boundary.offset]
    assert np.allclose(found.scores["mitigated"], np.exp(logits) / np.exp(logits).sum(), atol=1e-6)
    assert np.array_equal(found.scores["none"], plain.scores["none"])
    html = module("view").HTML
    assert "the miniature birds that the examples are among" in html.classification(found)
    assert f"{found.boundary.offset:+.4f} is taken from the cosine" in html.classification(found)
    assert "offset" not in html.classification(plain).lower()


def test_several_uploads_are_a_batch_and_one_alone_needs_a_gallery(own_gallery: Any) -> None:
    classify = module("classify")
    _, found = birds(encoded(), encoded("jpeg", (30, 40)))
    assert (found.boundary.images, found.batch) == (2, "your pictures")
    same = birds(encoded(), encoded())[1]
    assert not same.boundary.told
    assert "do not say where the boundary lies" in module("view").HTML.classification(same)
    assert same.scores["mitigated"].sum() == pytest.approx(1)
    with pytest.raises(InvalidInputError, match="offset: one picture alone does not say where the boundary lies"):
        classify.batch(own_gallery, [encoded()])  # its file is of another model
    with pytest.raises(InvalidInputError, match="pictures: 33; the most is 32"):
        classify.batch(engine(), [b""] * 33)
    with pytest.raises(InvalidInputError, match="offset: it is for the boundary between two classes, here are 3"):
        classify.classify(engine(), None, ["a", "b", "c"], "d", mitigation("background"), classify.Batch("", None))


@pytest.mark.slow
def test_one_upload_has_the_gallery_as_its_batch() -> None:
    found = module("classify").batch(engine(), [encoded()])
    assert found.name == "the gallery, 2,000 portraits of the miniature world"
    assert found.features.shape[0] == 2000


def test_every_example_shows_what_it_says() -> None:
    classify = module("classify")
    assert len({classify.example(name).tobytes() for name in classify.EXAMPLES}) == 4
    with pytest.raises(InvalidInputError, match="example: expected one of a landbird on land"):
        classify.example("/etc/passwd")


def test_uploads_are_read() -> None:
    assert {module("classify").read_upload(encoded(kind)).size for kind in ("png", "jpeg", "webp")} == {(40, 30)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", BAD_UPLOADS)
def test_bad_uploads_have_a_message(kind: str) -> None:
    data, told = BAD_UPLOADS[kind]
    with pytest.raises(InvalidInputError, match=f"picture: .*{told.replace('(', '.')}"):
        module("classify").read_upload(data)


# ---- retrieve -----------------------------------------------------------------------------------------------------


@pytest.fixture
def own_gallery(tmp_path: Path) -> Any:
    """Twelve pictures of two groups by their embeddings, four of which lie in a folder; no model."""
    rng = np.random.default_rng(0)
    gender = vldebias.load_prompts("gender")
    prompts = dict.fromkeys((*gender.spurious, *gender.classes, *(p for group in gender.groups for p in group)))
    texts = {prompt: torch.from_numpy(rng.normal(size=16)) for prompt in [*prompts, "a query"]}
    ids = ["../secret.png", *(f"{i}.png" for i in range(1, 12))]
    labels = {"gender": Labels.of(["m", "f", ""] * 4), "constant": Labels.of(["x"] * 12)}
    about = Embeddings(rng.normal(size=(12, 16)).astype(np.float32), tuple(ids), labels)
    folder = tmp_path / "images"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(encoded())
    for i in (1, 2, 3):
        (folder / f"{i}.png").write_bytes(encoded())
    (folder / "4.png").write_bytes(b"broken")
    path = save_embeddings(tmp_path / "own.npz", about, texts)
    return module("engine").Engine(embeddings=path, images=folder)


def test_retrieval_agrees_with_the_metric(own_gallery: Any) -> None:
    found = module("retrieve").retrieve(own_gallery, "a query", "gender", mitigation(strength=0.0))
    gallery = module("retrieve").gallery_of(own_gallery)
    known = gallery.embeddings.column("gender").known
    scores = (gallery.texts.embed(["a query"]) @ gallery.features.double().T)[0].numpy()[known]
    codes = gallery.embeddings.column("gender").codes[known]
    assert (found.n, found.unknown) == (8, 4)
    for side in ("none", "mitigated"):  # strength 0: the same on both sides
        for k, skew in zip(found.ks, found.max_skew[side], strict=True):
            assert skew == pytest.approx(max_skew(scores, codes, k))
    assert found.query_cosine == pytest.approx(1)
    assert np.allclose(found.shares["none"].sum(1), 1)
    assert found.hits["none"][0].score == pytest.approx(scores.max())


def test_pictures_are_read_below_the_folder_alone(own_gallery: Any) -> None:
    read = module("retrieve").gallery_of(own_gallery).read
    assert read(0) is None  # its id leads out of the folder
    assert read(1) is not None
    assert read(4) is None  # broken
    assert read(7) is None  # not there


def test_a_file_is_asked_for_what_it_has(own_gallery: Any) -> None:
    assert module("retrieve").group_columns(own_gallery) == ("gender",)
    with pytest.raises(InvalidInputError, match="groups: expected one of gender, got 'constant'"):
        module("retrieve").retrieve(own_gallery, "a query", "constant", mitigation())
    with pytest.raises(InvalidInputError, match="1 prompts are not in the file, such as"):
        module("retrieve").retrieve(own_gallery, "another query", "gender", mitigation())


def test_engine_options_that_do_not_go_together_are_refused() -> None:
    make = module("engine").Engine
    with pytest.raises(InvalidInputError, match="--pipeline sd needs a judge for its pictures: add --model"):
        make(pipeline="sd")
    with pytest.raises(InvalidInputError, match="--pretrained names open_clip weights"):
        make(pretrained="openai")
    with pytest.raises(InvalidInputError, match=r"--embeddings nowhere\.npz: there is no such"):
        make(embeddings=Path("nowhere.npz"))


# ---- inspect and export -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["pipeline", "model"])
def test_inspect_agrees_with_the_library(side: str) -> None:
    how = mitigation()
    found = module("inspect").inspect(engine(), side, how)
    given = engine().pipe() if side == "pipeline" else engine().clip().host
    tokenizer = None if side == "pipeline" else engine().clip().tokenizer
    expected = next(iter(vldebias.inspect(given, "gender", tokenizer=tokenizer).values()))
    seen, unseen = found.distances["seen"], found.distances["unseen"]
    assert (seen.mean_before.value, seen.mean_after.value) == pytest.approx(expected.pair_distance, rel=1e-5)
    assert (unseen.mean_before.value, unseen.mean_after.value) == pytest.approx(expected.held_out_distance, rel=1e-5)
    assert found.kept.mean() == pytest.approx(expected.class_cosine, rel=1e-5)
    assert found.signal == pytest.approx(expected.signal_kept, rel=1e-5)


def test_the_spectrum_is_that_of_the_calibration() -> None:
    """Of cali the share that is left of direction i is 1 / (1 + lam sigma_i^2) (Lemma 7.2)."""
    found = module("inspect").inspect(engine(), "pipeline", mitigation(method="cali", lam=50.0))
    assert np.allclose(found.left, 1 / (1 + 50.0 * found.sigma**2), atol=1e-6)


def test_charts_have_a_text_and_no_identity() -> None:
    charts = module("plots").inspection(module("inspect").inspect(engine(), "pipeline", mitigation()))
    assert len(charts) == 4
    for caption, svg in charts.values():
        assert caption
        assert svg.startswith("<svg")
        assert 'role="img" aria-label="' in svg


@pytest.mark.parametrize("side", ["pipeline", "model"])
def test_the_exported_projection_is_the_one_on_the_page(side: str, tmp_path: Path) -> None:
    how = mitigation(method="cali", lam=20.0, strength=0.5)
    data, code = module("export").export(engine(), side, how)
    zipfile.ZipFile(io.BytesIO(data)).extractall(tmp_path)
    for role, projection in engine().fit(side, how).projections.items():
        again = vldebias.CalibratedProjection.from_pretrained(tmp_path / role)
        z = torch.randn(3, again.dim, dtype=torch.float64)
        assert torch.allclose(again(z), projection(z), atol=1e-6)
    assert "method='cali', lam=20.0, strength=0.5" in code
    assert (tmp_path / "attach.py").read_text().strip() == code


@pytest.mark.parametrize(
    "how",
    [
        {"attributes": ["gender"]},
        {"attributes": ["gender", "age"], "method": "orth", "strength": 0.25},
        {"attributes": [], "words": "it's: o'clock\nb: \"quoted\"", "keep_stated": False},
    ],
)
def test_the_exported_line_does_the_same(how: dict[str, Any]) -> None:
    chosen = module("settings").Mitigation.of(**how)
    _, code = module("export").export(engine(), "pipeline", chosen)
    ast.parse(code)
    scope: dict[str, Any] = {}
    exec(code, scope)  # the lines that visitors copy, and nothing else
    try:
        attachment = scope["attachment"]
        fitted = engine().fit("pipeline", chosen)
        z = torch.randn(2, 128, dtype=torch.float64)
        for role, projection in fitted.projections.items():
            assert torch.allclose(attachment.projections[role](z), projection(z), atol=1e-9)
        assert attachment.strength == chosen.strength
        assert attachment.stated(["a photo of a female doctor"])[0] == bool(chosen.stated("a photo of a female doctor"))
    finally:
        scope["attachment"].remove()


def test_what_was_packed_is_unpacked() -> None:
    last = drawn(drawing(number=2), mitigation("gender", "age", "background"))[-1]
    assert [found.name for found in last.measured["none"]] == ["gender", "age", "background"]
    again = module("packing").unpack(module("packing").pack(last))
    assert again.measured == last.measured
    for name in ("drawing", "mitigation", "changes", "subject", "recognised"):
        assert getattr(again, name) == getattr(last, name)
    for side, pictures in last.pictures.items():
        assert all(np.array_equal(pixels(a), pixels(b)) for a, b in zip(pictures, again.pictures[side], strict=True))


def test_fits_are_remembered_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine()
    monkeypatch.setattr(module("engine"), "KEPT", 3)
    assert made.fit("pipeline", mitigation()) is made.fit("pipeline", mitigation())
    kept = len(made._fitted)
    for lam in (1.0, 2.0, 3.0, 4.0):
        made.fit("model", mitigation(method="cali", lam=lam))
    assert len(made._fitted) <= max(kept, 3)
    assert made.fit("pipeline", mitigation(method="cali", lam=500.0)).notes  # what the fit warned of is told
