"""Curves of a training run."""

from pathlib import Path

from vldebias.training.curves import write_curves


def test_a_picture_names_the_loss_and_the_main_scores(tmp_path: Path) -> None:
    history = [
        {"step": 0, "loss": 0.5, "zero_shot_accuracy": 0.4},
        {"step": 1, "loss": -0.5, "zero_shot_accuracy": 0.5},
    ]
    before = {"zero_shot_accuracy": 0.3, "recall@10 image->text": 0.2}
    half_way = {"zero_shot_accuracy": 0.6}
    name = write_curves(history, before, half_way, tmp_path, "rince")
    picture = (tmp_path / name).read_text()
    # matplotlib writes each text as a comment above its shapes.
    assert "<!-- loss: rince, which may be negative -->" in picture
    assert "<!-- zero-shot accuracy -->" in picture
    assert "<!-- zero-shot accuracy, half way -->" in picture
    assert "recall@10" not in picture
    write_curves(history[:1], {}, {}, tmp_path, "info_nce")
    picture = (tmp_path / name).read_text()
    assert "<!-- loss: info_nce -->" in picture
    assert "scores on held-out data" not in picture
