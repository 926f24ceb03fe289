"""Test `default`, `paper`, lam= and reference= on models and pipelines, in debias and evaluate."""

import logging
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import vldebias
from tests.methods.test_folds import HARMED, HELPED, images, world
from vldebias.api import debias, fit_projections
from vldebias.errors import AutoDeclinedWarning, InvalidInputError, WideEditWarning
from vldebias.hosts import Host, PromptAttachment, TextTable, resolve
from vldebias.methods import Problem, get_method, presets
from vldebias.methods.closed_form import CALI, pair_scatters
from vldebias.methods.folds import FEWEST
from vldebias.methods.predicted_gap import Change
from vldebias.miniature import load_judge
from vldebias.miniature.words import WORLDS
from vldebias.projection.projection import CalibratedProjection
from vldebias.projection.provenance import Choice
from vldebias.prompts import PromptSet, load_prompts

SET = load_prompts("professions-gender")
FIVE = replace(SET, name="five", variants=SET.variants[:5])
SKIN_TONE = load_prompts("skin-tone")
TONES = replace(SKIN_TONE, variants=SKIN_TONE.variants[:5])
OUTSIDE = ["A photo of a person.", "A photo of a good person.", "A photo of a criminal person."]

quiet = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")


def classifier(prompt_set: PromptSet) -> PromptSet:
    """Return a set with two class prompts, which is treated as a classifier."""
    return replace(
        prompt_set, classes=prompt_set.classes[:2], class_names=prompt_set.class_names[:2]
    )


def declined(host: object, prompts: object, reason: str, **how: Any) -> Choice:
    """Check that the default declines with a reason, and return its decision."""
    with pytest.warns(AutoDeclinedWarning, match=reason):
        edits = fit_projections(host, prompts, **how)
    assert edits == {}
    (choice,) = edits.declined
    assert choice.method == "default: none"
    with pytest.raises(InvalidInputError, match="the default attaches no edit"):
        _ = edits.only
    return choice


@pytest.mark.parametrize("kind", [HELPED, HARMED])
def test_a_search_is_not_edited_and_the_call_that_re_ranks_is_named(
    kind: tuple[float, float],
) -> None:
    texts, prompts = world(*kind)
    reason = (
        r"Re-rank the results: vldebias\.rerank\(scores, k, features=features, attribute='jobs'"
    )
    assert declined(texts, prompts, reason).change is None
    with pytest.warns(AutoDeclinedWarning):
        edit = Problem(texts, prompts).fit("default", "text")  # measured by evaluate
    z = texts.embed(prompts.classes, "text")
    assert edit(z) is z
    assert (edit.method, edit.rank) == ("default: none", 0)
    assert repr(edit).startswith("no edit (default: none")
    # A warning would be an error.
    assert vldebias.fit_projections(texts, prompts, method="difference").only.rank == 1
    with pytest.raises(InvalidInputError, match="'orth-cali' needs spurious prompts"):
        vldebias.fit_projections(texts, replace(prompts, spurious=()), method="paper")


def test_a_set_without_value_words_gets_advice_to_add_them() -> None:
    texts, prompts = world(*HELPED)
    reason = r"Add words for the values.*method='difference'"
    declined(texts, replace(prompts, attributes={}), reason)


def test_a_classification_tested_on_text_records_the_test() -> None:
    texts, prompts = world(*HELPED)
    edit = vldebias.fit_projections(texts, classifier(prompts)).only  # a warning would be an error
    assert edit.method == "difference"
    choice = edit.provenance.choice
    assert choice.change[2] < 0
    assert choice.reason.startswith("Held-out prompts come closer together")
    assert "no image was tested" in choice.reason
    texts, prompts = world(*HARMED)
    choice = declined(texts, classifier(prompts), "Held-out prompts do not")
    assert "rerank" not in choice.reason  # a classifier ranks nothing


def test_an_untestable_classification_is_attached_and_logged_once(caplog: Any) -> None:
    presets.log_once.cache_clear()
    texts, prompts = world(*HARMED)
    few = replace(classifier(prompts), variants=prompts.variants[: FEWEST - 1])
    with caplog.at_level(logging.WARNING, "vldebias"):
        Problem(texts, few).fit("default", "text")  # by evaluate, which measures it
        assert not caplog.records
        edits = [vldebias.fit_projections(texts, few).only for _ in range(2)]
    assert (edits[0].method, edits[0].rank, edits[0].provenance.choice) == ("difference", 1, None)
    (line,) = [record.message for record in caplog.records]
    assert "untested" in line


@quiet
def test_a_search_is_not_edited_with_reference_images_either() -> None:
    texts, prompts = world(*HELPED)
    reference = images(2000, seed=1)[0]
    reason = r"Re-rank the results: .*queries\.search\(index_call, text, k\)"
    assert declined(texts, prompts, reason, reference=reference).change is None
    edit = fit_projections(texts, prompts, method="difference", reference=reference).only
    assert edit.method == "difference+equalise"


