"""Recall, accuracy and precision beside the skew, against torchmetrics, scikit-learn and plain loops."""

import numpy as np
import pytest
import torch
from made_figures import cell
from sklearn.metrics import accuracy_score
from torchmetrics.retrieval import RetrievalHitRate

from vldebias import make_prompt_set
from vldebias.data import UNKNOWN, Embeddings, Labels
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.retrieval import RetrievalTask, Utility, relevance
from vldebias.evaluation.task import Data
from vldebias.evaluation.texts import Texts, TextTable

pytestmark = [
    pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning"),
    pytest.mark.filterwarnings("ignore::vldebias.errors.SuspectInputWarning"),  # images and texts are noise here
]
JOBS = ("doctor", "nurse", "police officer", "officer")
GENDER = make_prompt_set("g", {"male": ["male"], "female": ["female"]}, JOBS)
QUERIES = GENDER.classes
CAPTIONS = tuple(f"caption {i}" for i in range(12))
CLASSES = {"hair": {"dark": "dark hair", "blond": "blond hair"}, "hat": {"hat": "a hat", "none": "no hat"}}
N, D = 60, 8


def make_texts() -> tuple[Texts, dict[str, torch.Tensor]]:
    prompts = [*GENDER.classes, *GENDER.spurious, *(p for group in GENDER.groups for p in group), *CAPTIONS]
    prompts = list(dict.fromkeys([*prompts, *(p for column in CLASSES.values() for p in column.values())]))
    rows = torch.randn(len(prompts), D, generator=torch.Generator().manual_seed(2)).double()
    return Texts(TextTable(dict(zip(prompts, rows, strict=True)))), dict(zip(prompts, rows, strict=True))


TEXTS, ROWS = make_texts()


def make_gallery(empty: int = 0) -> Embeddings:
    """Images near their captions, which several share; some labels unknown."""
    rng = np.random.default_rng(3)
    own = rng.integers(len(CAPTIONS), size=N)
    features = torch.stack([ROWS[CAPTIONS[i]] for i in own]).numpy() + 1.5 * rng.normal(size=(N, D))
    hat = rng.integers(2, size=N)
    hat[:5] = UNKNOWN
    return Embeddings(
        features=features,
        ids=tuple(map(str, range(N))),
        labels={
            "gender": Labels(rng.integers(2, size=N), ("male", "female")),
            "hair": Labels(rng.integers(2, size=N), ("blond", "dark")),
            "hat": Labels(hat, ("hat", "none")),
            "job": Labels(rng.integers(4, size=N), JOBS),
        },
        captions=("",) * empty + tuple(CAPTIONS[i] for i in own[empty:]),
    )


GALLERY = make_gallery()


def evaluate(utility: Utility, gallery: Embeddings = GALLERY, **options) -> TaskResult:
    fields = {"name": "t", "title": "T", "data": Data(name="given"), "prompts": {"gender": GENDER}, "k": 10}
    fields |= {"queries": list(QUERIES), "methods": ("cali",), "resamples": 200, "resample": "queries"}
    task = RetrievalTask(**{**fields, "utility": utility, **options})
    (part,) = task.measure(gallery, TEXTS)
    return part


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("method", ["none", "cali"])
def test_recall_agrees_with_torchmetrics(method: str, k: int) -> None:
    part = evaluate(Utility(captions=True, recall_k=(1, 4)))
    texts = TEXTS.under(CAPTIONS, TEXTS.fit(GENDER, method))
    scores = GALLERY.normalised().double() @ texts.T  # (images, captions)
    own = torch.tensor([[a == b for b in CAPTIONS] for a in GALLERY.captions])
    image = torch.arange(N)[:, None].expand_as(scores)
    expected = RetrievalHitRate(top_k=k)(scores.flatten(), own.flatten(), indexes=image.flatten())
    to_text = cell(part, f"recall@{k}", method, "image to text").value
    assert to_text == pytest.approx(float(expected))
    code = torch.tensor([CAPTIONS.index(caption) for caption in GALLERY.captions])
    asked = scores.T[code]  # one query for each image: the caption of several counts for each
    expected = RetrievalHitRate(top_k=k)(
        asked.flatten(), own.T[code].flatten(), indexes=image.T.new_tensor(np.repeat(np.arange(N), N))
    )
    to_image = cell(part, f"recall@{k}", method, "text to image").value
    assert to_image == pytest.approx(float(expected))
    both = cell(part, f"recall@{k}", method)
    assert both.value == pytest.approx((to_text + to_image) / 2)
    assert both.n == {"images": N, "captions": len(set(GALLERY.captions))}
    assert "same caption" in part.provenance.settings["recall"]


