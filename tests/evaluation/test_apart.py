"""A reference beside what is measured: what is in both is left out."""

import numpy as np
import pytest

from vldebias.data import Embeddings
from vldebias.errors import InvalidInputError
from vldebias.evaluation.images import disjoint


class TestDisjoint:
    def kept(self, reference: np.ndarray, measured: np.ndarray) -> list[str]:
        kept, counts = disjoint(Embeddings.of(reference), Embeddings.of(measured))
        assert kept is not None
        assert counts["reference images"] == len(kept)
        assert counts["left out of the reference, measured too"] == len(reference) - len(kept)
        return list(kept.ids)

    def test_it_leaves_out_the_rows_of_equal_bytes(self) -> None:
        rng = np.random.default_rng(0)
        reference, measured = (rng.normal(size=(n, 6)).astype(np.float32) for n in (60, 50))
        measured[10:20] = measured[0]
        reference[[3, 7, 59]] = measured[[0, 49, 12]]
        reference[5] = measured[1]
        reference[5, 0] = np.nextafter(reference[5, 0], np.float32(9)) + np.float32(1e-3)
        held = {row.tobytes() for row in Embeddings.of(measured).normalised().numpy()}
        expected = [
            str(i) for i, row in enumerate(Embeddings.of(reference).normalised()) if row.numpy().tobytes() not in held
        ]
        assert self.kept(reference, measured) == expected
        assert not {"3", "7", "59"} & set(expected)
        assert len(expected) == 57

    def test_a_reference_that_is_measured_whole_is_refused(self) -> None:
        rows = np.random.default_rng(1).normal(size=(20, 4))
        with pytest.raises(InvalidInputError, match="all 20 images are among those that are measured"):
            disjoint(Embeddings.of(rows), Embeddings.of(np.concatenate([rows, rows])))

    def test_the_gallery_itself_is_a_reference_without_its_labels(self) -> None:
        rows = np.random.default_rng(1).normal(size=(20, 4))
        gallery = Embeddings.of(rows, labels={"gender": ["a", "b"] * 10})
        kept, counts = disjoint(gallery, gallery, methods=["equalise", "cali"])
        assert kept is not None
        assert np.array_equal(kept.features, gallery.features)
        assert not kept.labels
        assert counts == {"reference images": 20, "of the reference, measured too": 20}
        with pytest.raises(InvalidInputError, match="and leace would learn from their labels"):
            disjoint(gallery, gallery, methods=["equalise", "leace"])
        blind, _ = disjoint(Embeddings.of(rows), gallery, methods=["leace"])  # which then reads zero-shot ones
        assert blind is not None
