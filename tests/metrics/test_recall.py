"""Where the first relevant item stands: against torchmetrics and a sort."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.retrieval import RetrievalHitRate

from vldebias.errors import InvalidInputError
from vldebias.metrics import rankings as module
from vldebias.metrics.rankings import first_hits

laws = settings(max_examples=50, deadline=None, derandomize=True)


def random_problem(seed: int, q: int, n: int, codes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    items = torch.randint(codes, (n,), generator=generator)
    asked = items[torch.randint(n, (q,), generator=generator)]  # a code that some item has
    return torch.randn(q, 4, generator=generator), torch.randn(n, 4, generator=generator), asked, items


@pytest.mark.parametrize("k", [1, 3, 10])
def test_recall_agrees_with_torchmetrics(k: int) -> None:
    queries, items, asked, codes = random_problem(0, 40, 60, 15)
    metric = RetrievalHitRate(top_k=k)
    scores, target = queries @ items.T, asked[:, None] == codes
    rows = torch.arange(40)[:, None].expand(40, 60)
    expected = metric(scores.flatten(), target.flatten(), indexes=rows.flatten())
    found = (first_hits(queries, items, asked, codes) < k).float().mean()
    assert found == pytest.approx(float(expected))
    assert 0 < found < 1


@laws
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 12), st.integers(1, 5))
def test_ranks_agree_with_a_sort_ties_included(seed: int, q: int, n: int, codes: int) -> None:
    queries, items, asked, of_items = random_problem(seed, q, n, codes)
    queries, items = queries.round(), items.round()  # many ties
    found = first_hits(queries, items, asked, of_items).tolist()
    for i, (row, code) in enumerate(zip(queries @ items.T, asked, strict=True)):
        order = sorted(range(n), key=lambda j: (-float(row[j]), j))
        assert found[i] == next(place for place, j in enumerate(order) if of_items[j] == code)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(1, 50, 30, 10)
    whole = first_hits(*problem)
    monkeypatch.setattr(module, "_SCORES", 30 * 7)
    assert torch.equal(first_hits(*problem), whole)


def test_errors() -> None:
    queries, items, asked, codes = random_problem(2, 4, 6, 3)
    with pytest.raises(InvalidInputError, match=r"expected \(q, d\) and \(n, d\), got \(4, 4\) and \(6, 3\)"):
        first_hits(queries, items[:, :3], asked, codes)
    with pytest.raises(InvalidInputError, match=r"one per query \(4\) and item \(6\), got \(3,\) and \(6,\)"):
        first_hits(queries, items, asked[:3], codes)
    with pytest.raises(InvalidInputError, match="no item is relevant to 1 of 4 queries"):
        first_hits(queries, items, torch.tensor([99, *asked[1:]]), codes)
