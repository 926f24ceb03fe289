"""auto: it chooses what helps, declines where nothing does, and sees a method that makes things worse."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from vldebias.bounded import Bound, losses
from vldebias.choice import Choice
from vldebias.choosing import BOUND, FEWEST, FOLDS
from vldebias.equalise import Reference
from vldebias.errors import AutoDeclinedWarning, InvalidInputError, PromptSetError
from vldebias.evaluation.texts import TextTable
from vldebias.fitting import Fit
from vldebias.metrics import max_skew
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet, make_prompt_set

DIM, CONCEPTS = 48, 20
PERSON, GENDER, LEAN = torch.eye(DIM, dtype=torch.float64)[:3]
CONCEPT = torch.eye(DIM, dtype=torch.float64)[4 : 4 + CONCEPTS]
NAMES = [f"job{i}" for i in range(CONCEPTS)]
ANYTHING = Bound(0.999, over="mean")


def noise(n: int, seed: int) -> Tensor:
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def world(lean: float, biased: float) -> tuple[TextTable, PromptSet]:
    """Texts of 20 concepts. `biased`: how much neutral texts lean to GENDER, which prompts of a pair differ in, and
    `lean`: to LEAN, in which images of the two values differ and prompts do not.
    """
    prompts = make_prompt_set("jobs", {"male": ["male"], "female": ["female"]}, NAMES)
    leaning = PERSON + lean * LEAN + biased * GENDER
    rows = {f"A photo of a {name}.": leaning + 0.4 * c for name, c in zip(NAMES, CONCEPT, strict=True)}
    for value, sign in (("male", 1), ("female", -1)):
        rows[f"A photo of a {value}."] = PERSON + 0.3 * sign * GENDER
        for i, (name, c) in enumerate(zip(NAMES, CONCEPT, strict=True)):
            own = 0.05 * noise(CONCEPTS, seed=5)[i]  # of this concept alone: it tells nothing about another
            rows[f"A photo of a {value} {name}."] = PERSON + 0.4 * c + sign * (0.3 * GENDER + own)
    return TextTable(rows), prompts


def images(n: int, seed: int) -> tuple[Tensor, np.ndarray]:
    """Images of two values, which differ in GENDER and LEAN; most of their scores vary with PERSON."""
    value = torch.randint(2, (n,), generator=torch.Generator().manual_seed(seed + 2))
    sign = (1.0 - 2 * value)[:, None]
    depth = 1 + 0.4 * torch.rand(n, 1, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    rows = depth * PERSON + sign * (0.15 * GENDER + 0.15 * LEAN) + 0.08 * noise(n, seed) + 3 * torch.eye(DIM)[40]
    return normalize(rows, dim=1), value.numpy()


def skew(texts: TextTable, prompts: PromptSet, projection: CalibratedProjection | None) -> float:
    """MaxSkew@100 of the neutral texts on fresh images with their true values, mean over the texts."""
    rows, value = images(1000, seed=99)
    queries = texts.embed(prompts.classes, "joint")
    queries = queries if projection is None else normalize(projection(queries), dim=1)
    return float(np.mean([max_skew(rows @ query, value, 100) for query in queries]))


def chosen(texts: TextTable, prompts: Any, method: str = "auto", lam: Any = None, **how: Any) -> Choice:
    reference = how.get("reference")
    fit = Fit.of(texts, prompts, method, lam, None if reference is None else Reference.of(reference), how.get("bound"))
    fit.solve("joint")
    return fit.choices["joint"]


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TestAWorldWhereOrthCaliMakesItWorse:
    """As in a published reproduction, where the skew of FairFace rose from .346 to .596 with orth-cali."""

    @pytest.fixture
    def made(self) -> tuple[TextTable, PromptSet]:
        return world(lean=0.2, biased=0.0)

    def test_it_does(self, made: tuple[TextTable, PromptSet], quiet: None) -> None:
        orth_cali = vldebias.fit_projection(made[0], made[1], method="orth-cali")
        assert skew(*made, orth_cali) > skew(*made, None) + 0.2

    def test_auto_declines_from_texts_alone(self, made: tuple[TextTable, PromptSet]) -> None:
        with pytest.warns(AutoDeclinedWarning, match=r"jobs: auto: none. No method is expected to help beyond its int"):
            choice = chosen(*made, bound=ANYTHING)
        assert (choice.method, choice.lam) == ("none", 0.0)
        assert skew(*made, choice.projection) == skew(*made, None)

    def test_the_prediction_from_images_sees_it(self, made: tuple[TextTable, PromptSet], quiet: None) -> None:
        choice = chosen(*made, reference=images(2000, seed=1)[0], bound=ANYTHING)
        found = [c for c in choice.candidates if c.method == "orth-cali"]
        assert len(found) == 4
        assert all(c.change[1] > 0.3 for c in found)  # worse, beyond the interval
        assert all(c.refused == "not beyond its interval" for c in found)

    def test_with_images_auto_finds_what_helps(self, made: tuple[TextTable, PromptSet], quiet: None) -> None:
        choice = chosen(*made, reference=images(2000, seed=1)[0])
        assert "equalise" in choice.method
        assert skew(*made, choice.projection) < skew(*made, None) - 0.03


class TestAWorldWherePairsHelp:
    @pytest.fixture
    def made(self) -> tuple[TextTable, PromptSet]:
        return world(lean=0.0, biased=0.3)

    @pytest.mark.parametrize("with_images", [False, True])
    def test_auto_takes_what_helps_and_is_right(
        self, made: tuple[TextTable, PromptSet], with_images: bool, quiet: None
    ) -> None:
        choice = chosen(*made, reference=images(2000, seed=1)[0] if with_images else None)
        assert choice.method != "none"
        assert choice.evidence.keys() == ({"texts", "images"} if with_images else {"texts"})
        after = skew(*made, choice.projection)
        assert after < 0.6 * skew(*made, None)
        fixed = [skew(*made, vldebias.fit_projection(*made, method=m, max_loss=BOUND)) for m in ("cali", "difference")]
        assert after <= min(fixed) + 0.05

    def test_the_best_by_mean_prediction_of_those_beyond_their_interval(
        self, made: tuple[TextTable, PromptSet], quiet: None
    ) -> None:
        choice = chosen(*made, reference=images(2000, seed=1)[0])
        eligible = [c for c in choice.candidates if not c.refused]
        best = min(eligible, key=lambda c: c.gap)
        assert (choice.method, choice.lam) == (best.method, best.lam)
        assert all((c.change[2] < 0) == (not c.refused) for c in choice.candidates)
        assert all(c.gap == pytest.approx((c.gaps["texts"] + c.gaps["images"]) / 2) for c in choice.candidates)

    def test_the_projection_is_the_method_fitted_on_everything(
        self, made: tuple[TextTable, PromptSet], quiet: None
    ) -> None:
        choice = chosen(*made)
        again = vldebias.fit_projection(*made, method=choice.method, lam=choice.lam)
        torch.testing.assert_close(choice.projection.matrix(), again.matrix())

    def test_every_candidate_keeps_the_bound(self, made: tuple[TextTable, PromptSet], quiet: None) -> None:
        for bound in (None, Bound(0.005, "every")):
            choice = chosen(*made, bound=bound)
            assert all(c.loss <= (bound or BOUND).loss + 1e-9 for c in choice.candidates)
            rows = made[0].embed(made[1].classes, "joint")
            assert (bound or BOUND).value(losses(choice.projection, rows)) <= (bound or BOUND).loss + 1e-9
        assert len({(c.method, c.lam) for c in choice.candidates}) == len(choice.candidates)

    def test_the_change_is_paired(self, made: tuple[TextTable, PromptSet], quiet: None) -> None:
        """A candidate that changes next to nothing has an interval of next to no width, whatever the sample."""
        choice = chosen(*made, bound=Bound(1e-5, "mean"))
        for candidate in choice.candidates:
            value, low, high = candidate.change
            assert value == pytest.approx(candidate.gaps["texts"] - 1)
            assert low <= value <= high
            assert high - low < 0.05

    def test_deterministic(self, made: tuple[TextTable, PromptSet], quiet: None) -> None:
        first, second = (chosen(*made, reference=images(2000, seed=1)[0]).to_dict() for _ in range(2))
        assert first == second

    def test_a_given_method_leaves_its_lam_to_auto(self, made: tuple[TextTable, PromptSet], quiet: None) -> None:
        assert {c.method for c in chosen(*made, "cali", "auto").candidates} == {"cali"}
        assert {c.lam for c in chosen(*made, "auto", 70.0, bound=ANYTHING).candidates if "cali" in c.method} == {70.0}

    def test_told_as_a_table_and_as_json(self, made: tuple[TextTable, PromptSet], quiet: None) -> None:
        choice = chosen(*made)
        lines = str(choice).splitlines()
        assert lines[0].startswith(f"jobs: auto: {choice.method}. Predicted gap ")
        assert lines[1].split() == ["method", "lam", "gap", "change", "to", "none", "loss"]
        assert lines[2].startswith(choice.method)
        assert len(lines) == 2 + len(choice.candidates)
        told = json.loads(json.dumps(choice.to_dict()))
        assert told["method"] == choice.method
        assert told["evidence"]["texts"] == {"neutral texts": CONCEPTS, "folds": FOLDS, "rows": 2 * CONCEPTS}
        assert len(told["candidates"]) == len(choice.candidates)
        assert told["settings"]["max_loss"] == 0.05


class TestEvidence:
    def test_what_is_predicted_was_not_fitted_on(self, monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
        texts, prompts = world(0.0, 0.3)
        features = images(2000, seed=1)[0]
        fitted: list[tuple[set[Any], set[int]]] = []
        terms = Fit.terms

        def spy(self: Fit, role: str) -> Any:
            rows = {} if self.reference is None else {hash(bytes(r.numpy().tobytes())) for r in self.reference.features}
            fitted.append(({g for s in self.attributes for g in s.groups}, set(rows)))
            return terms(self, role)

        predicted: list[set[int]] = []
        pool = vldebias.choosing.Pool.of.__func__

        def spy_pool(cls: Any, rows: Tensor, *given: Any, **how: Any) -> Any:
            predicted.append({hash(bytes(r.numpy().tobytes())) for r in rows.contiguous()})
            return pool(cls, rows, *given, **how)

        monkeypatch.setattr(Fit, "terms", spy)
        monkeypatch.setattr(vldebias.choosing.Pool, "of", classmethod(spy_pool))
        chosen(texts, prompts, reference=features)
        groups = set(prompts.groups)
        folds = [groups - learned for learned, _ in fitted[:FOLDS]]
        assert set.union(*folds) == groups
        assert sum(map(len, folds)) == len(groups)
        for left_out, rows in zip(folds, predicted[:FOLDS], strict=True):
            own = texts.embed([p for group in left_out for p in group], "joint")
            assert rows == {hash(bytes(r.numpy().tobytes())) for r in own}
        halves = list(zip(fitted[FOLDS : FOLDS + 2], predicted[FOLDS:], strict=True))
        assert all(learned and not learned & rows for (_, learned), rows in halves)
        assert len(set.union(*(rows for _, rows in halves))) == 2000

    def test_held_out_groups_are_predicted_where_there_are_enough(self, quiet: None) -> None:
        texts, prompts = world(0.0, 0.3)
        split = replace(prompts, groups=prompts.groups[:12], held_out_groups=prompts.groups[12:])
        assert chosen(texts, split).evidence["texts"] == {"neutral texts": CONCEPTS, "folds": 1, "rows": 16}

    def test_with_too_few_groups_and_no_images_it_declines(self) -> None:
        texts, prompts = world(0.0, 0.3)
        few = replace(prompts, groups=prompts.groups[: FEWEST - 1])
        with pytest.warns(AutoDeclinedWarning, match="Fewer than 5 groups of prompts and no reference images: nothing"):
            choice = chosen(texts, few)
        assert (choice.method, choice.candidates, choice.evidence) == ("none", (), {})
        assert str(choice).startswith("jobs: auto: none. Fewer than 5 groups")

    def test_too_few_groups_with_images_are_judged_by_images(self, quiet: None) -> None:
        texts, prompts = world(0.0, 0.3)
        few = replace(prompts, groups=prompts.groups[: FEWEST - 1])
        choice = chosen(texts, few, reference=images(2000, seed=1)[0])
        assert choice.evidence.keys() == {"images"}
        assert choice.method != "none"

    def test_several_attributes_have_one_term_each(self, quiet: None) -> None:
        texts, prompts = world(0.0, 0.3)
        choice = chosen(texts, [prompts, replace(prompts, name="again")], lam=[100.0, 200.0], bound=ANYTHING)
        assert {c.lam for c in choice.candidates if c.method == "cali"} == {(100.0, 200.0)}
        assert choice.evidence["texts"]["rows"] == 2 * 2 * CONCEPTS

    def test_a_set_without_words_for_its_values(self) -> None:
        texts, prompts = world(0.0, 0.3)
        with pytest.raises(PromptSetError, match="expected one attribute with words for each value"):
            chosen(texts, replace(prompts, attributes={}))

    def test_a_set_without_neutral_texts(self) -> None:
        texts, prompts = world(0.0, 0.3)
        with pytest.raises(InvalidInputError, match="jobs: no neutral texts"):
            chosen(texts, replace(prompts, classes=(), class_names=()))

    def test_lam_in_words(self) -> None:
        texts, prompts = world(0.0, 0.3)
        with pytest.raises(
            InvalidInputError, match="lam: expected a number, one per prompt set, or 'auto', got 'best'"
        ):
            chosen(texts, prompts, "cali", "best")


@pytest.fixture(scope="module")
def clip() -> tuple[Any, Any]:
    from vldebias.miniature import load_clip

    model, _, tokenizer = load_clip()
    return model, tokenizer


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
class TestOnAModel:
    def test_attached_with_its_reasons(self, clip: tuple[Any, Any]) -> None:
        model, tokenizer = clip
        with vldebias.debias(model, "professions-gender", method="auto", tokenizer=tokenizer) as attachment:
            assert attachment.choice is attachment.choices["joint"]
            assert attachment.choice.method == "cali"
            assert attachment.projections["joint"].method == "cali"
            assert "joint: auto: cali lam=" in repr(attachment)
        with vldebias.debias(model, "professions-gender", method="cali", tokenizer=tokenizer) as attachment:
            assert attachment.choice is None
            assert "auto" not in repr(attachment)

    def test_declined_is_the_model_as_it_is(self, clip: tuple[Any, Any], tmp_path: Path) -> None:
        model, tokenizer = clip
        tokens = tokenizer(["This is a picture of a landbird."])
        with torch.no_grad():
            before = model.encode_text(tokens)
            with pytest.warns(AutoDeclinedWarning, match="waterbirds: auto: none"):
                attachment = vldebias.debias(model, "waterbirds", method="auto", tokenizer=tokenizer)
            assert torch.equal(model.encode_text(tokens), before)
        assert "joint: auto: none lam=0.0 rank 0/" in repr(attachment)
        projection = attachment.projections["joint"]
        attachment.remove()
        again = CalibratedProjection.from_pretrained(projection.save_pretrained(tmp_path / "saved"))
        assert (again.method, again.rank) == ("auto: none", 0)
        half = torch.randn(3, again.dim, generator=torch.Generator().manual_seed(0)).bfloat16()
        assert torch.equal(again(half), half)
        with vldebias.debias(model, again, tokenizer=tokenizer), torch.no_grad():
            assert torch.equal(model.encode_text(tokens), before)

    def test_for_a_pipeline_from_texts(self) -> None:
        from vldebias.miniature import load_pipeline

        with vldebias.debias(load_pipeline(), "professions-gender", method="auto") as attachment:
            assert attachment.choice is not None
            assert attachment.choice.method in ("cali", "difference", "orth-cali", "orth-cali, bounded")
            assert attachment.choice.evidence.keys() == {"texts"}
