"""Test many concurrent calls: each thread or task reads the values of its own calls."""

import asyncio
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import debias
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.hosts.call_log import KEPT
from vldebias.methods import Balanced

OPEN = "A photo of a nurse."
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def encoded(pipe, attachment, prompt):
    """Encode a prompt; return the recorded value, and the value in the embeddings."""
    embeddings = pipe.encode_prompt(prompt, "cpu", 1, False)[0]
    return attachment.sampled, attachment.last_call, embeddings


def value_of(bare, embeddings):
    """Return the value whose prompt has these embeddings."""
    for value in ("female", "male"):
        expected = bare[value]
        if torch.equal(embeddings, expected):
            return value
    return None


@pytest.fixture(scope="module")
def embeddings_of_value():
    bare = tiny.sd()
    return {
        value: bare.encode_prompt(f"A photo of a {value} nurse.", "cpu", 1, False)[0]
        for value in ("female", "male")
    }


def test_each_thread_reads_the_value_of_its_own_call(pipe, attachment, embeddings_of_value):
    def work(number):
        results = []
        for _ in range(6):
            sampled, record, embeddings = encoded(pipe, attachment, OPEN)
            results.append((sampled, [value_of(embeddings_of_value, embeddings)], record))
        return results

    with ThreadPoolExecutor(8) as pool:
        calls = [call for results in pool.map(work, range(8)) for call in results]
    for sampled, drawn, record in calls:
        assert sampled == drawn == list(record.values)
        assert record.prompts == (OPEN,)
        assert record.written == (f"A photo of a {drawn[0]} nurse.",)
        assert record.seed == attachment.seed
    assert Counter(sampled[0] for sampled, _, _ in calls) == {"female": 24, "male": 24}
    assert len({record.id for _, _, record in calls}) == 48
    assert {record.id for record in attachment.calls} == {record.id for _, _, record in calls}


def test_each_task_reads_the_value_of_its_own_call(pipe, attachment, embeddings_of_value):
    async def work():
        sampled, record, embeddings = encoded(pipe, attachment, OPEN)
        await asyncio.sleep(0.01)  # all other tasks make their calls in the meantime
        assert attachment.sampled == sampled
        assert attachment.last_call is record
        return sampled, [value_of(embeddings_of_value, embeddings)]

    async def many():
        return await asyncio.gather(*(work() for _ in range(12)))

    attachment.rewrite([OPEN])  # in the thread that starts the event loop
    for sampled, drawn in asyncio.run(many()):
        assert sampled == drawn


def test_each_thread_in_a_task_reads_the_value_of_its_own_call(
    pipe, attachment, embeddings_of_value
):
    def work():
        sampled, _, embeddings = encoded(pipe, attachment, OPEN)
        return sampled, [value_of(embeddings_of_value, embeddings)]

    async def many():
        return await asyncio.gather(*(asyncio.to_thread(work) for _ in range(12)))

    for sampled, drawn in asyncio.run(many()):
        assert sampled == drawn


def test_a_task_never_reads_the_call_of_another_task(attachment):
    """A task whose calls run in threads reads either the right record or none."""

    async def work():
        before = attachment.rewrite([OPEN])
        written = await asyncio.to_thread(attachment.rewrite, [OPEN] * 3)
        assert attachment.last_call.written == tuple(written)  # not the record of `before`
        assert len(before) == 1

    async def unrelated_task():
        await asyncio.to_thread(attachment.rewrite, [OPEN])
        with pytest.warns(VldebiasWarning, match="in the function that calls the pipeline"):
            assert attachment.sampled == []

    async def many():
        await asyncio.gather(work(), work())
        await unrelated_task()

    attachment.rewrite([OPEN])
    asyncio.run(many())
    assert len(attachment.sampled) == 1


def test_notebook_cells_share_the_last_call(attachment):
    """A notebook runs each cell in a task with the context of the previous one."""

    async def cell(code):
        return code()

    async def notebook():
        context = copy_context()
        await asyncio.create_task(cell(lambda: attachment.rewrite([OPEN] * 2)), context=context)
        return await asyncio.create_task(cell(lambda: attachment.sampled), context=context)

    assert sorted(asyncio.run(notebook())) == ["female", "male"]


def test_debias_passes_find_to_the_method_that_samples_values(pipe):
    with debias(pipe, "gender", find=lambda prompt: prompt.index("weaver")) as a:
        (written,) = a.rewrite(["a Quorvian weaver"])
    assert written in ("a female Quorvian weaver", "a male Quorvian weaver")


def test_a_failed_call_does_not_show_the_previous_values(pipe):
    with debias(pipe, "gender", method=Balanced(find=lambda prompt: 0)) as a:
        a.rewrite([OPEN])
        assert len(a.sampled) == 1
        with pytest.raises(ValueError, match="find: got 0"):
            a.rewrite(["a Quorvian doctor"])
        assert a.sampled == []


def test_on_call_receives_the_data_for_a_log():
    pipe = tiny.sd()
    lines = []
    with debias(pipe, "gender", on_call=lambda record: lines.append(record.to_json())) as a:
        tiny.draw(pipe, [OPEN, "a red car"], num_images_per_prompt=2)
        record = a.last_call
    assert not {"encode_prompt", "maybe_free_model_hooks"} & vars(pipe).keys()
    (line,) = map(json.loads, lines)
    assert line["id"] == record.id
    assert line["prompts"] == [OPEN, OPEN, "a red car", "a red car"]
    assert sorted(line["written"]) == [
        "A photo of a female nurse.",
        "A photo of a male nurse.",
        "a red car",
        "a red car",
    ]
    assert sorted(line["values"][:2]) == ["female", "male"]
    assert line["values"][2:] == [None, None]
    assert line["reasons"][:2] == [None, None]
    assert line["seed"] == a.seed
    with pytest.raises(AttributeError):
        record.values = ()


def test_errors_in_on_call_are_raised_after_the_pictures_are_generated():
    pipe = tiny.sd()
    steps = []

    def full_disk(record):
        raise OSError(f"no space for {record.id}")

    def count(pipe, step, time, values):
        steps.append(step)
        return values

    attachment = debias(pipe, "gender", on_call=full_disk)
    with pytest.raises(OSError, match="no space"):
        tiny.draw(pipe, OPEN, callback_on_step_end=count)
    assert steps
    with pytest.raises(OSError, match="no space"):
        pipe.encode_prompt(OPEN, "cpu", 1, False)
    with pytest.raises(OSError, match="no space"):
        attachment.rewrite([OPEN])
    assert len(attachment.calls) == 3
    with attachment.disabled():
        tiny.draw(pipe, OPEN)  # no error remains to be raised


def test_on_call_is_rejected_if_no_values_are_sampled():
    with pytest.raises(InvalidInputError, match="does not sample values"):
        debias(tiny.sd(), "gender", method="cali", on_call=print)
    with pytest.raises(InvalidInputError, match="expected a function"):
        debias(tiny.sd(), "gender", on_call="log.jsonl")


def test_the_last_thousand_records_are_kept(attachment):
    for _ in range(KEPT + 5):
        attachment.rewrite([OPEN])
    assert len(attachment.calls) == KEPT
    assert attachment.calls[-1] is attachment.last_call
