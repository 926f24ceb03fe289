"""The field's methods: what their papers prove, and what their authors' code gives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

import vldebias
from tests.refusals import refused
from vldebias import make_prompt_set
from vldebias.errors import InvalidInputError
from vldebias.evaluation.texts import Texts
from vldebias.methods import METHODS, PRISM, SFID, BendVLM, ClipClip, DeAR, Problem, Reference, Suffix
from vldebias.methods.rivals.bend import Bend, _without
from vldebias.methods.rivals.edits import Affine, Residual, TwoTowers
from vldebias.methods.rivals.erasure import inlp, leace
from vldebias.methods.rivals.insights import roboshot
from vldebias.methods.rivals.wording import FixedRewrite, rewrite_prompt

PUBLISHED = json.loads((Path(__file__).parent / "published" / "published.json").read_text())
JOBS = ("doctor", "nurse", "pilot", "clerk", "cook", "judge")
GENDER = make_prompt_set("g", {"male": ["male"], "female": ["female"]}, JOBS)
DIM, TOLD = 16, (2, 5)  # the attribute lies in two dimensions


def world(n: int = 600, seed: int = 0) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Texts, unit images (n, d) and their gender (n,), all with the attribute in the dimensions TOLD alone."""
    generator = torch.Generator().manual_seed(seed)
    prompts = dict.fromkeys((*GENDER.classes, *GENDER.spurious, *(text for group in GENDER.groups for text in group)))
    texts = {}
    for text in prompts:
        words = text.lower().replace(".", "").split()
        row = 0.1 * torch.randn(DIM, generator=generator, dtype=torch.float64)
        row[8] += 1.0
        for k, job in enumerate(JOBS):
            row[9 + k] += job in words
        sign = 1.0 if "female" in words else -1.0 if "male" in words else 0.3 * (1 if "nurse" in words else -1)
        row[list(TOLD)] += sign
        texts[text] = row
    gender = torch.randint(2, (n,), generator=generator)
    images = torch.randn(n, DIM, generator=generator, dtype=torch.float64)
    images[:, 8] += 2.0
    images[:, list(TOLD)] += (2.0 * gender - 1)[:, None] * torch.tensor([2.0, 1.5])
    return texts, normalize(images, dim=1), gender


def problem(labels: bool = True, **more: Any) -> tuple[Problem, Tensor, Tensor]:
    texts, images, gender = world()
    names = {"gender": [("male", "female")[code] for code in gender.tolist()]}
    reference = Reference(images, labels=names if labels else {})
    return Problem.of(texts, GENDER, reference=reference, **more), images, gender


def probe(rows: Tensor, codes: Tensor) -> float:
    """Accuracy of the affine least-squares probe on the rows that it is fitted to."""
    inputs = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)
    weights = torch.linalg.pinv(inputs) @ torch.nn.functional.one_hot(codes).double()
    return float(((inputs @ weights).argmax(1) == codes).double().mean())


# --- LEACE


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, None])
@pytest.mark.parametrize("values", [2, 4])
def test_after_leace_no_affine_probe_beats_a_constant(shrinkage: float | None, values: int) -> None:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(values, (400,), generator=generator)
    rows = torch.randn(400, 12, generator=generator, dtype=torch.float64)
    rows[:, :values] += 2 * torch.nn.functional.one_hot(codes, values)
    concept = torch.nn.functional.one_hot(codes, values).double()
    eraser = leace(rows, concept, shrinkage)
    erased = rows - (rows @ eraser.right) @ eraser.left.T + eraser.shift
    centred = concept - concept.mean(0)
    assert (rows.T @ centred / 400).abs().max() > 0.1
    assert (erased.T @ centred / 400).abs().max() < 1e-10
    torch.testing.assert_close(erased.mean(0), rows.mean(0))
    assert probe(rows, codes) > 0.8
    assert probe(erased, codes) == int(codes.bincount().max()) / 400
    assert eraser.left.shape[1] == values - 1