@quiet
@pytest.mark.parametrize(("high", "is_attached"), [(-0.01, True), (0.0, False), (0.01, False)])
def test_an_edit_is_only_attached_if_the_whole_interval_shows_a_gain(
    monkeypatch: pytest.MonkeyPatch, high: float, is_attached: bool
) -> None:
    texts, prompts = world(*HELPED)
    change = Change(-0.3, -0.6, high)  # helps in the mean
    monkeypatch.setattr(presets, "change_on_texts", lambda *_: change)
    assert bool(fit_projections(texts, classifier(prompts))) == is_attached


@quiet
def test_sets_for_which_the_default_declines_are_left_out_and_named() -> None:
    texts, prompts = world(*HELPED)
    search = replace(prompts, name="search", stated_words=("hers",))
    birds = replace(classifier(prompts), name="birds", stated_words=("his",))
    alone = fit_projections(texts, birds).only
    message = "attaches an edit for birds, but none for search. search: Re-ranking"
    for sets in ([search, birds], [birds, search]):
        with pytest.warns(AutoDeclinedWarning, match=message):
            edits = fit_projections(texts, sets)
        assert torch.equal(edits.only.matrix(), alone.matrix())
        assert edits.only.provenance.attribute == "birds"
        assert "hers" not in edits.only.stated_words
        assert [choice.attribute for choice in edits.declined] == ["search"]
        assert edits.only.provenance.declined == edits.declined
        measured = Problem(texts, sets).fit("default", "text")  # by evaluate
        assert torch.equal(measured.matrix(), alone.matrix())
    assert fit_projections(texts, [search, replace(search, name="b", stated_words=())]) == {}


@quiet
def test_the_readme_example_gets_an_edit() -> None:
    from vldebias.miniature import load_clip

    model, _, tokenizer = load_clip()
    edit = vldebias.fit_projections(model, "waterbirds", tokenizer=tokenizer).only
    assert edit.method == "difference"


@quiet
@pytest.mark.parametrize("named", ["no set", "one of two sets"])
def test_a_classification_without_value_words_gets_cali(named: str) -> None:
    texts, prompts = world(*HELPED)
    two = replace(prompts, classes=prompts.classes[:2], class_names=prompts.class_names[:2])
    wordless = replace(two, attributes={})
    sets = [wordless] if named == "no set" else [two, wordless]
    edit = vldebias.fit_projections(texts, sets).only
    expected = CALI.fit(Problem(texts, sets, lam=100.0), "text")
    assert edit.method == "cali"
    assert torch.equal(edit.matrix(), expected.matrix())


@quiet
@pytest.mark.parametrize(
    ("method", "name_with_images"),
    [
        ("default", "default+reference"),
        ("cali", "cali+equalise"),
        ("difference", "difference+equalise"),
    ],
)
@pytest.mark.parametrize("images", [False, True])
def test_evaluate_measures_the_edit_that_debias_attaches(
    method: str, name_with_images: str, images: bool
) -> None:
    texts, prompts = world(*HELPED)
    noise = np.random.default_rng(0)
    features = noise.normal(size=(300, 48))
    reference = torch.from_numpy(noise.normal(size=(200, 48)))
    table = {text: texts.embed([text], "text")[0].numpy() for text in prompts.texts}
    labels = {"jobs": noise.choice(["male", "female"], 300)}
    options = {"reference": reference if images else None}
    how = {"attribute": {"jobs": prompts}, "labels": labels, "k": 20, "resamples": 20, **options}
    chosen = get_method(method, reference=options["reference"])
    attached = Problem(TextTable(table), prompts, **options).fit(chosen, "text")
    result = vldebias.evaluate(table, features, methods=[method], **how)
    name = name_with_images if images else method
    (description,) = [protocol.methods[name] for protocol in result.provenance]
    assert description["method"] == attached.method
    plain = normalize(
        torch.stack([torch.from_numpy(table[text]) for text in prompts.classes]), dim=1
    )
    expected = float((plain * normalize(attached(plain), dim=1)).sum(1).mean())
    assert result.row("retrieval jobs", "query_cosine", name).value == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize("method", [None, "default", "paper", "difference", "orth", "bend-vlm"])
def test_lam_is_rejected_for_methods_that_do_not_take_it(method: str | None) -> None:
    """lam never selects a method and is never ignored; the message lists methods that take it."""
    table = TextTable({text: torch.ones(2) for text in load_prompts("gender").texts})
    why = "no method is named" if method is None else f"method '{method}' takes no lam"
    for lam in (50.0, [50.0]):
        with pytest.raises(
            InvalidInputError, match=rf"lam=.*: {why}; .*orth-cali, cali, equalise, cali\+equalise"
        ):
            vldebias.fit_projections(table, "gender", method=method, lam=lam)


@pytest.fixture(scope="module")
def host(pipe: Any) -> Host:
    """Return the pipeline's host, including its cache."""
    return resolve(pipe)


def only(edits: Any) -> CalibratedProjection:
    (edit,) = edits.values()
    assert isinstance(edit, CalibratedProjection)
    return edit


