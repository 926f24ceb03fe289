"""Test methods that learn from labelled images, and image edits, in every evaluator: labels, sides,
cost."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.study.any_method_parts import GENDER, part, texts
from vldebias.data import Embeddings
from vldebias.errors import InvalidInputError
from vldebias.methods import EditMethod, Need, Problem, get_edit_method, get_method, load_edit
from vldebias.projection.edit import Edit
from vldebias.study import Result
from vldebias.study.evaluating import evaluate
from vldebias.study.tasks.images import NOT_MEASURED, disjoint

pytestmark = [
    pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning"),
    pytest.mark.usefixtures("no_charts"),
]


class ZeroShotLabels(EditMethod):
    """A method that uses the model's zero-shot labels even if true labels exist."""

    def __init__(self, method: str) -> None:
        self.method = get_edit_method(method)
        declaration = self.method.declaration
        self.declaration = replace(
            declaration,
            name=f"{declaration.name}, zero-shot labels",
            title=f"{declaration.title}, zero-shot labels",
            needs=declaration.needs - {Need.LABELS} | {Need.IMAGES},
        )

    def fit(self, problem: Problem, role: str) -> Edit:
        blind = replace(problem, reference=replace(problem.reference, labels={}))
        return self.method.fit(blind, role).with_provenance(uses_images=True, labels="zero-shot")


METHODS = ("leace", "spd", "roboshot", "bend-vlm", ZeroShotLabels("leace"))


@pytest.fixture(scope="module")
def result() -> Result:
    gallery = part("test")
    reference = part("reference")
    settings = {
        "reference": reference.features,
        "reference_labels": {"sex": reference.column("gender")},
        "resamples": 20,
    }
    settings |= {
        "attribute": {"gender": GENDER},
        "labels": {"gender": gallery.column("gender")},
        "k": 20,
    }
    return evaluate(texts(), gallery.features, methods=METHODS, **settings)


def test_rows_distinguish_true_from_zero_shot_labels(result: Result) -> None:
    skew = {
        row.method: row for row in result.rows if row.metric == "max_skew@20" and not row.subset
    }
    assert {name for name, row in skew.items() if row.uses_labels} == {"leace", "spd", "bend-vlm"}
    assert skew["none"].value > 0.5 > max(skew[name].value for name in ("leace", "bend-vlm"))
    (protocol,) = result.provenance
    assert [protocol.methods[name]["labels"] for name in ("leace", "leace, zero-shot labels")] == [
        "given",
        "zero-shot",
    ]
    assert (protocol.methods["bend-vlm"]["side"], protocol.n["reference images"]) == ("text", 100)


def test_an_image_edit_changes_image_cosines_but_not_query_cosines(
    result: Result,
) -> None:
    moved = {row.method: row.value for row in result.rows if row.metric == "image_cosine"}
    assert (
        result.row("retrieval gender", "image_cosine", "leace").change == (moved["leace"] - 1,) * 3
    )
    assert set(moved) == {"leace", "spd", "roboshot", "leace, zero-shot labels"}
    assert all(0 < value < 1 for value in moved.values())
    assert result.row("retrieval gender", "query_cosine", "leace").value == pytest.approx(1.0)
    assert result.row("retrieval gender", "query_cosine", "bend-vlm").value < 0.99


def test_groups_support_them_and_a_saved_edit_gives_the_same_figures(tmp_path: Path) -> None:
    gallery = part("test")
    reference = part("reference")
    problem = Problem(texts(), GENDER, reference=reference)
    assert set(problem.reference.labels) == {"job", "gender", "split"}
    edit = load_edit(problem.fit("leace", "text").save_pretrained(tmp_path))
    assert (edit.side, edit.provenance.labels) == ("image", "given")
    result = evaluate(
        texts(),
        gallery,
        attribute=GENDER,
        task="groups",
        label="job",
        spurious="gender",
        resamples=20,
        methods={"leace": get_method("leace"), "saved": edit},
        reference=reference,
    )
    for metric in ("worst_group", "average"):
        rows = [result.row("groups", metric, name) for name in ("leace", "saved")]
        assert rows[0].value == rows[1].value
        assert all(row.uses_labels for row in rows)


def test_gallery_rows_are_excluded_from_a_reference_which_needs_other_rows() -> None:
    rng = np.random.default_rng(0)
    reference, measured = (rng.normal(size=(n, 6)).astype(np.float32) for n in (60, 50))
    measured[10:20] = measured[0]
    reference[[3, 7, 59]] = measured[[0, 49, 12]]
    # They are equal except for one number, so this is a different image.
    reference[5] = measured[1]
    reference[5, 0] += np.float32(1e-3)
    kept, counts = disjoint(Embeddings.from_arrays(reference), Embeddings.from_arrays(measured))
    assert list(kept.ids) == [str(i) for i in range(60) if i not in (3, 7, 59)]
    assert counts == {"reference images": 57, "left out of the reference, measured too": 3}
    with pytest.raises(InvalidInputError, match="20"):
        disjoint(Embeddings.from_arrays(measured[:20]), Embeddings.from_arrays(measured))


def test_the_gallery_can_be_its_own_reference_without_labels() -> None:
    rows = np.random.default_rng(1).normal(size=(20, 4))
    gallery = Embeddings.from_arrays(rows, labels={"gender": ["a", "b"] * 10})
    kept, counts = disjoint(gallery, gallery, methods=["equalise", "cali"])
    assert np.array_equal(kept.features, gallery.features)
    assert kept.labels == {}
    assert counts == {"reference images": 20, "of the reference, measured too": 20}
    with pytest.raises(InvalidInputError, match="leace would learn from their labels"):
        disjoint(gallery, gallery, methods=["equalise", "leace"])
    # It then uses zero-shot labels.
    blind, _ = disjoint(Embeddings.from_arrays(rows), gallery, methods=["leace"])
    assert blind is not None


@pytest.mark.parametrize(("n_labelled", "n_measured"), [(60, 240), (300, 150)])
def test_labelled_images_of_a_measured_folder_are_used_and_left_out(
    n_labelled: int, n_measured: int
) -> None:
    gallery = part("test")
    column = gallery.column("job")
    jobs = [column.names[code] for code in column.codes]
    # Every job has labelled images: rows are sorted by job, and every nth of them is labelled.
    order = np.argsort(column.codes, kind="stable")[:: len(jobs) // n_labelled]
    known = ["" for _ in jobs]
    for row in order[:n_labelled]:
        known[row] = jobs[row]
    settings = {
        "attribute": GENDER,
        "task": "groups",
        "label": "job",
        "spurious": "gender",
        "labels": {"job": jobs, "gender": gallery.column("gender")},
        "reference": gallery.features,
        "resamples": 20,
    }
    labels = {"class": known}
    used = evaluate(
        texts(), gallery.features, methods=["default"], reference_labels=labels, **settings
    )
    (protocol, *_) = used.provenance
    assert protocol.n["images"] == n_measured
    assert protocol.n[NOT_MEASURED] == len(jobs) - n_measured
    reason = protocol.methods["default+reference"]["choice"]["reason"]
    assert f"each of {len(jobs) - n_measured} labelled images left out" in reason
    # A method that needs labels of the attribute would learn from the images that are measured.
    with pytest.raises(InvalidInputError, match="all of them are measured"):
        evaluate(texts(), gallery.features, methods=["leace"], reference_labels=labels, **settings)