def test_no_other_erasing_map_changes_less() -> None:
    """Against the orthogonal projection of the same directions, and against other oblique ones."""
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(2, (2000,), generator=generator)
    mixing = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    rows = (torch.randn(2000, 6, generator=generator, dtype=torch.float64) + codes[:, None]) @ mixing
    concept = codes[:, None].double()
    eraser = leace(rows, concept, 0.0)
    centred = rows - rows.mean(0)
    least = ((centred @ eraser.right) @ eraser.left.T).square().sum(1).mean()
    direction = normalize(centred.T @ (concept - concept.mean()), dim=0)  # what the map has to remove
    for k in range(20):
        other = direction if k == 0 else torch.randn(6, 1, generator=generator, dtype=torch.float64)
        change = (centred @ other) @ (direction / (other.T @ direction)).T  # x - d (o x) / (o d): erases d too
        assert change.square().sum(1).mean() >= least - 1e-9


def test_leace_is_that_of_its_authors() -> None:
    oracle = pytest.importorskip("concept_erasure", reason="concept-erasure is not installed")
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(3, (500,), generator=generator)
    rows = torch.randn(500, 10, generator=generator, dtype=torch.float64) + 0.5 * codes[:, None]
    rows[:, 0] += codes == 2
    concept = torch.nn.functional.one_hot(codes, 3).double()
    ours, settings = leace(rows, concept, 0.0), {"shrinkage": False, "constrain_cov_trace": False, "svd_tol": 1e-6}
    theirs = oracle.LeaceEraser.fit(rows, concept, **settings)
    torch.testing.assert_close(ours.matrix(), theirs.P)
    torch.testing.assert_close(rows - (rows @ ours.right) @ ours.left.T + ours.shift, theirs(rows))


# --- labels


def test_labels_are_those_given_and_else_the_zero_shot_ones() -> None:
    (given, images, _), (blind, _, _) = problem(), problem(labels=False)
    one, other = given.fit("leace", "joint"), blind.fit("leace", "joint")
    assert (one.provenance.labels, other.provenance.labels) == ("given", "zero-shot")
    assert not torch.allclose(one.image(images), other.image(images))
    again = given.fit(vldebias.methods.ZeroShotLabels("leace"), "joint")
    assert (again.method, again.provenance.labels) == ("leace, zero-shot labels", "zero-shot")
    torch.testing.assert_close(again.image(images), other.image(images))


def test_a_column_is_found_by_its_values_whatever_it_is_called() -> None:
    given, images, gender = problem()
    assert given.reference is not None
    words = [("Male", "Female")[code] for code in gender.tolist()]
    jobs = ["cook"] * len(words)
    renamed = replace(given, reference=replace(given.reference, labels={"job": jobs, "sex": words}))
    torch.testing.assert_close(renamed.fit("leace", "joint").image(images), given.fit("leace", "joint").image(images))


@refused(
    ({"job": ["cook", "judge"] * 300}, r"none of its columns \['job'\] has the values \['male', 'female'\] of g"),
    ({"gender": ["male", "female"]}, "expected a label for each of 600 images, got 2"),
    ({"gender": ["male", ""] * 300}, r"none of its columns \['gender'\]"),
)
def test_labels_that_do_not_fit_are_refused(labels: dict[str, list[str]]) -> None:
    given, _, _ = problem()
    assert given.reference is not None
    replace(given, reference=replace(given.reference, labels=labels)).fit("leace", "joint")


# --- INLP, CLIP-clip, SFID


def test_after_inlp_the_probe_is_at_chance_and_the_rest_stays() -> None:
    given, images, gender = problem()
    edit = given.fit("inlp", "joint")
    assert isinstance(edit, TwoTowers)
    assert edit.images is not None
    matrix = edit.images.matrix()
    torch.testing.assert_close(matrix @ matrix, matrix)
    torch.testing.assert_close(matrix, matrix.T)
    assert probe(images, gender) > 0.9
    assert probe(edit.image(images), gender) < 0.6
    assert matrix.trace() >= DIM - 8 - 1e-9


