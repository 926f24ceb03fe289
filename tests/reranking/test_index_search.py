"""Test `search`, which re-ranks an index's results to the groups' shares in the whole index."""

from __future__ import annotations

import errno
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import vldebias
from vldebias.errors import (
    InvalidInputError,
    ProjectionMismatchError,
    StorageError,
    SuspectInputWarning,
)
from vldebias.queries import DebiasedQueries
from vldebias.reranking.index import NOBODY, IndexGroups, _digest
from vldebias.reranking.index_search import results_of, search_page

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.AutoDeclinedWarning")
D = 32
N = 4000
SHARE_OF_WOMEN = 0.25
SET = vldebias.make_prompt_set("gender", {"male": ["man"], "female": ["woman"]}, ["pilot", "nurse"])
QUERY = "A photo of a pilot."  # prefers men
STATED = "A photo of a woman who is a pilot."


def vector_of(text: str, seed: int = 0) -> np.ndarray:
    """Return a text's vector, with a direction for gender and one for people."""
    rng = np.random.default_rng([seed, *text.encode()])
    side = 1.0 if "man" in text or "male" in text else 0.1
    if "woman" in text or "female" in text:
        side = -1.0
    people = -0.5 if text in NOBODY else 0.5
    side *= text not in NOBODY
    return 0.2 * rng.normal(size=D) + side * np.eye(D)[0] + people * np.eye(D)[1]


def embed(texts: list[str]) -> np.ndarray:
    return np.stack([vector_of(text) for text in texts]).astype(np.float32)


