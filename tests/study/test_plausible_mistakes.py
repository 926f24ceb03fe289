"""Test plausible calls of `evaluate` and fits, most of them mistakes. Each mistake triggers its
message, and correct calls trigger none."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import pytest
import torch

from tests.fewer import few
from vldebias import (
    CalibratedProjection,
    debias,
    evaluate,
    fit_projections,
    load_prompts,
    make_prompt_set,
)
from vldebias.data import Embeddings
from vldebias.errors import SuspectInputWarning, VldebiasError, VldebiasWarning
from vldebias.hosts import TextTable, resolve
from vldebias.miniature import load_clip
from vldebias.study.doubts import check_images, doubt_chance

REFUSED = "refused"
WARNED = "warned"
SILENT = "silent"
N = 200
RNG = np.random.default_rng(0)
BIRDS = load_prompts("waterbirds")
GENDER = few(load_prompts("gender"))
MALE, FEMALE = GENDER.attributes
SEXES = {"mann": ["Mann"], "frau": ["Frau"]}
GERMAN = make_prompt_set("geschlecht", SEXES, ["Arzt", "Koch"], ["Foto: {attribute} {concept}"])
SEX = np.array([(MALE, FEMALE)[i % 2] for i in range(N)])
BIRD = np.array(["landbird", "waterbird"] * (N // 2))
PLACE = np.array(["land", "land", "water", "water"] * (N // 4))
ROW = np.arange(N)[:, None]


@cache
def world() -> SimpleNamespace:
    """Return the miniature and images derived from its text, so that figures are meaningful: people
    and birds."""
    model, _, tokenizer = load_clip()

    @torch.no_grad()
    def embed(texts: list[str]) -> torch.Tensor:
        return model.encode_text(tokenizer(texts))

    def noisy(rows: np.ndarray) -> np.ndarray:
        return (
            rows + 0.3 * np.abs(rows).mean() * np.random.default_rng(1).normal(size=rows.shape)
        ).astype("f4")

    class_of = dict(zip(BIRDS.class_names, BIRDS.classes, strict=True))
    people = embed([f"A photo of a {value} person." for value in SEX]).numpy()
    places = embed([f"This is a {place} background." for place in PLACE])
    birds = embed([class_of[bird] for bird in BIRD]) + 0.3 * places
    images = {"people": noisy(people), "birds": noisy(birds.numpy()), "dim": people.shape[1]}
    edit = fit_projections(model, GENDER, tokenizer=tokenizer, method="difference").only
    # All cases share one host, which embeds each prompt once.
    host = resolve(model, tokenizer=tokenizer)
    return SimpleNamespace(
        model=model, tokenizer=tokenizer, host=host, embed=embed, edit=edit, **images
    )


def ev(**options: Any) -> Any:
    """Call `evaluate` for people with the changes in a case. Functions receive the features."""
    w = world()
    images = options.pop("images", w.people)
    fields = {
        "attribute": GENDER,
        "labels": SEX,
        "tokenizer": w.tokenizer,
        "methods": ["cali"],
        "resamples": 5,
    }
    fields |= options
    return evaluate(
        fields.pop("model", w.host), images(w.people) if callable(images) else images, **fields
    )


def gr(**labels: Any) -> Any:
    """Call `evaluate` for groups of birds with columns, and the names of the label and the spurious
    column."""
    names = {"label": "label", "spurious": "place"} | {
        key: v for key, v in labels.items() if isinstance(v, str)
    }
    columns = {"label": BIRD, "place": PLACE} | {
        key: v for key, v in labels.items() if not isinstance(v, str)
    }
    return ev(images=world().birds, attribute="waterbirds", labels=columns, task="groups", **names)


EQUALISED = "difference+equalise"


def fit(**options: Any) -> Any:
    w = world()
    edits = fit_projections(
        w.model, options.pop("prompts", GENDER), **{"tokenizer": w.tokenizer, **options}
    )
    return edits.only if edits else None


def attach(model: Any, edit: Any, then: Callable[[Any], object] = str, **options: Any) -> None:
    with debias(model, edit, tokenizer=world().tokenizer, **options) as attachment:
        then(attachment)


def attached(then: Callable[[Any], object]) -> None:
    attach(world().model, world().edit, then)


def turned(features: np.ndarray) -> np.ndarray:
    return (features @ np.linalg.qr(randn(features.shape[1], features.shape[1]).numpy())[0]).astype(
        "f4"
    )


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def swapped() -> None:
    table = dict(zip(GENDER.classes, world().people, strict=False))
    ev(model=table, images=world().people[:80], labels=SEX[:80])


def gallery_as_reference() -> None:
    ev(methods=["leace"], reference=Embeddings.from_arrays(world().people, {"gender": SEX}))


fit_pairs = CalibratedProjection().fit
CASES: list[tuple[Any, ...]] = [  # a name and a call; if there is a message, its kind and words
    # labels
    ("control", lambda: ev()),
    ("labels -1 and 1, as in CelebA", lambda: ev(labels=np.where(SEX == MALE, -1, 1))),
    ("labels 0 and 1 as floats", lambda: ev(labels=np.where(SEX == MALE, 0.0, 1.0))),
    ("labels are probabilities", lambda: ev(labels=RNG.random(N)), REFUSED, "convert scores to"),
    ("labels of another length", lambda: ev(labels=SEX[:-1]), REFUSED, "expected 200 rows in"),
    ("labels of shape (n, 1)", lambda: ev(labels=SEX[:, None]), REFUSED, "strings or integers"),
    ("shuffled labels", lambda: ev(labels=RNG.permutation(SEX)), WARNED, "no more than chance"),
    ("another name of the column", lambda: ev(labels={"race": SEX}, attribute={"race": "gender"})),
    # features
    ("texts and images swapped", swapped, REFUSED, "prompts are missing"),
    ("another model's, same width", lambda: ev(images=turned), WARNED, "unaligned"),
    ("times 100", lambda: ev(images=lambda f: f * 100)),
    (
        "of mixed lengths",
        lambda: ev(images=lambda f: f * np.where(np.arange(N)[:, None] % 2, 1, 50)),
    ),
    (
        "a NaN row",
        lambda: ev(images=lambda f: np.where(ROW == 3, np.nan, f)),
        REFUSED,
        "rows are zero or not finite",
    ),
    ("int8", lambda: ev(images=lambda f: np.clip(f * 40, -127, 127).astype("i1"))),
    ("complex", lambda: ev(images=lambda f: f.astype("c8")), REFUSED, "dtype complex64"),
    ("logits of classes", lambda: ev(images=lambda f: f[:, :2]), REFUSED, "of width 2"),
    ("no image", lambda: ev(images=lambda f: f[:0], labels=SEX[:0]), REFUSED, "with n > 0"),
    # numbers
    ("lam negative", lambda: ev(lam=-1), REFUSED, "lam: "),
    ("seed negative", lambda: ev(seed=-1), REFUSED, "seed: "),
    ("lam a text", lambda: ev(lam="100"), REFUSED, "lam: expected a number; got '100'"),
    ("lam NaN", lambda: ev(lam=float("nan")), REFUSED, "lam: "),
    ("lam 1e30", lambda: ev(attribute="gender", lam=1e30), WARNED, "between the classes"),
    ("strength -0.5", lambda: ev(strength=-0.5), REFUSED, "strength: "),
    ("strength NaN", lambda: ev(strength=float("nan")), REFUSED, "strength: "),
    (
        "strength of numpy",
        lambda: attach(world().model, GENDER, method="cali", strength=np.float32(0.5)),
    ),
    # models: a text tower accepts any text and does not reveal its training languages
    ("prompts in German", lambda: fit(prompts=GERMAN), SILENT, ""),
    ("prompts of another attribute", lambda: ev(attribute="race"), WARNED, "between the classes"),
    (
        "CLIP's tokenizer",
        lambda: fit(tokenizer=open_clip.get_tokenizer("ViT-B-32"), method="difference"),
        REFUSED,
        "ids up to 49407",
    ),
    (
        "a raw edit",
        lambda: attach(world().model, fit_pairs(randn(9, 2, 256))),
        WARNED,
        "which model it was fitted",
    ),
    # The formula is valid in any unit, with lam in 1 / length squared. When attached, it warns like
    # any raw edit.
    ("fit of pairs that are not normalised", lambda: fit_pairs(randn(9, 2, 128) * 100), SILENT, ""),
    ("evaluate under an attachment", lambda: attached(lambda _: ev()), WARNED, "attachment"),
    ("evaluate after an attachment", lambda: (attached(str), ev())),
    (
        "reference of texts",
        lambda: fit(reference=world().embed(list(GENDER.classes)), method=EQUALISED),
        WARNED,
        "of the reference images would give different directions",
    ),
    (
        "reference of noise",
        lambda: fit(reference=randn(300, world().dim), method=EQUALISED),
        WARNED,
        "look unaligned",
    ),
    ("reference is the gallery", gallery_as_reference, REFUSED, "features[::2]"),
    # groups
    ("groups control", lambda: gr()),
    (
        "label and spurious swapped",
        lambda: gr(label="place", spurious="label"),
        REFUSED,
        "expected each label to name one of the",
    ),
    (
        "numbers in another order",
        lambda: gr(label=np.where(BIRD == "landbird", 1, 0)),
        WARNED,
        "as 'waterbird'",
    ),
    ("an empty cell", lambda: gr(place=np.array(["land", "water"] * (N // 2)))),
    (
        "one image in a group",
        lambda: gr(place=np.array(["water"] + ["land"] * (N - 1))),
        WARNED,
        "'water' (1)",
    ),
    (
        "label -1 and 1",
        lambda: gr(label=np.where(BIRD == "landbird", -1, 1)),
        REFUSED,
        "got ['-1', '1']; rename",
    ),
]


@pytest.mark.parametrize(
    ("call", "answer"),
    [(call, answer) for _, call, *answer in CASES],
    ids=[warning[0] for warning in CASES],
)
def test_a_plausible_mistake_triggers_its_message(
    call: Callable[[], Any], answer: list[str], recwarn: pytest.WarningsRecorder
) -> None:
    want, says = answer or (SILENT, "")
    try:
        call()
    except VldebiasError as error:
        how = REFUSED
        words = str(error)
    else:
        warned = [row for row in recwarn if issubclass(row.category, VldebiasWarning)]
        words = " | ".join(str(warning.message) for warning in warned)
        how = WARNED if words else SILENT
    assert how == want, words
    assert says in words


def test_at_most_two_mistakes_pass_silently() -> None:
    assert sum(SILENT in answer for _, _, *answer in CASES) <= 2


def test_outputs_of_a_relu_and_repeated_rows_are_not_accepted_as_embeddings() -> None:
    """After a ReLU, half of the numbers are 0 and none are negative. A tenth of the rows counts as
    few."""
    rows = RNG.normal(size=(N, 16))
    few_, enough = (rows[np.arange(N) % different] for different in (20, 21))
    for features, sentence in (
        (np.maximum(rows, 0), "no negative numbers"),
        (few_, "20 different rows"),
        (enough, ""),
    ):
        with pytest.warns(SuspectInputWarning, match=sentence) if sentence else nullcontext():
            check_images(Embeddings.from_arrays(features), TextTable({"a": np.ones(16)}), "a")


def test_labels_agree_by_chance_within_two_standard_errors_and_are_swapped_beyond_four() -> None:
    """With 50 images of each of two values, the standard error is 0.05. Fewer than ten images of a
    value are not enough."""
    chance = "more than chance; check"
    second_note = "72% with 'a' as 'b', 'b' as 'a'"
    answers = (
        (50, 31, ""),
        (50, 29, chance),
        (50, 16, chance),
        (50, 14, second_note),
        (10, 5, chance),
        (9, 4, ""),
    )
    for n, right, sentence in answers:
        codes = np.repeat([0, 1], n)
        nearest = np.where(np.arange(2 * n) % n < right, codes, 1 - codes)
        with pytest.warns(SuspectInputWarning, match=sentence) if sentence else nullcontext():
            doubt_chance(nearest, codes, ("a", "b"), "texts")