def test_inlp_removes_a_direction_a_round() -> None:
    _, images, gender = problem()
    one, two = (inlp([(images, gender)], rounds) for rounds in (1, 2))
    torch.testing.assert_close(one, two[:1])
    assert (len(one), len(two)) == (1, 2)
    assert abs(float(two[0] @ two[1])) < 1e-3
    with pytest.raises(InvalidInputError, match="no probe reads the attribute"):
        inlp([(torch.zeros(10, 3, dtype=torch.float64).add(1.0), torch.arange(10) % 2)], 3)


@pytest.mark.parametrize("method", [ClipClip(2 / DIM), SFID(2)])
def test_the_dimensions_that_tell_are_chosen_and_no_others_change(method: ClipClip | SFID) -> None:
    given, images, _ = problem()
    edit = given.fit(method, "joint")
    moved = edit.image(images)
    others = [k for k in range(DIM) if k not in TOLD]
    torch.testing.assert_close(moved[:, others], images[:, others])
    assert (moved[:, list(TOLD)].std(0) < 1e-12).all()
    texts = given.embed(GENDER.classes, "joint")
    assert (edit(texts)[:, list(TOLD)].std(0) < 1e-12).all()
    assert (moved[:, list(TOLD)].abs().max() == 0) == isinstance(method, ClipClip)
    assert edit.side == "both"


# --- by what texts say


def test_roboshot_is_its_algorithm_vector_by_vector() -> None:
    generator = torch.Generator().manual_seed(4)
    harmful, helpful = (torch.randn(k, 10, generator=generator, dtype=torch.float64) for k in (3, 2))
    images = normalize(torch.randn(5, 10, generator=generator, dtype=torch.float64), dim=1)
    slow = images
    for rows, sign in ((harmful, -1), (helpful, 1)):
        for vector in torch.linalg.qr(rows.T)[0].T:
            slow = slow + sign * (slow @ vector)[:, None] * vector
            slow = normalize(slow, dim=1)
    matrix = roboshot(harmful, helpful)
    torch.testing.assert_close(normalize(images @ matrix.T, dim=1), slow)
    assert (roboshot(harmful) @ harmful.T).abs().max() < 1e-12
    only = roboshot(torch.zeros(0, 10, dtype=torch.float64), helpful)
    torch.testing.assert_close(only @ helpful.T, 2 * helpful.T)


def test_p0_and_the_loss_are_those_of_prisms_authors() -> None:
    spurious = torch.tensor(PUBLISHED["prism"]["spurious"], dtype=torch.float64)
    texts = {"a male": spurious[0], "a female": spurious[1], "a": torch.ones(4), "b": torch.ones(4)}
    prompts = vldebias.PromptSet("p", groups=(("a", "b"),), spurious=("a male", "a female"))
    edit = Problem.of(texts, prompts).fit("orth", "joint")
    theirs = torch.tensor(PUBLISHED["prism"]["projection"], dtype=torch.float64)
    torch.testing.assert_close(edit(torch.eye(4, dtype=torch.float64)), theirs, atol=1e-6, rtol=0)
    rows = torch.tensor(PUBLISHED["prism"]["rows"], dtype=torch.float64)
    from vldebias.methods.rivals.insights import contrast

    assert float(contrast(rows[2], rows[3], rows[0], rows[1])) == pytest.approx(PUBLISHED["prism"]["loss"])


def test_prism_brings_values_together_and_keeps_classes_apart() -> None:
    given, _, _ = problem()
    edit = given.fit(PRISM(), "joint")
    pairs = [given.embed(texts, "joint") for texts in zip(*GENDER.groups, strict=True)]
    assert cosine_similarity(*pairs).mean() < 0.5
    assert cosine_similarity(*map(edit, pairs)).mean() > 0.9
    classes = normalize(edit(given.embed(GENDER.classes, "joint")), dim=1)
    apart = (classes @ classes.T)[~torch.eye(len(classes), dtype=torch.bool)]
    assert apart.mean() < 0.6
    assert torch.equal(edit(pairs[0]), edit.image(pairs[0]))


# --- BendVLM, DeAR


