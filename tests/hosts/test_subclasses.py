"""Test that a subclass whose `__call__` calls its base class is handled like the base class, or
rejected."""

import inspect
from functools import partial

import diffusers
import diffusers_tiny as tiny
import pytest
import torch
from diffusers_tiny import CASES, classic_classes

from vldebias.api import debias
from vldebias.errors import UnsupportedHostError
from vldebias.hosts.pipelines.source import source_of
from vldebias.methods import Balanced

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*trust_remote_code.*", "ignore:.*LoraLoaderMixin.*:FutureWarning"
)


def by_super(kind):
    class Sub(kind):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

    return Sub


def by_super_of_two_arguments(kind):
    class Sub(kind):
        def __call__(self, *args, **kwargs):
            return super(Sub, self).__call__(*args, **kwargs)  # noqa: UP008

    return Sub


class ByName(diffusers.FluxPipeline):
    def __call__(self, *args, **kwargs):
        return diffusers.FluxPipeline.__call__(self, *args, **kwargs)


def read(kind):
    try:
        return source_of(kind)
    except UnsupportedHostError:
        return None


@pytest.mark.slow
def test_a_subclass_of_each_class_is_handled_like_the_class():
    kinds = classic_classes()
    assert len(kinds) > 50
    for kind in kinds.values():
        expected = read(kind)
        assert read(by_super(kind)) == expected, kind
        assert read(by_super_of_two_arguments(kind)) == expected, kind
        assert read(by_super(by_super(kind))) == expected, kind


@pytest.mark.parametrize("name", [*tiny.FAMILIES, "QwenImage"])
def test_a_subclass_generates_the_pictures_of_its_family(name):
    if name in tiny.FAMILIES:
        make, call = tiny.FAMILIES[name]
    else:
        make = partial(CASES[name].make, is_complete=True)
        call = None
    prompts = ["A photo of a nurse."] * 2
    pictures = []
    values = []
    for wrap in (lambda kind: kind, by_super):
        pipe = make()
        kind = type(pipe)
        pipe.__class__ = wrap(kind)
        if name == "QwenImage" and type(pipe) is not kind:
            # The helper that calls it inspects its parameters.
            type(pipe).__call__.__signature__ = inspect.signature(kind.__call__)
        attachment = debias(pipe, "professions-gender", method=Balanced(seed=0))
        if call is None:
            pictures.append(CASES[name].draw(pipe, prompts[:1]))
        else:
            guided = {"negative_prompt": ["blurry"] * 2, "guidance_scale": 3.0} | call
            pictures.append(tiny.draw(pipe, prompts, **guided))
        values.append(list(attachment.sampled))
        attachment.remove()
    assert values[0] == values[1]
    assert torch.equal(*pictures)


def test_base_class_outputs_are_found_through_super():
    base = diffusers.FluxPipeline

    class Sub(base):
        def encode_prompt(self, prompt, *args, **kwargs):
            return super().encode_prompt(prompt, *args, **kwargs)

    class WithArguments(base):
        def encode_prompt(self, prompt, *args, **kwargs):
            return super(WithArguments, self).encode_prompt(prompt, *args, **kwargs)  # noqa: UP008

    class Other(base):
        def encode_prompt(self, prompt, *args, **kwargs):
            return self.helper.encode_prompt(prompt)

    names = source_of(base).returns
    assert "prompt_embeds" in names
    assert source_of(Sub).returns == names
    assert source_of(WithArguments).returns == names
    assert source_of(Other).returns != names


def refused(kind):
    with pytest.raises(UnsupportedHostError) as caught:
        source_of(kind)
    return str(caught.value)


def test_an_unreadable_subclass_is_rejected_with_the_reason():
    base = diffusers.FluxPipeline

    class Bound(base):
        def __call__(self, *args, **kwargs):
            run = super().__call__
            return run(*args, **kwargs)

    class Twice(base):
        def __call__(self, *args, **kwargs):
            super().__call__(*args, **kwargs)
            return super().__call__(*args, **kwargs)

    class Loop(base):
        def __call__(self, *args, **kwargs):
            for _ in range(2):
                result = super().__call__(*args, **kwargs)
            return result

    class Both(base):
        def __call__(self, prompt, **kwargs):
            embeds, pooled, _ = self.encode_prompt(prompt, None)
            return super().__call__(prompt_embeds=embeds, pooled_prompt_embeds=pooled, **kwargs)

    class Hidden(base):
        def __call__(self, *args, **kwargs):
            base_class = super()
            return base_class.__call__(*args, **kwargs)

    class Past(base):
        def __call__(self, prompt, **kwargs):
            embeds, pooled, _ = super().encode_prompt(prompt, None)
            return super().__call__(prompt_embeds=embeds, pooled_prompt_embeds=pooled, **kwargs)

    class Silent(base):
        def encode_prompt(self, prompt):
            self.remembered = prompt

    assert "returns nothing" in refused(Silent)
    assert "passes on its base class's __call__" in refused(Bound)
    assert "several times" in refused(Twice)
    assert "in a loop" in refused(Loop)
    assert "cannot be told apart" in refused(Both)
    assert "super()" in refused(Hidden) or "cannot be followed" in refused(Hidden)
    assert "so they would not be edited" in refused(Past)
