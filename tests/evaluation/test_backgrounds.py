"""Animals and backgrounds: the judge reads the scene and not the bird, a tiny pipeline goes through all of it.

The drawing is a pipeline of random weights, which takes no time, and the judge is tried on rendered birds, whose
backgrounds are known.
"""

import sys
from pathlib import Path

import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import sd

from vldebias.errors import InvalidInputError
from vldebias.evaluation.backgrounds import background_judge, subject_prompts
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.generation import GenerationTask
from vldebias.evaluation.judges import decide
from vldebias.evaluation.variants import Variant
from vldebias.miniature import birds, load_clip
from vldebias.prompts import PromptSet, load_prompts

ANIMALS = ("cat", "dog", "crow")
TINY = PromptSet(
    "tiny-backgrounds",
    groups=tuple(
        (f"a photo of a {a} with water background", f"a photo of a {a} with land background") for a in ANIMALS
    ),
    classes=tuple(f"a photo of a {animal}" for animal in ANIMALS),
    class_names=ANIMALS,
    attributes={"water": ("water",), "land": ("land",)},
    templates=("a photo of a {concept} with {attribute} background",),
    stated_words=("water background", "land background"),
)
SCENES = {
    "water": ("ocean", "lake", "port"),
    "land": ("forest", "meadow", "mountain"),
}
SMALL = {"images": 3, "steps": 1, "guidance": 3.0, "options": {"height": 16, "width": 16}, "resamples": 30}
SMALL |= {"name": "backgrounds", "attributes": ["background"], "variants": {"cali": Variant()}, "noun": "animals"}
SMALL |= {"prompts": TINY, "subjects": ["waterbird"], "concepts": "unseen"}


@pytest.fixture(scope="module")
def clip():
    return load_clip()


# ---- the judge -------------------------------------------------------------------------------------------------


def test_the_judge_reads_the_background_whatever_bird_is_before_it(clip) -> None:
    world = birds.sample(240, seed=5, balanced=True)
    images = [Image.fromarray((x * 255).byte().permute(1, 2, 0).numpy()) for x in world.images]
    judge = background_judge(*clip, scenes=SCENES)
    assert judge.names["background"] == ("water", "land")
    labels = decide(judge.predict(images)["background"], judge.names["background"], 0.6)
    water, told = world.background.numpy() == 1, labels.known
    right = (labels.codes == 0) == water
    assert told.mean() > 0.4
    for bird in (0, 1):  # landbirds and waterbirds alike, in front of either background
        for place in (False, True):
            assert right[told & (world.label.numpy() == bird) & (water == place)].mean() > 0.8


def test_the_judge_knows_the_subject(clip) -> None:
    judge = background_judge(*clip, subjects=("waterbird", "landbird"), others=("forest",))
    assert judge.names["animal"] == ("waterbird", "landbird", "forest")
    assert judge.fingerprint != background_judge(*clip).fingerprint


@pytest.mark.parametrize("subjects", [(), ("dog",)])
def test_judge_errors(clip, subjects: tuple) -> None:
    with pytest.raises(InvalidInputError, match="judge: expected subjects and other things to tell them from, got"):
        background_judge(*clip, subjects=subjects)


# ---- the prompts -----------------------------------------------------------------------------------------------


def test_the_prompts_are_those_of_the_paper() -> None:
    prompts = subject_prompts(("waterbird", "owlet"))
    assert prompts.held_out_classes == ("a photo of a waterbird", "a photo of an owlet")
    assert prompts.held_out_pairs[0] == (
        "a photo of a waterbird with water background",
        "a photo of a waterbird with land background",
    )
    fitted = load_prompts("backgrounds")
    assert prompts.pairs == fitted.pairs
    assert prompts.name == "backgrounds, waterbird, owlet"
    assert prompts.hash != fitted.hash


@pytest.mark.parametrize(
    ("subjects", "text"),
    [
        ((), r"subjects: expected different animals that 'backgrounds' does not fit on, got \[\]"),
        (("heron", "waterbird"), r"got \['heron', 'waterbird'\]; it fits on \['heron'\]"),
        (("waterbird", "waterbird"), "expected different animals"),
    ],
)
def test_prompt_errors(subjects: tuple, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        subject_prompts(subjects)


# ---- a pipeline ------------------------------------------------------------------------------------------------


def figures_of(parts) -> dict:
    return {(f.task, f.metric, f.method, f.subset): f for part in parts for f in part.rows}


def test_a_tiny_pipeline_from_end_to_end(clip, tmp_path: Path) -> None:
    subjects = ("waterbird", "landbird")
    judge = background_judge(*clip, subjects=subjects)
    parts = GenerationTask(**SMALL | {"subjects": subjects, "pair_table": True}).measure(tmp_path, judge, pipe=sd())
    found = figures_of(parts)
    for method in ("none", "cali"):
        assert 0 <= found["backgrounds background", "discrepancy", method, "unseen animals"].value <= 0.5**0.5
        assert ("backgrounds background", "recognised", method, "unseen animals") in found
        assert ("backgrounds background", "share", method, "waterbird: water") in found
    pairs = [f for (task, metric, *_), f in found.items() if task == "backgrounds pairs" and f.method == "cali"]
    assert pairs
    assert all(f.change[0] < 0 for f in pairs)  # the projection brings the pairs of unseen birds together
    assert all(part.provenance.prompts == "tiny-backgrounds, waterbird, landbird" for part in parts)
    cali = parts[0].provenance.methods["cali"]
    assert (cali["method"], cali["lam"], list(cali["sets"])) == ("cali", 500, [TINY.name])  # as in the paper
    drawn = DrawnSet.open(tmp_path)
    assert drawn.missing == []
    assert {i.prompt for i in drawn.images if i.stated is None} == {"a photo of a waterbird", "a photo of a landbird"}