def test_the_second_step_of_bend_is_that_of_its_authors() -> None:
    data = PUBLISHED["bend_vlm"]
    names = sorted(set(data["values"]))
    texts, images, query = (torch.tensor(data[key], dtype=torch.float64) for key in ("texts", "images", "query"))
    codes = torch.tensor([names.index(value) for value in data["values"]])
    edit = Bend(texts, texts[:1], torch.zeros(1, 1, 8, dtype=torch.float64), images, codes, data["near"])
    projected = torch.stack([_without(row, texts) for row in torch.eye(8, dtype=torch.float64)])
    torch.testing.assert_close(projected, torch.tensor(data["projection"], dtype=torch.float64))
    torch.testing.assert_close(edit(query), torch.tensor(data["bent"], dtype=torch.float64), atol=2e-4, rtol=0)


def test_a_bent_query_is_the_closest_that_is_as_near_to_all_values() -> None:
    given, images, gender = problem()
    edit = given.fit(BendVLM(near=20), "joint")
    assert isinstance(edit, Bend)
    query = given.embed(["A photo of a nurse."], "joint")
    bent = edit(query)[0]
    group = next(group for group in GENDER.groups if "nurse" in group[0])
    pair = given.embed(group, "joint")
    spurious = given.embed(GENDER.spurious, "joint")
    first = normalize(_without(query[0], torch.cat([spurious, pair[1:] - pair[:1]])), dim=0)
    scores = images @ first
    means = [images[gender == code][scores[gender == code].topk(20).indices].mean(0) for code in (0, 1)]
    assert abs(float(bent @ (means[0] - means[1]))) < 1e-9
    numpy_first, apart = first.numpy(), (means[0] - means[1]).numpy()
    constraints = [{"type": "eq", "fun": lambda e: e @ e - 1}, {"type": "eq", "fun": lambda e: e @ apart}]
    slow = minimize(lambda e: -e @ numpy_first, numpy_first, method="SLSQP", constraints=constraints).x
    np.testing.assert_allclose(bent.numpy(), slow, atol=1e-4)
    two = edit(torch.cat([query, 3 * given.embed(["A photo of a pilot."], "joint")]))
    torch.testing.assert_close(two[0], bent)  # each on its own
    assert two[1].norm() == pytest.approx(3.0)


def test_dear_hides_the_attribute_and_keeps_images_close() -> None:
    given, images, gender = problem()
    edit = given.fit(DeAR(hidden=32, keep=1.0), "joint")
    assert isinstance(edit, Residual)
    moved = edit.image(images)
    assert probe(images, gender) > 0.9
    apart = [(rows[gender == 0].mean(0) - rows[gender == 1].mean(0)).norm() for rows in (images, moved)]
    assert apart[1] < 0.5 * apart[0]
    assert cosine_similarity(images, moved).mean() > 0.8
    torch.testing.assert_close(edit.image(2 * images), 2 * moved)
    one, again = (given.fit(DeAR(hidden=32, steps=3), "joint").image(images) for _ in range(2))
    assert torch.equal(one, again)


# --- other wordings


@pytest.mark.parametrize(
    ("prompt", "words", "expected"),
    [
        ("A photo of a nurse.", "female", "A photo of a female nurse."),
        ("A photo of a engineer", "male", "A photo of a male engineer"),
        ("An engineer.", "male", "A male engineer."),
        ("a picture of the young man", "old", "a picture of the old young man"),
        ("This is a bird.", "in a forest", "This is a bird, in a forest."),
        ("a doctor", "Asian", "an Asian doctor"),
        ("A photo of administrative assistant", "man", "A photo of administrative assistant, man"),
        ("nurses", "male or female", "nurses, male or female"),
    ],
)
def test_words_are_put_into_a_prompt(prompt: str, words: str, expected: str) -> None:
    assert rewrite_prompt(prompt, words) == expected


