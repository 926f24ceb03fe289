"""Test the comparison of methods on generated images in `eval/experiments/generation.py`."""

from eval.experiments.generation import FITS, LEFT_OUT, splits


def test_each_fit_holds_out_other_professions() -> None:
    held_out = [set(prompt_set.held_out_class_names) for prompt_set in splits()]
    assert [len(names) for names in held_out] == [LEFT_OUT] * FITS
    assert not held_out[1] & held_out[2]
    for prompt_set, names in zip(splits(), held_out, strict=True):
        assert len(prompt_set.classes) == len(prompt_set.class_names) == 80
        assert len(prompt_set.variants) == 80
        assert not names & set(prompt_set.class_names)