class Index:
    """An exact index, in which a quarter of the people are women, and some images show nobody."""

    def __init__(self, scenes: float = 0.0, women: float = SHARE_OF_WOMEN, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.is_female = rng.random(N) < women
        self.is_person = rng.random(N) >= scenes
        side = np.where(self.is_female, -1.0, 1.0) * self.is_person
        people = np.where(self.is_person, 1.2, -1.2)
        vectors = 0.4 * rng.normal(size=(N, D)) + side[:, None] * np.eye(D)[0]
        vectors += people[:, None] * np.eye(D)[1]
        self.vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self.asked: list[int] = []

    def call(self, vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        self.asked.append(n)
        scores = self.vectors @ vector
        rows = np.argsort(-scores, kind="stable")[:n]
        return rows, scores[rows], self.vectors[rows]


@pytest.fixture(scope="module")
def groups(queries: DebiasedQueries) -> IndexGroups:
    assert queries.index is not None
    return queries.index


@pytest.fixture
def file(groups: IndexGroups, tmp_path: Path) -> Path:
    """Return a file with the fitted groups."""
    groups.save(tmp_path / "index.safetensors")
    return tmp_path / "index.safetensors"


def save_changed(file: Path, change: Any, *, signed: bool) -> None:
    """Change a saved file; `signed` updates its checksum to match."""
    tensors = load_file(file)
    with safe_open(file, "np") as opened:
        header = dict(opened.metadata())
    change(tensors, header)
    if signed:
        del header["sha256"]
        header["sha256"] = _digest(header, tensors)
    save_file(tensors, file, header)


def test_results_have_the_shares_of_the_index(index: Index, queries: DebiasedQueries) -> None:
    k = 40
    index.asked.clear()
    found = queries.search(index.call, QUERY, k)
    before = index.call(vector_of(QUERY), k)[0]
    assert index.asked == [5 * k, k]
    assert index.is_female[before].mean() < 0.15
    assert abs(index.is_female[np.asarray(found)].mean() - SHARE_OF_WOMEN) <= 0.05
    used, line = str(found.report).splitlines()[:2]
    assert used == (
        "search by gender: predicted without labels; male 72%, female 28% of the collection"
    )
    assert line.startswith("A photo of a pilot.: first 40 by quota, index shares, predicted")


def test_the_recommended_search_warns_of_nothing(index: Index) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        queries = vldebias.debias_queries(embed, SET, reference=index.vectors)
        found = queries.search(index.call, QUERY, 50)
    assert found.report.to_dict()["method"] == "quota"


def test_labels_that_cannot_be_trusted_are_told_before_the_first_search(index: Index) -> None:
    men = index.vectors[~index.is_female]
    with pytest.warns(SuspectInputWarning, match="search keeps the order of the index: .*look"):
        queries = vldebias.debias_queries(embed, SET, reference=men[:500])
    assert "search keeps the order of the index: gender: fewer" in repr(queries)


def test_a_group_without_a_share_needs_no_results(index: Index, groups: IndexGroups) -> None:
    shares = np.array([float(name == "male") for name in groups.names])
    groups = replace(groups, shares=shares, near_shares=np.zeros(2))
    labels = groups.predict(index.vectors)
    men = np.flatnonzero((labels.codes == shares.argmax()) & ~np.asarray(labels.is_near))
    requested = []

    def call(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        requested.append(n)
        scores = index.vectors[men] @ vector
        best = np.argsort(-scores, kind="stable")[:n]
        return men[best], scores[best], index.vectors[men[best]]

    report = search_page(groups, call, vector_of(QUERY), 20, page=1)
    assert len(report.order) == 20
    assert requested == [5 * 20]


def test_a_query_that_states_a_value_is_returned_as_found(
    index: Index, queries: DebiasedQueries
) -> None:
    found = queries.search(index.call, [QUERY, STATED], 20)
    assert found.shape == (2, 20)
    assert found[1].tolist() == index.call(embed([STATED])[0], 20)[0].tolist()
    assert "as found, because the query is stated" in str(found.reports[1])
    assert "fewer than requested" not in str(found.reports[1])
    assert "true shares unknown" in str(found.reports[0])
    assert found.reports[1].short == {}
    assert found.reports[1].to_dict()["target"] == "stated"
    assert found.reports[0].to_dict()["method"] == "quota"


def test_text_ids_and_short_lists_are_padded(index: Index, queries: DebiasedQueries) -> None:
    def call(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        rows, scores, vectors = index.call(vector, 7 if vector[0] > 0 else 10)
        return [f"image {row}" for row in rows], scores.tolist(), vectors.tolist()

    with pytest.warns(SuspectInputWarning, match="1 of 'female' missing in the first 7"):
        found = queries.search(call, [QUERY, STATED], 10)
    assert found[0].tolist()[7:] == [-1, -1, -1]
    assert all(str(key).startswith("image ") for key in found[1])


def test_the_fitted_shares_are_saved_and_refused_for_another_model(
    index: Index, queries: DebiasedQueries, file: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = vldebias.debias_queries(embed, SET, index=file)
    found = again.search(index.call, QUERY, 20)
    assert found.tolist() == queries.search(index.call, QUERY, 20).tolist()

    def other(texts: list[str]) -> np.ndarray:
        return np.stack([vector_of(text, seed=1) for text in texts])

    with pytest.raises(ProjectionMismatchError, match="different model"):
        vldebias.debias_queries(other, SET, index=file)
    ages = vldebias.make_prompt_set("age", {"old": ["elder"], "young": ["youth"]}, ["pilot"])
    with pytest.raises(InvalidInputError, match="but the prompt sets have"):
        vldebias.debias_queries(embed, ages, index=file)
    with pytest.raises(InvalidInputError, match="expected a file from"):
        vldebias.debias_queries(embed, SET, index=tmp_path / "none.safetensors")
    queries.fitted.save_pretrained(tmp_path / "edit")
    (edit_file,) = (tmp_path / "edit").glob("*.safetensors")
    with pytest.raises(InvalidInputError, match="got other tensors"):
        vldebias.debias_queries(embed, SET, index=edit_file)


def test_stored_labels_replace_the_vectors(index: Index, groups: IndexGroups) -> None:
    """Stores that return no vectors may keep the labels under a neutral name."""
    labels = groups.predict(index.vectors)
    stored = [labels.names[code] for code in labels.codes]
    rows, scores, _ = index.call(embed([QUERY])[0], 800)
    shares = groups.share_of_name()
    found = vldebias.rerank(scores, 40, ids=rows, labels=stored, shares=shares)
    assert abs(index.is_female[np.asarray(found)].mean() - SHARE_OF_WOMEN) <= 0.1


def test_padding_and_empty_results_are_no_results(index: Index, queries: DebiasedQueries) -> None:
    def padded(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        rows, scores, vectors = index.call(vector, 30)
        return (
            [*rows, -1, -1],
            [*scores, -3e38, -3e38],
            np.concatenate([vectors, np.zeros((2, D))]),
        )

    with pytest.warns(
        SuspectInputWarning, match=r"the index returned 30 results for n = \d+: \d+ of"
    ):
        found = queries.search(padded, QUERY, 40)
    assert sorted(found.tolist()) == sorted(index.call(embed([QUERY])[0], 30)[0].tolist())
    both = queries.search(lambda vector, n: ([], [], []), [QUERY, STATED], 10)
    assert both.shape == (2, 0)


@pytest.mark.parametrize("k", [None, 0, 2.5])
def test_the_number_of_results_is_checked(index: Index, queries: DebiasedQueries, k: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected a whole number of 1 or more, got"):
        queries.search(index.call, QUERY, k)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ids, scores, vectors: (ids, scores, None), "return vectors too"),
        (lambda ids, scores, vectors: (ids, scores), "expected ids, scores and vectors"),
        (lambda ids, scores, vectors: (ids[:-1], scores, vectors), "got shapes"),
        (lambda ids, scores, vectors: (ids, -scores, vectors), "return ids, scores, vectors, and"),
        (lambda ids, scores, vectors: (scores, ids, vectors), "got ids such as .*; return ids, sc"),
        (lambda ids, scores, vectors: (list(scores), ids, vectors), "got ids such as"),
        (lambda ids, scores, vectors: (ids, ids % 7, vectors), "the scores rise in"),
        (lambda ids, scores, vectors: (ids, scores * np.nan, vectors), "finite"),
        (lambda ids, scores, vectors: (ids, scores, vectors[:, 1:]), "expected the same model"),
    ],
)
def test_other_results_are_rejected(
    index: Index, queries: DebiasedQueries, change: Any, words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        queries.search(lambda vector, n: change(*index.call(vector, n)), QUERY, 10)


def test_search_needs_a_reference(index: Index) -> None:
    with pytest.raises(InvalidInputError, match="pass reference="):
        vldebias.debias_queries(embed, SET).search(index.call, QUERY, 10)


@pytest.mark.filterwarnings("ignore::vldebias.errors.ReferenceWarning")  # the text is noise
def test_images_without_people_keep_their_places_and_do_not_count() -> None:
    mixed = Index(scenes=0.6)
    queries = vldebias.debias_queries(embed, SET, reference=mixed.vectors[:3000])
    assert queries.index is not None
    groups = queries.index.predict(mixed.vectors)
    is_known = groups.codes >= 0
    assert (is_known == mixed.is_person).mean() > 0.95
    share = dict(zip(groups.names, queries.index.shares, strict=True))["female"]
    assert share == pytest.approx(SHARE_OF_WOMEN, abs=0.05)
    query = embed([QUERY])[0]
    before = mixed.call(query, 40)[0]
    found = np.asarray(queries.search(mixed.call, QUERY, 40))
    places = ~is_known[before]
    assert places.any()
    assert (found[places] == before[places]).all()
    people = found[mixed.is_person[found]]
    assert abs(mixed.is_female[people].mean() - SHARE_OF_WOMEN) <= 0.1


def test_shares_behind_a_filter_are_estimated_on_vectors_with_this_filter() -> None:
    index = Index(women=0.5)
    queries = vldebias.debias_queries(embed, SET, reference=index.vectors[:2000])
    assert queries.index is not None
    rng = np.random.default_rng(1)
    rows = np.flatnonzero(index.is_female ^ (rng.random(N) < 0.85))  # 15% women
    listed = index.vectors[rng.permutation(rows)[:400]]

    def call(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        scores = index.vectors[rows] @ vector
        best = np.argsort(-scores, kind="stable")[:n]
        return rows[best], scores[best], index.vectors[rows[best]]

    within = queries.index.within(listed)
    shares = []
    for groups in (None, within):
        found = queries.search(call, QUERY, 60, index=groups)
        shares.append(index.is_female[np.asarray(found)].mean())
    assert shares[0] > 0.35  # those of the index
    assert shares[1] == pytest.approx(0.15, abs=0.07)
    with pytest.raises(InvalidInputError, match="none of the 1 vectors shows a person"):
        queries.index.within(np.full((1, D), np.nan))


def test_checked_results_give_intervals(index: Index, queries: DebiasedQueries) -> None:
    found = queries.search(index.call, QUERY, 40)
    true = {key: "female" if index.is_female[key] else "male" for key in found.to_check(30, seed=0)}
    report = queries.search(index.call, QUERY, 40, checked=true).report
    assert report.expected is not None
    share = index.is_female[np.asarray(found)].mean()
    _, low, high = report.expected["female"]
    assert low <= share <= high
    assert "30 candidates were checked" in str(report)
    with pytest.raises(InvalidInputError, match="got group 'woman'"):
        queries.search(index.call, QUERY, 40, checked={int(found[0]): "woman"})


def test_methods_that_were_removed_say_what_to_do(groups: Any, index: Index) -> None:
    with pytest.raises(AttributeError, match=r"'calibrated'; labels by hand .* as checked="):
        groups.calibrated(index.vectors, [])
    with pytest.raises(AttributeError, match=r"no attribute 'sample'$"):
        _ = groups.sample
    with pytest.raises(TypeError, match="'shares'; a search takes the shares of its labels"):
        groups.within(index.vectors, shares={"male": 1.0})


def test_more_results_are_read_in_a_few_calls_until_a_rare_group_can_fill_its_places() -> None:
    rare = Index(women=0.06)
    queries = vldebias.debias_queries(embed, SET, method="difference", reference=rare.vectors)
    rare.asked.clear()
    found = queries.search(rare.call, QUERY, 10)
    assert rare.asked[0] == 50
    doublings = [float(np.log2(n / 50)) for n in rare.asked]
    assert doublings == sorted(set(doublings))
    assert all(number.is_integer() for number in doublings)
    assert 2 <= len(rare.asked) <= 4
    assert found.report.short == {}
    assert "female: with a share under 10%" in str(found.report)


@pytest.mark.parametrize("broken", [np.nan, np.inf, 0.0])
def test_a_broken_vector_is_unknown_and_keeps_its_place(
    index: Index, queries: DebiasedQueries, broken: float
) -> None:
    def call(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        rows, scores, vectors = index.call(vector, n)
        vectors = vectors.astype(np.float32)
        vectors[3] = broken
        return rows, scores, vectors

    with pytest.warns(SuspectInputWarning, match="1 of [0-9]+ vectors have no direction") as caught:
        found = queries.search(call, [QUERY, QUERY], 20)
    row = index.call(embed([QUERY])[0], 20)[0][3]
    assert len(caught) == 1
    assert f"the first is that of id {row};" in str(caught[0].message)
    assert found[0, 3] == row
    assert found.report.unknown == 1
    assert str(caught[0].message) in str(found.report)
    whole = np.where(np.arange(N)[:, None] == 7, broken, index.vectors)
    scores = index.vectors @ vector_of(QUERY)
    place = int((scores > scores[7]).sum())
    with pytest.warns(SuspectInputWarning, match="1 of 4,000 rows have no .* first in row 7;"):
        positions = vldebias.rerank(scores, features=whole, index=queries.index)
    assert positions[place] == 7


def test_vectors_of_other_results_are_told(index: Index, queries: DebiasedQueries) -> None:
    rng = np.random.default_rng(0)

    def shuffled(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        rows, scores, vectors = index.call(vector, n)
        return rows, scores, rng.permutation(vectors)

    def other_model(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        rows, scores, vectors = index.call(vector, n)
        return rows, scores, rng.normal(size=vectors.shape)

    for call in (shuffled, other_model):
        with pytest.warns(SuspectInputWarning, match="scores do not follow the vectors"):
            queries.search(call, QUERY, 20)

    # Scores may be cosines, products or distances, of vectors of any length.
    lengths = rng.uniform(0.5, 2.0, N)
    for measure in ("cosine", "product", "distance"):

        def call(vector: np.ndarray, n: int, measure: str = measure) -> tuple[Any, Any, Any]:
            vectors = index.vectors * lengths[:, None]
            scores = {
                "cosine": index.vectors @ vector,
                "product": vectors @ vector,
                "distance": -np.linalg.norm(vectors - vector, axis=1),
            }[measure]
            rows = np.argsort(-scores)[:n]
            return rows, scores[rows], vectors[rows]

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            queries.search(call, QUERY, 20)


@pytest.mark.filterwarnings("ignore::vldebias.errors.ReferenceWarning")  # the text is noise
def test_labels_that_cannot_be_trusted_are_not_used(index: Index) -> None:
    def vague(texts: list[str]) -> np.ndarray:
        """Embed every wording of a value in another direction."""
        rng = np.random.default_rng(1)
        noise = {text: rng.normal(size=D) for text in sorted(texts)}
        return np.stack(
            [vector_of(text) * np.r_[0.0, np.ones(D - 1)] + noise[text] for text in texts]
        )

    with pytest.warns(SuspectInputWarning, match="search keeps the order of the index"):
        queries = vldebias.debias_queries(vague, SET, reference=index.vectors[:2000])
    assert queries.index is not None
    assert queries.index.doubt.startswith("gender: image and text features look unaligned")
    found = queries.search(index.call, QUERY, 20)
    assert found.tolist() == index.call(vague([QUERY])[0], 20)[0].tolist()
    assert found.report.about[:2] == ("none", "unreliable labels")
    assert "as found, because gender: image and text features look unaligned" in str(found.report)


def test_first_results_take_the_shares_of_the_saved_index(
    index: Index, groups: IndexGroups, file: Path
) -> None:
    rows, scores, vectors = index.call(embed([QUERY])[0], 400)
    shares = []
    for how in ({"attribute": SET, "model": embed_table()}, {"index": file}):
        found = vldebias.rerank(scores, 40, features=vectors, **how)
        shares.append(index.is_female[rows[np.asarray(found)]].mean())
        is_pool = "the shares are those of these 400 candidates" in str(found.report)
        assert is_pool == ("model" in how)
    assert shares[0] < shares[1]
    assert shares[1] == pytest.approx(SHARE_OF_WOMEN, abs=0.1)
    labels = np.where(index.is_female[rows], "female", "male")
    found = vldebias.rerank(scores, 40, labels=labels, index=groups)
    assert index.is_female[rows[np.asarray(found)]].mean() == pytest.approx(0.25, abs=0.05)
    assert found.report.about[1] == "index shares"
    with pytest.raises(InvalidInputError, match="expected the same names"):
        vldebias.rerank(scores, 40, labels=["f"] * 399 + ["m"], index=file)
    with pytest.raises(InvalidInputError, match="got shares='even' and index="):
        vldebias.rerank(scores, 40, features=vectors, index=file, shares="even")


def embed_table() -> dict[str, np.ndarray]:
    return {text: vector_of(text) for text in (*SET.texts, *NOBODY)}


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, header: tensors["shares"].__iadd__(0.5),
        lambda tensors, header: tensors.pop("0.borders"),
        lambda tensors, header: header.update(names=header["names"].replace("female", "woman")),
        lambda tensors, header: header.pop("sha256"),
    ],
)
def test_a_changed_file_is_refused(file: Path, change: Any) -> None:
    save_changed(file, change, signed=False)
    with pytest.raises(InvalidInputError, match="were changed after they were saved"):
        vldebias.debias_queries(embed, SET, index=file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InvalidInputError, match="but reading it failed"):
        vldebias.debias_queries(embed, SET, index=file)


@pytest.mark.parametrize(
    "change",
    [
        {"shares": np.array([2.0, 2.0])},
        {"shares": np.array([np.nan, 1.0])},
        {"shares": np.ones(3) / 3},
        {"near_shares": np.array([0.5, np.nan])},
        {"person": np.full(D, np.inf)},
        {"person": np.ones(3)},
    ],
)
def test_groups_with_invalid_numbers_are_refused(groups: IndexGroups, change: Any) -> None:
    with pytest.raises(InvalidInputError, match="shares that sum to 1"):
        replace(groups, **change)


def test_a_full_disk_keeps_the_old_file(
    groups: IndexGroups, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()

    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="cannot write"):
        groups.save(file)
    assert file.read_bytes() == before


def test_few_results_of_an_approximate_index_are_counted(
    index: Index, queries: DebiasedQueries
) -> None:
    def few(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        rows, scores, vectors = index.call(vector, n)
        return rows[:6], scores[:6], vectors[:6]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SuspectInputWarning)
        report = queries.search(few, QUERY, 20).report
        enough = queries.search(index.call, QUERY, 20).report
    assert "the index returned 6 results for n = 100" in report.notes
    assert not enough.ended


def test_repeated_ids_and_missing_vectors_are_rejected(
    index: Index, queries: DebiasedQueries
) -> None:
    def repeated(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        rows, scores, vectors = index.call(vector, n)
        return np.where(np.arange(len(rows)) == 1, rows[0], rows), scores, vectors

    with pytest.raises(InvalidInputError, match=r"only 24 different ids, such as [0-9]+ 2 times"):
        queries.search(repeated, QUERY, 5)
    for lost in (slice(None), slice(3, 4)):

        def forgotten(vector: np.ndarray, n: int, lost: slice = lost) -> tuple[Any, Any, Any]:
            rows, scores, vectors = index.call(vector, n)
            listed: list[Any] = list(vectors)
            listed[lost] = [None] * len(listed[lost])
            return rows, scores, listed

        with pytest.raises(InvalidInputError, match=r"results have no vector .*return vectors too"):
            queries.search(forgotten, QUERY, 5)


def test_large_and_mixed_ids_are_returned_unchanged(index: Index, queries: DebiasedQueries) -> None:
    for make in (
        lambda row: 2**63 + row,
        lambda row: 2**70 + row,
        lambda row: (f"a{row}", row)[row % 2],
    ):

        def call(vector: np.ndarray, n: int, make: Any = make) -> tuple[Any, Any, Any]:
            rows, scores, vectors = index.call(vector, n)
            return [make(int(row)) for row in rows], scores, vectors

        found = queries.search(call, QUERY, 5)
        rows = queries.search(index.call, QUERY, 5)
        assert found.tolist() == [make(int(row)) for row in rows]

    def unhashable(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        rows, scores, vectors = index.call(vector, n)
        return [{"id": int(row)} for row in rows], scores, vectors

    with pytest.raises(InvalidInputError, match="ids: expected integers or strings"):
        queries.search(unhashable, QUERY, 5)


def test_stated_queries_are_re_ranked_on_request(index: Index) -> None:
    queries = vldebias.debias_queries(embed, SET, reference=index.vectors[:2000], keep_stated=False)
    found = queries.search(index.call, [QUERY, STATED], 20)
    for report in found.reports:
        assert report.to_dict()["method"] == "quota"
        assert report.to_dict()["target"] == "index shares"


def test_saved_groups_are_refused_for_another_width(groups: IndexGroups, tmp_path: Path) -> None:
    file = tmp_path / "groups.safetensors"
    replace(groups, fingerprint=None).save(file)
    assert vldebias.debias_queries(embed, SET, index=file).index is not None

    def wide(texts: list[str]) -> np.ndarray:
        return np.pad(embed(texts), ((0, 0), (0, 8)))

    with pytest.raises(ProjectionMismatchError, match="different model"):
        vldebias.debias_queries(wide, SET, index=file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, header: header.pop("names"), "names: missing"),
        (lambda tensors, header: header.update(names="{"), "names: Invalid JSON"),
        (lambda tensors, header: header.update(names="[]"), "at least two different names"),
        (lambda tensors, header: header.update(names='[["male", "male"]]'), "two different names"),
        (lambda tensors, header: header.update(fingerprint="[1]"), "fingerprint: "),
        (lambda tensors, header: header.pop("doubt"), "doubt: missing"),
        (lambda tensors, header: tensors.pop("0.borders"), "got the tensors"),
        (lambda tensors, header: tensors.update(x=np.zeros(3)), "got the tensors"),
        (lambda tensors, header: tensors["0.texts"].__imul__(2), "expected unit texts"),
        (lambda tensors, header: tensors["near_shares"].fill(2), "expected unit texts"),
        (lambda tensors, header: tensors.update(person=np.full(3, 1e300)), "expected unit texts"),
    ],
)
def test_a_file_of_a_stranger_with_a_right_checksum_is_refused_in_words(
    file: Path, change: Any, message: str
) -> None:
    save_changed(file, change, signed=True)
    with pytest.raises(InvalidInputError, match=message):
        vldebias.debias_queries(embed, SET, index=file)


def test_the_number_that_a_store_refuses_is_named(index: Index, queries: DebiasedQueries) -> None:
    def limited(vector: Any, n: int) -> Any:
        if n > 50:
            raise RuntimeError("too many")
        return index.call(vector, n)

    with pytest.raises(InvalidInputError, match=r"asked for 100 results.*too many.*return fewer"):
        queries.search(limited, QUERY, 20)

    def offline(vector: Any, n: int) -> Any:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        queries.search(offline, QUERY, 20)


def test_no_more_results_are_read_once_each_part_can_fill_its_places(
    index: Index, groups: IndexGroups
) -> None:
    groups = replace(groups, shares=np.full(2, 0.5), near_shares=np.full(2, 0.5))
    labels = groups.predict(index.vectors)
    parts = labels.codes + 2 * np.asarray(labels.is_near)
    # Of 20 places, each group needs five of either part, and one more because of rounding.
    rows = np.concatenate([np.flatnonzero(parts == part)[:n] for part, n in enumerate([7, 43] * 2)])
    requested = []

    def call(vector: np.ndarray, n: int) -> tuple[Any, Any, Any]:
        requested.append(n)
        return rows[:n], np.linspace(1, 0, len(rows))[:n], index.vectors[rows[:n]]

    search_page(groups, call, vector_of(QUERY), 20, page=1)
    assert requested == [5 * 20]


def test_a_few_results_out_of_order_are_sorted_and_many_are_refused() -> None:
    def found(step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores = np.linspace(1, 0.1, 41)
        for place in range(0, 40, step):
            scores[[place, place + 1]] = scores[[place + 1, place]]
        return np.arange(41), scores, np.eye(41)

    ids, scores, _ = results_of(found(20), 41)
    assert (np.diff(scores) < 0).all()
    assert ids[:3].tolist() == [1, 0, 2]
    with pytest.raises(InvalidInputError, match="the scores rise in 8 of 40 places"):
        results_of(found(5), 41)