def test_a_word_stands_behind_those_that_stay_farther_from_the_noun() -> None:
    for prompt, expected in {
        "A photo of an old Dark-skinned nurse.": "A photo of an old Dark-skinned male nurse.",
        "A photo of a tall old nurse.": "A photo of a male tall old nurse.",
        "the old": "the male old",
        "a  nurse of the old  dark-skinned man": "a  nurse of the old male  dark-skinned man",
    }.items():
        assert rewrite_prompt(prompt, "male", {"old", "dark-skinned"}) == expected


def test_wordings_are_read_and_averaged_by_whatever_embeds_the_prompts() -> None:
    texts, _, _ = world()
    table = Texts(texts)
    edit = table.fit(GENDER, "each-value")
    assert isinstance(edit, FixedRewrite)
    pair = table.embed(["A photo of a male nurse.", "A photo of a female nurse."])
    changed = table.under(["A photo of a nurse."], edit)
    torch.testing.assert_close(changed[0], normalize(pair.mean(0), dim=0))
    with pytest.raises(InvalidInputError, match=r"not in the file, such as \['A photo of a nurse of any gender"):
        table.under(["A photo of a nurse."], table.fit(GENDER, Suffix("gender")))
    with pytest.raises(InvalidInputError, match=r"'each-value' reads prompts in other words, and needs the model"):
        edit(pair)
    with pytest.raises(InvalidInputError, match="reads prompts; their embeddings alone do not show what it does"):
        Problem.of(texts, GENDER).diagnose("joint", edit, GENDER)


def test_an_attached_model_reads_the_wordings_itself() -> None:
    from vldebias.miniature import load_clip

    model, _, tokenizer = load_clip()
    prompts = ["A photo of a nurse.", "A photo of a pilot."]
    with torch.no_grad():
        stated = [f"A photo of a {value} {job}." for job in ("nurse", "pilot") for value in ("male", "female")]
        rows = normalize(model.encode_text(tokenizer(stated)), dim=1).unflatten(0, (2, 2)).mean(1)
        with vldebias.debias(model, "professions-gender", method="each-value", tokenizer=tokenizer):
            changed = normalize(model.encode_text(tokenizer(prompts)), dim=1)
    torch.testing.assert_close(changed, normalize(rows, dim=1), atol=1e-5, rtol=0)


# --- edits


def test_an_affine_map_scales_with_what_it_is_given() -> None:
    edit = Affine.imputing(torch.tensor([1]), torch.tensor([0.5]), 3)
    torch.testing.assert_close(edit(torch.tensor([0.6, 0.8, 0.0])), torch.tensor([0.6, 0.5, 0.0]))
    torch.testing.assert_close(edit(torch.tensor([6.0, 8.0, 0.0])), torch.tensor([6.0, 5.0, 0.0]))
    torch.testing.assert_close(edit(torch.tensor([0.6, 0.8, 0.0]), 0.5), torch.tensor([0.6, 0.65, 0.0]))
    assert edit(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_row_of_zeros_stays_finite_under_a_residual() -> None:
    residual = Residual(*(torch.ones(shape) for shape in ((2, 3), (2,), (3, 2))))
    assert residual.image(torch.zeros(1, 3)).isfinite().all()


def test_what_acts_on_images_is_refused_for_texts_alone_and_damaged_files_are_seen(tmp_path: Path) -> None:
    from vldebias.miniature import load_clip

    model, _, tokenizer = load_clip()
    with pytest.raises(InvalidInputError, match="method 'roboshot' acts on images, so side='text' would change no"):
        vldebias.debias(model, "gender", method="roboshot", side="text", tokenizer=tokenizer)
    with pytest.raises(InvalidInputError, match="expected a map of texts or of images, or both, got none"):
        TwoTowers()
    tensors = {"texts.left": torch.zeros(3, 1), "texts.right": torch.zeros(3, 1), "texts.shift": torch.zeros(2)}
    with pytest.raises(InvalidInputError, match=r"texts.shift: expected a tensor \(d\) with d = 3, got \(2,\)"):
        TwoTowers.build(tensors, {}, METHODS["none"].fit(Problem.of({"a photo": [1.0]}, GENDER), "joint").provenance)
