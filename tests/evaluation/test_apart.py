"""A reference beside what is measured: what is in both is left out, what is unlike is told."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from any_method_parts import images

from vldebias.data import Embeddings
from vldebias.errors import InvalidInputError, ReferenceWarning
from vldebias.evaluation import images as image_tasks
from vldebias.evaluation.images import UNLIKE, apart, disjoint


class TestApart:
    def rows(self, n: int, seed: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(seed)
        return torch.randn(n, 32, generator=draw) + 2 * torch.eye(32)[0]

    @pytest.mark.parametrize("n", [10, 50, 500])
    def test_parts_of_one_collection_are_not_apart_on_average(self, n: int) -> None:
        found = [apart(self.rows(n, seed), self.rows(400, seed + 1000)) for seed in range(60)]
        assert abs(float(np.mean(found))) < 0.01
        assert max(found) < UNLIKE + 1 / n

    def test_a_move_is_seen_in_units_of_the_variance(self) -> None:
        move = 32**0.5 * 0.5 * torch.eye(32)[3]  # half of how far images are from their mean
        assert apart(self.rows(500, 1) + move, self.rows(500, 2)) == pytest.approx(0.25, abs=0.03)

    def test_evaluators_warn_of_it_and_of_nothing_else(self) -> None:
        gallery = images()
        turned = replace(images()[np.arange(100)], features=-images().features[:100])
        with pytest.warns(ReferenceWarning, match="reference: its images are unlike those that are measured"):
            disjoint(turned, gallery[np.arange(100, 400)])
        with warnings.catch_warnings():
            warnings.simplefilter("error", ReferenceWarning)
            disjoint(gallery[np.arange(150)], gallery[np.arange(150, 400)])

    def test_blocks_give_what_the_whole_gives(self) -> None:
        """The formula as it is written, of more rows than a block holds, in a narrow cone far from 0."""
        ours, theirs = (1e-3 * self.rows(9000, seed).double() + 5 for seed in (1, 2))
        distance = (ours.mean(0) - theirs.mean(0)).square().sum() / theirs.var(0, correction=0).sum()
        assert apart(ours, theirs) == pytest.approx(float(distance) - 2 / 9000, rel=1e-9)


class TestDisjoint:
    def kept(self, reference: np.ndarray, measured: np.ndarray) -> list[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReferenceWarning)
            kept, counts = disjoint(Embeddings.of(reference), Embeddings.of(measured))
        assert kept is not None
        assert counts["reference images"] == len(kept)
        assert counts["left out of the reference, measured too"] == len(reference) - len(kept)
        return list(kept.ids)

    @pytest.mark.parametrize("hashed", [True, False])
    def test_it_leaves_out_the_rows_of_equal_bytes_whatever_their_hashes(
        self, hashed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not hashed:  # all rows collide, so that the rows themselves decide
            monkeypatch.setattr(image_tasks, "_hashes", lambda rows: np.zeros(len(rows), dtype=np.uint64))
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
