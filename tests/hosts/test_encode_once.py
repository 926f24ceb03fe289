"""Test that embeddings from an earlier call are recognised, including the values in them."""

from collections import Counter

import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import debias
from vldebias.errors import VldebiasWarning

OPEN = "A photo of a nurse."
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def encode(pipe, prompt, images=1):
    return pipe.encode_prompt(prompt, "cpu", images, False)[0]


def draw(pipe, embeddings, **call):
    return tiny.draw(pipe, None, prompt_embeds=embeddings, guidance_scale=1.0, **call)


@pytest.mark.parametrize("prompts", [[OPEN] * 6, OPEN])
def test_prompts_encoded_for_n_images_are_balanced_and_recorded(pipe, attachment, prompts):
    embeddings = encode(pipe, prompts, 6 // (len(prompts) if isinstance(prompts, list) else 1))
    encoded = attachment.last_call
    assert encoded.is_encoding
    assert Counter(encoded.values) == {"female": 3, "male": 3}
    draw(pipe, embeddings)
    last_call_record = attachment.last_call
    assert not last_call_record.is_encoding
    assert last_call_record.id != encoded.id
    for name in ("prompts", "written", "values", "reasons", "people", "seed"):
        assert getattr(last_call_record, name) == getattr(encoded, name)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows,
        lambda rows: rows[:],
        lambda rows: rows.clone(),
        lambda rows: torch.cat([rows[:2], rows[2:]]),
        lambda rows: rows.to(torch.bfloat16).float(),
        lambda rows: rows.double().float(),
    ],
)
def test_embeddings_are_recognised_as_views_concatenations_and_casts(pipe, attachment, change):
    embeddings = encode(pipe, [OPEN, "a red car", OPEN, OPEN])
    values = attachment.sampled
    changed = change(embeddings)
    if not torch.equal(changed, embeddings):
        changed = changed.to(torch.bfloat16)
        assert [known is not None for known in attachment.host._known.find(changed)] == [True] * 4
        return
    draw(pipe, changed)
    assert attachment.sampled == values
    draw(pipe, changed[[3, 0]])
    assert attachment.sampled == [values[3], values[0]]


def test_images_of_one_embedding_share_its_value_with_a_warning(pipe, attachment):
    embeddings = encode(pipe, OPEN)
    (value,) = attachment.sampled
    with pytest.warns(VldebiasWarning, match=r"encode_prompt\(\[prompt\] \* images"):
        draw(pipe, embeddings, num_images_per_prompt=3)
    assert attachment.sampled == [value] * 3
    draw(pipe, encode(pipe, "a red car"), num_images_per_prompt=2)
    assert attachment.sampled == [None] * 2


def test_unknown_embeddings_are_recorded_as_unknown(pipe, attachment):
    made = encode(pipe, [OPEN, OPEN])
    values = attachment.sampled
    with pytest.warns(VldebiasWarning, match="their values are unknown"):
        draw(pipe, torch.stack([made[0], made[1] * 1.1]))
    assert attachment.sampled == [values[0], None]
    assert attachment.reasons == [None, "embeddings"]


def test_each_call_is_recorded_with_its_own_encoding(pipe, attachment):
    first = encode(pipe, [OPEN] * 2)
    values = attachment.sampled
    encode(pipe, ["a lady editor"])
    draw(pipe, first)
    assert attachment.sampled == values


def test_edited_embeddings_are_not_edited_again_and_do_not_warn():
    pipe = tiny.sd()
    debias(pipe, "gender", method="cali")
    edited = encode(pipe, OPEN)
    draw(pipe, edited)  # a warning would be an error
    bare = tiny.sd()
    with pytest.warns(VldebiasWarning, match=r"attachment.apply\('sequence'"):
        draw(pipe, encode(bare, OPEN))