def test_images_of_one_caption_are_drawn_together() -> None:
    """A caption's images hit or miss alike from text to image: as many units as captions, so wide intervals."""
    found = cell(evaluate(Utility(captions=True, recall_k=(1,)), resamples=4000), "recall@1", "none", "text to image")
    sizes = np.array([GALLERY.captions.count(caption) for caption in sorted(set(GALLERY.captions))])
    texts = TEXTS.embed(sorted(set(GALLERY.captions)))
    best = (texts @ GALLERY.normalised().double().T).argmax(1)
    hits = np.array([GALLERY.captions[i] == c for i, c in zip(best, sorted(set(GALLERY.captions)), strict=True)])
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(sizes), size=(4000, len(sizes)))
    means = (hits * sizes)[drawn].sum(1) / sizes[drawn].sum(1)
    assert found.value == pytest.approx((hits * sizes).sum() / N)
    assert found.interval[1] - found.interval[0] == pytest.approx(np.ptp(np.quantile(means, [0.025, 0.975])), rel=0.15)


def test_images_without_a_caption_are_left_out() -> None:
    part = evaluate(Utility(captions=True, recall_k=(1,)), make_gallery(empty=20))
    assert cell(part, "recall@1", "cali").n["images"] == N - 20


@pytest.mark.parametrize("method", ["none", "cali"])
def test_accuracy_agrees_with_scikit_learn(method: str) -> None:
    part = evaluate(Utility(classes=CLASSES))
    known = GALLERY.column("hat").known
    projection, images = TEXTS.fit(GENDER, method), GALLERY.normalised().double()[torch.tensor(known)]
    each = []
    for column, prompts in CLASSES.items():
        labels = GALLERY.column(column)
        texts = TEXTS.under([prompts[name] for name in labels.names], projection)
        guessed = (images @ texts.T).argmax(1).numpy()
        each.append(accuracy_score(labels.codes[known], guessed))
        assert cell(part, "accuracy", method, column).value == pytest.approx(each[-1])
    mean = cell(part, "accuracy", method)
    assert mean.value == pytest.approx(np.mean(each))
    assert mean.n == {"images": N - 5, "without a label": 5}
    assert mean.interval[0] < mean.value < mean.interval[1]


def test_one_column_is_its_own_mean() -> None:
    part = evaluate(Utility(classes={"hair": CLASSES["hair"]}))
    assert [f.subset for f in part.rows if f.metric == "accuracy"] == ["", ""]
    assert part.provenance.settings["accuracy"] == {"hair": list(CLASSES["hair"].values())}


def test_a_column_of_the_attribute_itself_is_no_utility() -> None:
    own = {"male": "caption 0", "female": "caption 1"}
    with_own = evaluate(Utility(classes={"gender": own, "hair": CLASSES["hair"]}))
    alone = evaluate(Utility(classes={"hair": CLASSES["hair"]}))
    assert with_own.rows == alone.rows
    assert with_own.provenance.settings["accuracy"] == {"hair": list(CLASSES["hair"].values())}


def test_precision_counts_the_images_that_the_query_names() -> None:
    part = evaluate(Utility(relevant="job"))
    scores = TEXTS.embed(QUERIES) @ GALLERY.normalised().double().T
    wanted = GALLERY.column("job").codes
    for i, (query, row) in enumerate(zip(QUERIES, scores, strict=True)):
        expected = (wanted[row.topk(10).indices.numpy()] == i).mean()
        assert cell(part, "precision@10", "none", query).value == pytest.approx(expected)
    assert "job" in part.provenance.settings["precision"]
    assert not [f for f in part.rows if f.metric == "precision@10" and f.method == "random"]


def test_relevance_takes_the_longest_name() -> None:
    labels = Labels(np.array([2, 3, UNKNOWN, 2]), JOBS)
    found = relevance(labels, "job", ["A photo of a police officer.", "An Officer at work."])
    assert found.tolist() == [[True, False, False, True], [False, True, False, False]]


def test_nothing_is_measured_unasked() -> None:
    metrics = {f.metric for f in evaluate(Utility()).rows}
    assert metrics == {"max_skew@10", "min_skew@10", "ndkl@10", "query_cosine"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"classes": {"hair": {"dark": "x"}}}, r"classes\.hair: expected a prompt for each of \['blond', 'dark'\]"),
        ({"classes": {"shoes": {}}}, r"no column 'shoes'"),
        ({"relevant": "hat"}, r"relevant='hat': expected each query to name one of \['hat', 'none'\], got"),
        ({"captions": True}, "the gallery has no captions"),
        (
            {"classes": {"nobody": {"a": "dark hair", "b": "no hat"}}},
            r"no image has a label in every one of",
        ),
        ({"recall_k": ()}, "recall_k"),
        ({"recall_k": (0,)}, "recall_k"),
    ],
)
def test_a_utility_that_the_gallery_does_not_have_is_refused(fields: dict, text: str) -> None:
    nobody = {**GALLERY.labels, "nobody": Labels(np.full(N, UNKNOWN), ("a", "b"))}
    with pytest.raises(ValueError, match=text):
        evaluate(Utility(**fields), Embeddings(GALLERY.features, GALLERY.ids, nobody))