def portraits_of(pipe: Any, images: int = 3) -> int:
    """Count the images that show a person among those whose prompt is about a person."""
    prompts = [prompt for prompt in OUTSIDE for _ in range(images)]
    noise = [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]
    drawn = pipe(
        prompts, generator=noise, num_inference_steps=8, guidance_scale=3.0, output_type="pt"
    ).images
    return int(
        (
            load_judge().predict(drawn.float().clamp(0, 1))["world"] == WORLDS.index("portraits")
        ).sum()
    )


def test_a_person_stays_a_person_under_the_default(pipe: Any, host: Host) -> None:
    """This fails with the paper's lam, so the test is sensitive enough."""
    bare = portraits_of(pipe)
    assert bare >= 7
    with debias(host, SET, method="cali", lam=only(fit_projections(host, SET)).lam):
        assert portraits_of(pipe) >= bare - 1
    with pytest.warns(WideEditWarning), debias(host, SET, method="paper"):
        assert portraits_of(pipe) <= bare / 2


def test_the_default_removes_at_most_one_percent_or_one_direction_per_attribute(
    host: Host,
) -> None:
    edit = only(fit_projections(host, SET))
    assert edit.removed == pytest.approx(edit.dim / 100, rel=1e-6)
    scatter = pair_scatters(Problem(host, SET), host.roles[0])[0]
    # This is Lemma 7.2 at the recorded lam.
    expected = CalibratedProjection.solve([scatter], None, edit.lam)
    assert torch.allclose(edit.matrix(), expected.matrix(), atol=1e-9)
    assert 0 < edit.lam < 500
    assert only(fit_projections(host, [FIVE, TONES])).removed == pytest.approx(2, rel=1e-6)


@quiet
def test_named_methods_use_the_papers_lam(host: Host) -> None:
    """The edits satisfy Lemma 7.2 at lam = 500 for any width."""
    scatter = pair_scatters(Problem(host, SET), host.roles[0])[0]
    paper = CalibratedProjection.solve([scatter], None, 500.0).matrix()
    for method in ("cali", "paper"):
        assert torch.equal(only(fit_projections(host, SET, method=method)).matrix(), paper)


def test_a_fit_that_shrinks_a_quarter_of_the_space_by_a_tenth_warns(host: Host) -> None:
    for method in ("cali", "orth-cali"):
        with pytest.warns(
            WideEditWarning, match=rf"{method} removes .* of 128 directions, more than 3.2, "
        ) as caught:
            fit_projections(host, SET, method=method)
        assert [warning.filename for warning in caught] == [__file__]


def test_narrow_edits_and_models_do_not_warn(host: Host) -> None:
    table = TextTable(dict(zip("abcd", torch.eye(4), strict=True)))
    table.generative = True
    with warnings.catch_warnings():
        warnings.simplefilter("error", WideEditWarning)
        for how in ({}, {"method": "difference"}, {"method": "cali", "lam": 20.0}):
            edit = only(fit_projections(host, SET, **how))
            assert edit.removed < edit.dim / 40
        only(fit_projections(host, FIVE))
        pair = PromptSet("g", variants=(("a", "b"),), spurious=("a", "b"))
        Problem(table, pair).fit("orth", "text")
        rows = {
            text: torch.randn(8, generator=torch.Generator().manual_seed(i))
            for i, text in enumerate(SET.texts)
        }
        with warnings.catch_warnings(action="ignore", category=vldebias.errors.ClassSignalWarning):
            edit = Problem(rows, SET).fit("cali", "text")
        assert edit.removed > edit.dim / 40
    # Two directions per attribute are a small part of any space.
    with pytest.warns(WideEditWarning, match="removes 3.0 of 4"):
        Problem(table, replace(pair, spurious=("a", "b", "c"))).fit("orth", "text")


def test_fitting_cali_instead_of_balanced_prompts_is_logged_once(pipe: Any, caplog: Any) -> None:
    presets.log_once.cache_clear()
    only(fit_projections(pipe, replace(FIVE, attributes={})))  # the set has no words for values
    assert not caplog.records
    with debias(pipe, FIVE) as attachment:
        assert isinstance(attachment, PromptAttachment)
    for _ in range(2):
        assert only(fit_projections(pipe, FIVE)).method == "cali"
    (message,) = [record.message for record in caplog.records if record.name == "vldebias"]
    assert "not an embedding edit" in message
    caplog.clear()
    with debias(pipe, FIVE, max_loss=0.1) as attachment:  # a bound only applies to edits
        assert attachment.projections
    (message,) = [record.message for record in caplog.records if record.name == "vldebias"]
    assert "max_loss only applies to edits" in message
    with pytest.raises(InvalidInputError, match="not an embedding edit"):
        fit_projections(pipe, FIVE, method="balanced-prompts")
    with pytest.raises(InvalidInputError, match="never changes negative prompts"):
        debias(pipe, FIVE, negative=True)
    shares = dict.fromkeys(FIVE.attributes, 1 / len(FIVE.attributes))
    with pytest.raises(InvalidInputError, match="omit max_loss, or use method='cali'"):
        debias(pipe, FIVE, method="balanced-prompts", max_loss=0.1, shares=shares)
