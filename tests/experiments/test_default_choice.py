"""The rule that names a default: what it asks for, on made-up tables, and that it reads the committed ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eval.experiments.default_choice import FORMS, NEAR, TABLES, Place, choose, of_models, told
from eval.experiments.rivals import compared
from eval.readme import ATTACHED
from eval.tables import read, rows_in
from vldebias.api import fit_projection
from vldebias.evaluation.session import Texts
from vldebias.methods.presets import PRESETS
from vldebias.prompts import load_prompts


def places(scores: dict[str, list[float]], harm: dict[str, int] | None = None) -> list[Place]:
    return [
        Place(f"t{k}", form, score + 0.1, 0.1, (harm or {}).get(form) == k)
        for form, own in scores.items()
        for k, score in enumerate(own)
    ]


def test_a_form_that_a_table_lacks_is_not_chosen() -> None:
    assert choose([*places({"a": [0.1, 0.1]}), Place("t0", "b", 1.0, 0.0, False)]) == "a"


@pytest.mark.parametrize("seed", range(5))
def test_the_rule_by_a_naive_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.uniform(-0.2, 0.8, size=(6, 4))
    bad = rng.random((6, 4)) < 0.05
    made = [Place(f"t{t}", f"f{f}", float(table[t, f]), 0.0, bool(bad[t, f])) for f in range(4) for t in range(6)]
    allowed = [f for f in range(4) if not bad[:, f].any()]
    best = max((table[:, f].mean() for f in allowed), default=None)
    near = [f for f in allowed if table[:, f].mean() >= best - NEAR]
    assert choose(made) == (f"f{max(near, key=lambda f: table[:, f].min())}" if allowed else None)


def test_gains_and_costs_are_those_of_the_committed_table() -> None:
    result = read("rivals_real")
    found = {(one.table, one.form): one for one in of_models([result], FORMS["prompts"])}
    skew, groups = found["celeba professions", "difference"], found["celeba age", "difference"]
    value = {
        row.method: row.value for row in result.rows if (row.task, row.metric) == ("celeba professions", "max_skew@50")
    }
    assert skew.gain == pytest.approx(1 - value["difference of the values"] / value["none"])
    value = {m: row.value for (m, metric), row in rows_in(result, "celeba age").items() if metric == "worst_group"}
    none = value["none"]
    assert groups.gain == pytest.approx((value["difference of the values"] - none) / (1 - none))
    assert all(0 <= one.cost < 0.6 for one in found.values())
    chosen = told("prompts", list(found.values())).provenance.settings["chosen"]
    assert set(chosen) == {"all", "celeba professions", "celeba age"}


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")  # texts and images are noise
@pytest.mark.parametrize("kind", FORMS)
def test_what_is_attached_is_what_the_rule_chose(kind: str) -> None:
    chosen = {about.task: about.settings["chosen"]["all"] for about in read("default_choice").provenance}
    assert chosen[kind] == choose(of_models([read(name) for name in TABLES], FORMS[kind]))
    assert chosen[kind] == list(ATTACHED)[list(FORMS).index(kind)]  # the tables mark it
    assert chosen["pipelines"] == "default"
    noise, prompts = torch.Generator().manual_seed(0), load_prompts("professions-gender")
    host = Texts({text: torch.randn(16, generator=noise) for text in prompts.texts}).host
    images = torch.randn(60, 16, generator=noise) if kind == "images" else None
    (form,) = [method for method in compared() if method.name == chosen[kind]]
    by_rule = fit_projection(host, prompts, method=form, reference=images)
    if images is None:  # of noise, texts expect no help: the entry of the table is what would be attached
        assert PRESETS["default", "model"][0] == by_rule.method
        return
    attached = fit_projection(host, prompts, reference=images)
    assert torch.equal(by_rule.matrix(), attached.matrix())
    assert not torch.equal(attached.matrix(), fit_projection(host, prompts, method="cali").matrix())
