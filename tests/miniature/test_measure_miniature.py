import torch

from eval.miniature import measure
from eval.miniature.cards import _table
from eval.miniature.measure import _group_accuracies, _over_seeds
from vldebias.miniature import birds, load_judge, load_pipeline


def test_group_accuracies_of_a_classifier_that_sees_the_background_alone():
    world = birds.sample(200, seed=0, balanced=True)
    features = torch.nn.functional.one_hot(world.background, 2).float()
    values = _group_accuracies(features, torch.eye(2), world)
    assert values["worst group"] == 0
    assert values["average"] == values["gap"] == 0.5
    assert values["landbird on land"] == values["waterbird on water"] == 1


def test_group_accuracies_do_not_depend_on_the_length_of_a_prompt_embedding():
    world = birds.sample(200, seed=0, balanced=True)
    torch.manual_seed(0)
    features, classes = torch.randn(200, 5), torch.randn(2, 5)
    longer = classes * torch.tensor([[7.0], [0.1]])
    assert _group_accuracies(features, classes, world) == _group_accuracies(features, longer, world)


def test_seeds_are_summed_up():
    runs = [{"none": {"x": value}} for value in (0.1, 0.2, 0.6)]
    assert _over_seeds(runs) == {"none": {"x": {"mean": 0.3, "sd": 0.2646, "seeds": [0.1, 0.2, 0.6]}}}


def test_rows_that_measure_other_things_get_another_table():
    cell = {"mean": 0.5, "sd": 0.01}
    text = _table({"none": {"worst": cell}, "orth": {"worst": cell}, "reads": {"species": cell}})
    first, second = text.split("\n\n")
    assert first.splitlines() == ["| | worst |", "|---|---|", "| none | 0.500 (0.010) |", "| orth | 0.500 (0.010) |"]
    assert second.splitlines()[0] == "| | species |"


def test_noise_depends_on_the_seed_and_on_the_place_of_the_image(monkeypatch):
    monkeypatch.setattr(measure, "STEPS", 1)
    pipeline = load_pipeline()
    one, other = (measure._Studio(pipeline, load_judge(), seed).draw(["chef"] * 2, 2) for seed in (3, 4))
    assert one.shape == (4, 3, 64, 64)
    images = torch.cat([one, other])
    distance = torch.cdist(images.flatten(1), images.flatten(1)) + 10 * torch.eye(8)
    assert distance.min() > 0.1
    assert torch.equal(measure._Studio(pipeline, load_judge(), 3).draw(["chef"], 2), one[:2])
