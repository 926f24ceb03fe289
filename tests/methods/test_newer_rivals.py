"""The field's methods of 2025 and 2026: what their formulas promise, and what their authors' code gives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tests.methods.test_rivals import DIM, GENDER, probe, problem
from vldebias.edit import Rows
from vldebias.errors import InvalidInputError
from vldebias.methods import METHODS, SFID, SPD, FairImagen, Leaning, Lian, Problem, load_edit
from vldebias.methods.labelled import labelled, stated_texts
from vldebias.methods.leaning import Gated
from vldebias.methods.rivals.edits import TwoTowers
from vldebias.methods.rivals.erasure import inlp
from vldebias.methods.rivals.fair_pca import FairStates, fair_pca
from vldebias.methods.rivals.half_way import HalfWay
from vldebias.projection import span_of

PUBLISHED = json.loads((Path(__file__).parent / "published" / "published.json").read_text())


def unit(n: int, d: int, seed: int = 0) -> Tensor:
    return normalize(torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)


# --- Lian et al.


def test_half_way_is_that_of_its_authors() -> None:
    given = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in PUBLISHED["lian"].items()}
    means = normalize(given["groups"].mean(1), dim=1)
    edit = HalfWay(span_of(means - means.mean(0)))
    torch.testing.assert_close(edit(given["rows"]), given["turned"], atol=2e-6, rtol=0)
    torch.testing.assert_close(edit.image(3 * given["rows"]), 3 * edit(given["rows"]))


@pytest.mark.parametrize("r", [1, 3])
def test_loss_and_bias_are_equal_shares_and_no_other_vector_has_both_smaller(r: int) -> None:
    basis, rows = torch.linalg.qr(unit(r, 9, seed=1).T).Q, unit(40, 9)
    turned = HalfWay(basis)(rows)
    before, after = (rows @ basis).norm(dim=1), (turned @ basis).norm(dim=1)
    most = 1 - (1 - before**2).sqrt()
    bias, loss = after / before, (1 - (rows * turned).sum(1)) / most
    torch.testing.assert_close(bias, loss)
    torch.testing.assert_close(turned.norm(dim=1), torch.ones(40, dtype=torch.float64))
    assert (bias < 1).all()
    others = normalize(turned[:, None] + 0.1 * unit(200, 9, seed=2), dim=2)
    worst = torch.maximum(
        (others @ basis).norm(dim=2) / before[:, None], (1 - (others * rows[:, None]).sum(2)) / most[:, None]
    )
    assert (worst > bias[:, None]).all()


def test_half_way_leaves_what_says_nothing_or_nothing_else() -> None:
    basis = torch.eye(4, dtype=torch.float64)[:, :2]
    rows = torch.tensor([[0.0, 0.0, 0.6, 0.8], [0.6, 0.8, 0.0, 0.0]], dtype=torch.float64)
    assert torch.equal(HalfWay(basis)(rows), rows)
    assert HalfWay(basis)(rows.float()).dtype == torch.float32


def test_the_sides_of_lian_and_its_span_is_that_of_the_difference() -> None:
    given, images, _ = problem()
    texts = given.embed(GENDER.classes, "joint")
    both, text, image = (given.fit(Lian(side), "joint") for side in ("both", "text", "image"))
    assert [one.side for one in (both, text, image)] == ["both", "text", "image"]
    assert torch.equal(text.image(images), images)
    assert torch.equal(image(texts), texts)
    torch.testing.assert_close(both(texts), text(texts))
    torch.testing.assert_close(both.image(images), image.image(images))
    assert isinstance(both, HalfWay)
    assert (given.fit("difference", "joint")(both.basis.T)).abs().max() < 1e-12
    with pytest.raises(InvalidInputError, match="side: expected one of text, image, both, got 'texts'"):
        Lian("texts")


# --- SPD and SFID


def test_spd_sets_what_probes_read_to_the_neutral_mean_and_nothing_else() -> None:
    given, images, gender = problem()
    edit = given.fit(SPD(rounds=3), "joint")
    assert isinstance(edit, TwoTowers)
    moved = edit.image(images)
    probes = inlp(labelled(given, "joint").known(), 3)
    basis = torch.linalg.qr(probes.T).Q
    assert ((moved @ basis).std(0) < 1e-10).all()
    assert ((moved @ basis).mean(0).abs() > 1e-4).any()  # a mean is put back, as it is not in nullspace projection
    rest = torch.eye(DIM, dtype=torch.float64) - basis @ basis.T
    torch.testing.assert_close(moved @ rest, images @ rest)
    assert probe(images, gender) > 0.9
    assert probe(moved, gender) < 0.6
    texts = stated_texts(given, "joint").rows
    assert edit.texts is not None
    along = span_of(edit.texts.left.T)
    assert ((edit(texts) @ along).std(0) < 1e-10).all()


def test_sfid_replaces_a_hundred_dimensions_of_clip() -> None:
    assert SFID().dims == 100
    given, _, _ = problem()
    narrow = given.fit("sfid", "joint")
    assert isinstance(narrow, TwoTowers)
    assert narrow.images is not None
    assert narrow.images.left.shape[1] == DIM // 5
    generator = torch.Generator().manual_seed(0)
    wide = {text: torch.randn(512, generator=generator) for text in (*GENDER.classes, *sum(GENDER.groups, ()))}
    names = ["male", "female"] * 40
    reference = replace(given.reference, features=unit(80, 512), labels={"gender": names})  # type: ignore[type-var]
    edit = Problem.of(wide, GENDER, reference=reference).fit("sfid", "joint")
    assert isinstance(edit, TwoTowers)
    assert edit.images is not None
    assert edit.images.left.shape[1] == 100


# --- FairImagen


@pytest.mark.parametrize("keep", ["4", "6"])
def test_fair_pca_is_that_of_its_authors(keep: str) -> None:
    given = PUBLISHED["fair_pca"]
    rows, groups = (torch.tensor(given[name], dtype=torch.float64) for name in ("rows", "groups"))
    dropped = fair_pca(rows, groups, int(keep))
    kept = torch.eye(8, dtype=torch.float64) - dropped @ dropped.T
    torch.testing.assert_close(kept, torch.tensor(given["kept"][keep], dtype=torch.float64))


def test_after_fair_pca_groups_have_one_mean_and_at_full_width_it_is_the_difference() -> None:
    given, _, _ = problem()
    rows, groups = stated_texts(given, "joint").one_hot()
    for keep in (None, 9):
        dropped = fair_pca(rows, groups, keep)
        left = rows - rows @ dropped @ dropped.T
        means = torch.stack([left[groups[:, g] > 0].mean(0) for g in (0, 1)])
        assert (means[0] - means[1]).abs().max() < 1e-12
        assert dropped.shape[1] == (1 if keep is None else DIM - keep)
    (whole,), (ours,) = fair_pca(rows, groups).T, given.fit("difference", "joint").left.T
    means = torch.stack([rows[groups[:, g] > 0].mean(0) for g in (0, 1)])
    assert abs(float(whole @ normalize(means[0] - means[1], dim=0))) == pytest.approx(1.0)
    assert abs(float(whole @ ours)) > 0.95  # fitted to the set's own texts of the values


def test_fair_imagen_draws_a_group_and_adds_what_one_of_its_texts_says() -> None:
    given, _, _ = problem()
    given.host.generative = True  # type: ignore[misc]
    texts = given.embed(GENDER.classes[:1], "joint").expand(60, -1)
    rows = Rows((GENDER.classes[0],) * 60, seeds=tuple(range(60)))
    plain = given.fit(FairImagen(noise=0.0), "joint")
    edit = given.fit(FairImagen(), "joint")
    assert isinstance(edit, FairStates)
    assert plain(texts, rows=rows).std(0).max() < 1e-12
    added = edit(texts, rows=rows) - plain(texts, rows=rows)
    for row, name in zip(added, edit.draw(rows), strict=True):
        code = list(GENDER.attributes).index(name)
        assert torch.cosine_similarity(row, edit.directions[code], dim=0) == pytest.approx(1.0)
        assert (row.norm() - 0.36 * edit.said[code]).abs().min() < 1e-12
    assert set(edit.draw(rows)) == {"male", "female"}
    torch.testing.assert_close(edit(5 * texts, rows=rows), 5 * edit(texts, rows=rows))
    states = texts[:, None].expand(-1, 3, -1)
    torch.testing.assert_close(edit(states, rows=rows)[:, 1], edit(texts, rows=rows))
    with pytest.raises(InvalidInputError, match="fair-pca: expected one attribute, got 2"):
        replace(given, sets=(GENDER, GENDER)).fit("fair-pca", "joint")


# --- the gate


@pytest.mark.parametrize("images", [True, False], ids=["images", "texts"])
@pytest.mark.parametrize("name", ["cali", "bend-vlm", "difference"])
def test_texts_that_do_not_lean_come_back_bit_for_bit(name: str, images: bool, tmp_path: Path) -> None:
    given, rows, gender = problem()
    if not images and name == "bend-vlm":
        return
    least = 0.4 if images else 1.2  # of stand-ins that state the value, the gaps are wider
    whole = replace(given.reference, within_classes=False)  # type: ignore[type-var]
    given = replace(given, reference=whole if images else None)
    edit, inside = given.fit(Leaning(name, least=least), "joint"), given.fit(name, "joint")
    assert isinstance(edit, Gated)
    assert edit.method == f"{name}, leaning"
    texts = torch.cat([given.embed(GENDER.classes, "joint"), unit(60, DIM, seed=5)])
    lean = edit.leans(texts)
    moved = edit(texts)
    assert 5 < int((lean >= least).sum()) < 60
    assert torch.equal(moved[lean < least], texts[lean < least])
    torch.testing.assert_close(moved[lean >= least], inside(texts)[lean >= least])
    if images:  # the measure, by hand
        scores, value = rows @ texts.T, (rows @ given.zero_shot(GENDER, "joint").T).argmax(1)
        assert (value == gender).double().mean() > 0.9
        apart = scores[value == 0].mean(0) - scores[value == 1].mean(0)
        torch.testing.assert_close(lean, (apart / scores.std(0)).abs())
    again = load_edit(edit.save_pretrained(tmp_path))
    torch.testing.assert_close(again(texts), moved)
    assert again.settings() == edit.settings()


def test_what_has_no_gate() -> None:
    given, _, _ = problem()
    with pytest.raises(InvalidInputError, match="expected a method that edits the embeddings of texts, got"):
        given.fit(Leaning("roboshot"), "joint")
    with pytest.raises(InvalidInputError, match="least: expected a lean above 0"):
        Leaning("cali", least=0.0)


def test_at_most_25_are_listed_and_those_that_are_not_say_why_in_the_registry() -> None:
    assert sum(method.listed for method in METHODS.values() if type(method).__module__.startswith("vldebias.")) <= 25
    assert not METHODS["dear"].listed
