"""Test where the default moves a classifier's boundary, and when it leaves it."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from tests.methods.made import normal
from vldebias.errors import (
    AutoDeclinedWarning,
    InvalidInputError,
    ReferenceWarning,
    SuspectInputWarning,
)
from vldebias.hosts import TextTable
from vldebias.methods import Problem, Reference
from vldebias.methods.boundary import (
    APART,
    FEWEST_LABELLED,
    FEWEST_UNLABELLED,
    cosines,
    two_parts,
)
from vldebias.methods.few_labels import class_means, left_out, offsets
from vldebias.methods.labelled_rows import labelled
from vldebias.miniature import load_clip
from vldebias.projection.edit import Edit
from vldebias.prompts import PromptSet

DIM = 48
PERSON, GENDER = torch.eye(DIM, dtype=torch.float64)[:2]
CLASS = torch.eye(DIM, dtype=torch.float64)[4:]
NAMES = ("oak", "elm", "ash", "fir", "yew", "bay")


def trees(classes: int = 2, bias: float = 0.2) -> tuple[TextTable, PromptSet]:
    """Return a classifier whose text for the first class is too close to all images."""
    names = NAMES[:classes]
    texts = {}
    for number, name in enumerate(names):
        texts[name] = (1 + bias * (number == 0)) * PERSON + CLASS[number]
        texts[f"{name}, by a man"] = texts[name] + 0.3 * GENDER
        texts[f"{name}, by a woman"] = texts[name] - 0.3 * GENDER
    prompt_set = PromptSet(
        name="trees",
        attributes={"male": ("man",), "female": ("woman",)},
        variants=tuple((f"{name}, by a man", f"{name}, by a woman") for name in names),
        classes=names,
        class_names=names,
        stated_words=("man", "woman"),
    )
    return TextTable({text: row.numpy() for text, row in texts.items()}), prompt_set


def pictures(
    n: int, seed: int, *, classes: int = 2, noise: float = 0.02, rare: float = 0.5
) -> tuple[Tensor, np.ndarray]:
    """Return images (n, d) and their classes; for two classes, the second has the share `rare`."""
    generator = np.random.default_rng(seed)
    shares = [1 - rare, rare] if classes == 2 else None
    codes = generator.choice(classes, n, p=shares)
    sign = torch.where(torch.arange(n) % 2 == 0, 1.0, -1.0)[:, None]
    rows = 2 * PERSON + 0.1 * CLASS[torch.from_numpy(codes)] + 0.1 * sign * GENDER
    rows = rows + noise * normal(n, DIM, seed=seed)
    return normalize(rows, dim=1), codes


def predicted(texts: TextTable, prompt_set: PromptSet, edit: object, rows: Tensor) -> np.ndarray:
    classes = texts.embed(prompt_set.classes)
    return cosines(rows, classes if edit is None else edit(classes)).argmax(1)


def fitted(reference: object, classes: int = 2, bias: float = 0.2) -> Edit:
    texts, prompt_set = trees(classes, bias)
    return vldebias.fit_projections(texts, prompt_set, reference=reference).only


def labels_of(codes: np.ndarray, number: int) -> list[str]:
    """Return the class names of the first images, and "" for all others."""
    return [NAMES[code] for code in codes[:number]] + [""] * (len(codes) - number)


def test_unlabelled_images_in_two_parts_move_the_boundary_between_them() -> None:
    texts, prompt_set = trees()
    edit = fitted(pictures(400, 1)[0])
    new, codes = pictures(1000, 2)
    by_text = vldebias.fit_projections(texts, prompt_set).only
    assert (predicted(texts, prompt_set, by_text, new) == 0).mean() > 0.95
    assert (predicted(texts, prompt_set, edit, new) == codes).mean() > 0.98
    assert edit.method == "difference+boundary"
    assert edit.provenance.uses_images
    reason = edit.provenance.choice.reason
    assert reason.startswith("Moved the boundary: 4")
    assert "% of the images change class. The images fall into two parts, 7." in reason


STAYS = {
    "few": (pictures(FEWEST_UNLABELLED - 1, 1)[0], 0.2, "100 different images are needed, got 99"),
    "copies": (pictures(50, 1)[0].repeat(4, 1), 0.2, "100 different images are needed, got 50"),
    "one class": (pictures(400, 1, rare=0.0)[0], 0.2, "do not clearly fall into the two classes"),
    "noisy": (pictures(400, 1, noise=0.06)[0], 0.2, "standard deviations apart; more than 3.5"),
    "rare": (pictures(400, 1, rare=0.02)[0], 0.2, "one class has only 1."),
    "right": (pictures(400, 1)[0], 0.0, "it already lies between the two classes"),
    "foreign": (normalize(normal(400, DIM), dim=1), 0.2, "are both from the same model?"),
}


@pytest.mark.parametrize("kind", STAYS)
def test_the_boundary_stays_if_images_do_not_show_where_it_lies(kind: str) -> None:
    rows, bias, reason = STAYS[kind]
    texts, prompt_set = trees(bias=bias)
    with pytest.warns(ReferenceWarning, match="'difference', fitted to text alone"):
        edit = vldebias.fit_projections(texts, prompt_set, reference=rows).only
    by_text = vldebias.fit_projections(texts, prompt_set).only
    assert torch.equal(edit.matrix(), by_text.matrix())
    assert reason in edit.provenance.choice.reason


def test_more_than_two_classes_or_several_sets_need_labels_or_stay() -> None:
    rows, _ = pictures(400, 1, classes=4)
    with pytest.warns(ReferenceWarning, match="label 20 images or more with their class"):
        assert fitted(rows, classes=4).method == "difference"
    texts, prompt_set = trees()
    other = replace(prompt_set, name="other", variants=prompt_set.variants[:1])
    with pytest.warns(ReferenceWarning, match="a single prompt set"):
        vldebias.fit_projections(texts, [prompt_set, other], reference=pictures(400, 1)[0])


@given(
    st.floats(-3, 3), st.floats(0.01, 100), st.floats(0.1, 0.9), st.floats(4, 8), st.integers(0, 9)
)
@settings(max_examples=20, deadline=None)
def test_parts_follow_the_scores(
    shift: float, scale: float, share: float, apart: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=400) + apart * (generator.random(400) < share)
    parts = two_parts(scores)
    assert parts.separation == pytest.approx(apart, rel=0.2)
    assert parts.smaller == pytest.approx(min(share, 1 - share), abs=0.08)
    moved = two_parts(shift + scale * scores)
    assert moved.boundary == pytest.approx(shift + scale * parts.boundary, abs=1e-3 * scale)
    assert moved.separation == pytest.approx(parts.separation, rel=1e-3)
    assert moved.gain == pytest.approx(parts.gain, rel=1e-3)


@pytest.mark.parametrize("classes", [3, 6])  # a set with five classes or more is for search
def test_labelled_images_move_the_boundaries_of_any_number_of_classes(classes: int) -> None:
    texts, prompt_set = trees(classes)
    rows, codes = pictures(60, 1, classes=classes)
    reference = Reference(rows, labels={"class": labels_of(codes, 40)})
    edit = vldebias.fit_projections(texts, prompt_set, reference=reference).only
    new, new_codes = pictures(1000, 2, classes=classes)
    assert (predicted(texts, prompt_set, None, new) == new_codes).mean() < 0.6
    assert (predicted(texts, prompt_set, edit, new) == new_codes).mean() > 0.95
    assert "With each of 40 labelled images left out in turn" in edit.provenance.choice.reason


def test_fewer_labelled_images_than_were_measured_are_reported() -> None:
    measured = Path(__file__).parents[2] / "eval" / "results" / "simple_rivals.json"
    assert f'"classification, {FEWEST_LABELLED} labelled images: ' in measured.read_text()
    rows, codes = pictures(60, 1)
    with pytest.warns(SuspectInputWarning, match="only 8 labelled images .* label 12 more images"):
        edit = fitted(Reference(rows, labels={"class": labels_of(codes, 8)}))
    assert "Moved the boundary" in edit.provenance.choice.reason
    with warnings.catch_warnings():  # follow the advice
        warnings.simplefilter("error")
        edit = fitted(Reference(rows, labels={"class": labels_of(codes, 8 + 12)}))
    assert "Moved the boundary" in edit.provenance.choice.reason


def test_offsets_put_each_pair_of_classes_halfway_between_their_means() -> None:
    generator = np.random.default_rng(0)
    labels = np.array([*range(3), *generator.integers(3, size=30)])
    scores = generator.normal(size=(33, 3))
    moves = offsets(class_means(scores, labels))
    # With two classes, the means lie equally far on both sides of the boundary.
    two = labels < 2
    pair = offsets(class_means(scores[two][:, :2], labels[two]))
    margins = (scores[two][:, 1] - pair[1]) - (scores[two][:, 0] - pair[0])
    first, second = (margins[labels[two] == code].mean() for code in (0, 1))
    assert first == pytest.approx(-second)
    # `left_out` equals fitting to all other images.
    for row in range(len(labels)):
        others = np.arange(len(labels)) != row
        if len(np.unique(labels[others])) == 3:
            moves = offsets(class_means(scores[others], labels[others]))
        else:
            moves = np.zeros(3)
        assert left_out(scores, labels)[row] == (scores[row] - moves).argmax()


def test_a_class_without_a_labelled_image_moves_nothing_and_is_named() -> None:
    rows, codes = pictures(40, 1)
    labels = ["oak" if code == 0 else "" for code in codes]
    with pytest.warns(ReferenceWarning, match="no image is labelled 'elm'"):
        assert fitted(Reference(rows, labels={"class": labels})).method == "difference"


def test_labels_that_do_not_help_move_nothing() -> None:
    rows, codes = pictures(40, 1)
    reference = Reference(rows, labels={"class": labels_of(codes, 40)})
    with pytest.warns(ReferenceWarning, match="balanced accuracy changes from 1.00 to 1.00"):
        assert fitted(reference, bias=0.0).method == "difference"


def test_a_class_that_text_does_not_find_is_named() -> None:
    rows, codes = pictures(400, 1)
    # The labels contradict the images, so that no boundary separates them.
    labels = labels_of(1 - codes, 20)
    with pytest.warns(ReferenceWarning, match=r"does not find 'elm' \(0 of \d+ images\)"):
        assert fitted(Reference(rows, labels={"class": labels})).method == "difference"


def test_labels_of_the_attribute_move_no_boundary_and_class_labels_name_no_value() -> None:
    texts, prompt_set = trees()
    rows, codes = pictures(400, 1)
    values = np.array(["male", "female"])[codes]
    edit = fitted(Reference(rows, labels={"gender": values}))
    assert torch.equal(edit.matrix(), fitted(rows).matrix())
    named = replace(prompt_set, class_names=("old man", "old woman"))
    classes = np.array(named.class_names)[codes]
    reference = Reference(rows, labels={"class": classes, "gender": values[::-1].copy()})
    found = labelled(Problem(texts, named, reference=reference), "text").codes[:, 0]
    assert (found.numpy() == codes[::-1]).all()


def test_a_label_that_names_no_class_is_refused() -> None:
    rows, codes = pictures(40, 1)
    labels = ["Oak" if code == 0 else "elms" for code in codes]
    with pytest.raises(
        InvalidInputError, match=r"'class' of trees: got 'elms'.*did you mean 'elm'\?"
    ):
        fitted(Reference(rows, labels={"class": labels}))


def test_images_of_another_width_are_refused() -> None:
    rows = normalize(normal(200, DIM + 1), dim=1)
    with pytest.raises(InvalidInputError, match="embed both with the same model"):
        fitted(rows)


def test_the_boundary_moves_although_text_alone_declines() -> None:
    texts, prompt_set = trees()
    rows, _ = pictures(400, 1)
    declined = vldebias.methods.presets._declined(Problem(texts, prompt_set), "text", "No.")
    patch = pytest.MonkeyPatch()
    patch.setattr(vldebias.methods.presets, "_fit_tested_on_texts", lambda *_: declined)
    edits = vldebias.fit_projections(texts, prompt_set, reference=rows)
    assert edits.only.method == "boundary"
    with pytest.warns(AutoDeclinedWarning, match="stays where it is.*No"):
        assert not vldebias.fit_projections(texts, prompt_set, reference=rows[:50])
    patch.undo()


def birds() -> tuple[object, object, Tensor]:
    """Return a miniature CLIP and images in two parts, both on the side of the second class."""
    model, _, tokenizer = load_clip()
    host = vldebias.hosts.resolve(model, tokenizer=tokenizer)
    first, second = host.embed(vldebias.load_prompts("waterbirds").classes)
    away = normalize(second - first, dim=0)
    common = normalize(normal(256, seed=3), dim=0)
    common = normalize(common - (common @ away) * away, dim=0)
    side = torch.where(torch.arange(300) % 2 == 0, 0.1, 0.3)[:, None]
    rows = common + side * away + 0.01 * normal(300, 256, seed=4)
    return model, tokenizer, normalize(rows, dim=1)


def test_an_attached_saved_and_merged_boundary_are_equal(tmp_path: Path) -> None:
    model, tokenizer, rows = birds()
    prompt_set = vldebias.load_prompts("waterbirds")

    def sides() -> np.ndarray:
        with torch.no_grad():
            texts = model.encode_text(tokenizer(list(prompt_set.classes)))
        return cosines(rows, texts.double()).argmax(1)

    assert (sides() == 1).all()
    attachment = vldebias.debias(model, prompt_set, reference=rows, tokenizer=tokenizer)
    moved = sides()
    assert (moved == (np.arange(300) % 2)).mean() > 0.97
    attachment.strength = 0.0
    assert (sides() == 1).all()
    attachment.strength = 1.0
    folder = attachment.projections["text"].save_pretrained(tmp_path)
    attachment.remove()
    loaded = vldebias.debias(model, vldebias.load_edit(folder), tokenizer=tokenizer)
    assert (sides() == moved).all()
    loaded.merge()
    assert (sides() == moved).all()


def test_class_prompts_that_state_a_value_need_keep_stated_false() -> None:
    model, tokenizer, rows = birds()
    prompt_set = vldebias.load_prompts("waterbirds")
    stating = replace(prompt_set, stated_words=("waterbird",))
    with pytest.warns(ReferenceWarning, match="pass keep_stated=False"):
        vldebias.debias(model, stating, reference=rows, tokenizer=tokenizer).remove()
    with pytest.warns(ReferenceWarning, match="only images are edited"):
        vldebias.debias(
            model, prompt_set, reference=rows, tokenizer=tokenizer, side="image"
        ).remove()


def test_the_limit_of_the_separation_is_the_documented_one() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "the-default.md"
    assert f"{APART:g} standard deviations apart" in page.read_text(encoding="utf-8")
