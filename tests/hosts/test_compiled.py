"""Test attached models that are compiled as a whole, or exported."""

import threading
from contextvars import ContextVar

import pytest
import torch
from models_tiny import IMAGES, PROMPTS, OpenClip, Transformers
from torch import nn

OPEN_CLIP = ("clip", "custom", "custom-linear", "coca", "hf-mlp")
# The towers of XCLIP, the dual encoder, ALIGN and Chinese CLIP do not compile to a single graph.
TRANSFORMERS = ("CLIPModel", "CLIPTextModelWithProjection", "MetaClip2Model", "SiglipModel")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


PROBE: ContextVar[int] = ContextVar("probe", default=1)
THREAD = threading.local()


@pytest.fixture(scope="module")
def why_no_whole_graphs():
    """Return why the installed torch cannot trace the thread-local state of hooks; "" if it can."""

    def remembers(values):
        THREAD.values = values
        return THREAD.values + PROBE.get()

    compiled = torch.compile(remembers, fullgraph=True, backend="eager")
    try:
        compiled(torch.ones(2))
    except torch._dynamo.exc.Unsupported as error:
        return str(error).splitlines()[0]
    return ""


@pytest.fixture
def whole_graphs(why_no_whole_graphs):
    """Skip the test if torch cannot compile an attached model to a single graph."""
    if why_no_whole_graphs:
        pytest.skip(f"torch {torch.__version__}: no whole graph: {why_no_whole_graphs}")


class TextTower(nn.Module):
    """Encode texts with an attached model, as for an export."""

    def __init__(self, subject):
        super().__init__()
        self.model = subject.host
        self.encode = encoder(subject)

    def forward(self, ids):
        return features(self.encode(ids))


def subject_of(name):
    return OpenClip(name) if name in OPEN_CLIP else Transformers(name)


def encoder(subject):
    """Return the method or model that encodes text ids."""
    for name in ("encode_text", "get_text_features"):
        if hasattr(subject.host, name):
            return getattr(subject.host, name)
    return subject.host


def features(output):
    """Return the embedding in an output of a text tower."""
    if isinstance(output, torch.Tensor):
        return output
    return output.text_embeds if "text_embeds" in output else output.pooler_output


def ids_of(subject, prompts=PROMPTS):
    if isinstance(subject, OpenClip):
        return subject.tokenizer(prompts)
    return subject.inputs(prompts)["input_ids"]


def check_compiled(name, gender, backend, fullgraph):
    subject = subject_of(name)
    ids = ids_of(subject)
    bare = features(encoder(subject)(ids))
    with subject.debias(gender, keep_stated=False) as attachment:
        edited = features(encoder(subject)(ids))
        compiled = torch.compile(encoder(subject), fullgraph=fullgraph, backend=backend)
        torch.testing.assert_close(features(compiled(ids)), edited)
        assert not torch.allclose(edited[0], bare[0])
        with attachment.disabled():
            torch.testing.assert_close(features(compiled(ids)), bare)
        for strength in (0.5, 0.25, 0.0, 1.0):
            attachment.strength = strength
            expected = features(encoder(subject)(ids))
            torch.testing.assert_close(features(compiled(ids)), expected)
        torch.testing.assert_close(features(compiled(ids[:2])), edited[:2])
    torch.testing.assert_close(features(compiled(ids)), bare)


@torch.no_grad()
def test_compiled_methods_match_the_attached_model(gender, why_no_whole_graphs):
    """Compiled methods match with every version of torch, and are a single graph if it can be
    traced."""
    check_compiled("clip", gender, "eager", fullgraph=not why_no_whole_graphs)


@pytest.mark.usefixtures("whole_graphs")
@pytest.mark.slow
@pytest.mark.parametrize("name", [*OPEN_CLIP, *TRANSFORMERS])
@torch.no_grad()
def test_text_encoding_is_a_single_graph_in_every_class(gender, name):
    check_compiled(name, gender, "aot_eager", fullgraph=True)


@pytest.mark.usefixtures("whole_graphs")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["clip", "CLIPModel"])
@torch.no_grad()
def test_generated_code_gives_the_same_output(gender, name):
    """Test one model per library, since code generation does not depend on the class."""
    check_compiled(name, gender, "inductor", fullgraph=True)


@pytest.mark.usefixtures("whole_graphs")
@pytest.mark.parametrize("name", [pytest.param("clip", marks=pytest.mark.slow), "CLIPModel"])
@torch.no_grad()
def test_entire_models_compile_to_a_single_graph(gender, name):
    subject = subject_of(name)
    ids = ids_of(subject)
    images = IMAGES[: len(ids)]
    inputs = (images, ids[:3]) if name == "clip" else (ids[:3], images)
    with subject.debias(gender, side="both", keep_stated=False):
        expected = subject.host(*inputs)
        received = torch.compile(subject.host, fullgraph=True, backend="eager")(*inputs)
    place = 1 if name == "clip" else "text_embeds"
    torch.testing.assert_close(received[place], expected[place])
    key = 0 if name == "clip" else "image_embeds"
    torch.testing.assert_close(received[key], expected[key])


@pytest.mark.usefixtures("whole_graphs")
def test_gradients_pass_through_compiled_edits(gender):
    subject = subject_of("clip")
    ids = ids_of(subject)
    weight = subject.host.token_embedding.weight
    with subject.debias(gender, keep_stated=False):
        (expected,) = torch.autograd.grad(subject.host.encode_text(ids).sum(), weight)
        compiled = torch.compile(subject.host.encode_text, fullgraph=True, backend="aot_eager")
        (received,) = torch.autograd.grad(compiled(ids).sum(), weight)
    torch.testing.assert_close(received, expected)


@pytest.mark.usefixtures("whole_graphs")
@pytest.mark.parametrize("name", ["clip", "CLIPModel"])
@torch.no_grad()
def test_exported_programs_contain_the_edit(gender, name):
    """The batch size is dynamic; the strength is fixed at export."""
    subject = subject_of(name)
    ids = ids_of(subject)
    with subject.debias(gender, strength=0.5, keep_stated=False):
        expected = features(encoder(subject)(ids))
        batch = torch.export.Dim("batch", min=2)
        exported = torch.export.export(TextTower(subject), (ids,), dynamic_shapes=({0: batch},))
    received = exported.module()
    torch.testing.assert_close(received(ids), expected)
    torch.testing.assert_close(received(ids[1:4]), expected[1:4])


@torch.no_grad()
def test_keeping_stated_attributes_breaks_the_graph_with_a_reason(gender, why_no_whole_graphs):
    subject = subject_of("clip")
    ids = ids_of(subject)
    bare = subject.host.encode_text(ids)
    with subject.debias(gender):
        expected = subject.host.encode_text(ids)
        compiled = torch.compile(subject.host.encode_text, backend="eager")
        torch.testing.assert_close(compiled(ids), expected)
        torch.testing.assert_close(compiled(ids)[3], bare[3])  # "A WOMAN"
        if why_no_whole_graphs:
            return
        torch.compiler.reset()
        compiled = torch.compile(subject.host.encode_text, backend="eager", fullgraph=True)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="pass keep_stated=False"):
            compiled(ids)
