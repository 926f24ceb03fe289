"""Record how a pipeline's cross-attention layers respond to prompts, and hook them to set values.

`vldebias.hosts.pipelines.steering` sets the values for the images of a call.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from copy import copy
from functools import partial
from weakref import finalize

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, ProjectionMismatchError, UnsupportedHostError
from vldebias.hosts.attachment import INSIDE
from vldebias.hosts.hooks import Around, hook_methods
from vldebias.hosts.host import Host, weights_fingerprint
from vldebias.hosts.pipelines.caches import refuse_dropped_rows, without_caches
from vldebias.hosts.pipelines.calls import count_of
from vldebias.hosts.pipelines.diffusers import DiffusersHost
from vldebias.hosts.pipelines.responses import Recorder
from vldebias.hosts.pipelines.steering import Steering, WeakHook
from vldebias.hosts.reading import BARE, TOKENIZING, during, replaced
from vldebias.hosts.values import DenoiserAttachment
from vldebias.projection.cross_attention_edit import CrossAttentionEdit
from vldebias.projection.edit import Edit
from vldebias.projection.fingerprint import Fingerprint

DENOISER = re.compile(r"(unet|transformer|prior)(_\d)?")
"""Matches the names of a pipeline's denoisers."""
LayerHook = tuple[nn.Module, Callable[..., Tensor | None]]
"""A module and its forward hook."""
_INSTEAD = "use method='balanced-prompts', the default"


class _FirstPassError(Exception):
    """Stop a pipeline call after the first pass through its denoiser."""


class CrossAttentionHost(Host):
    """Support edits in a pipeline's cross-attention layers, with attributes as roles.

    Attributes:
        pipeline: the host for the same pipeline's prompts.
        pipe: the diffusers pipeline.
        denoisers: the denoisers by component name.
        layers_and_widths: name and width of each cross-attention layer, once responses have been
            recorded.
    """

    library = ""
    generative = True
    rewrites = True

    def __init__(self, pipeline: DiffusersHost) -> None:
        self.pipeline = pipeline
        self.name = pipeline.name
        self.model_id = pipeline.model_id
        self.needs_picture = pipeline.needs_picture
        self.text_modules = pipeline.text_modules
        self.exclusive_modules = pipeline.exclusive_modules
        self.shared_modules = pipeline.shared_modules
        self.roles = ()
        self.pipe = pipeline.pipe
        self.layers_and_widths: tuple[tuple[str, int], ...] = ()
        self._layers: list[str] = []
        if not hasattr(self.pipe, "encode_prompt"):
            raise UnsupportedHostError(
                f"{self.name}: a modular pipeline has no encode_prompt, whose output is needed to"
                " find the prompt's rows in the denoiser's batch; load the same model with its"
                f" pipeline class, or {_INSTEAD}"
            )
        self.denoisers: dict[str, nn.Module] = {}
        for name, component in self.pipe.components.items():
            if not DENOISER.fullmatch(name) or not isinstance(component, nn.Module):
                continue
            if hasattr(component, "_orig_mod"):
                raise UnsupportedHostError(
                    f"{self.name}: its {name} is compiled, and compiled code ignores hooks that are"
                    " added later; attach first, then compile"
                )
            refuse_dropped_rows(self.name, component)
            self.denoisers[name] = component
        if not self.denoisers:
            raise UnsupportedHostError(
                f"{self.name}: expected a denoiser component named `unet` or `transformer`, got"
                f" {list(self.pipe.components)}; use method='balanced-prompts'"
            )

    def read(self, prompts: Sequence[str], role: str) -> dict[tuple[str, str], Tensor]:
        raise InvalidInputError(
            f"{self.name}: cross-attention layers have no prompt embeddings; use `responses`"
        )

    def space(self, role: str) -> str:
        """Return the name of the space in which the edit of an attribute acts."""
        return f"diffusers.cross-attention.{role}"

    def fingerprint(self, role: str | None = None) -> Fingerprint | None:
        """Return the fingerprint of the denoisers' weights."""
        memory = self.memory.fingerprints
        if "denoiser" not in memory:
            memory["denoiser"] = weights_fingerprint(*self.denoisers.values())
        return memory["denoiser"]

    def with_roles(self, attributes: Iterable[str]) -> CrossAttentionHost:
        """Return a host for the same denoisers with these attributes as roles."""
        host = copy(self)
        host.roles = tuple(attributes)
        return host

    def check(self, role: str, edit: Edit) -> None:
        self.checked(edit)

    def checked(self, edit: Edit) -> CrossAttentionEdit:
        """Return an edit after checking that it fits the denoiser.

        Raises:
            ProjectionMismatchError: If the edit is of a different kind, is for layers that the
                denoiser lacks, or was fitted on different weights.
        """
        refit = 'fit it again with vldebias.debias(pipe, prompts, method="cross-attention")'
        if not isinstance(edit, CrossAttentionEdit):
            raise ProjectionMismatchError(
                f"{self.name}: got {type(edit).__name__}, which does not act in cross-attention;"
                f" {refit}"
            )
        known = dict(self._modules())
        missing = [name for name, _ in edit.layers if name not in known]
        fitted = edit.provenance.fingerprint
        if missing:
            why = f"has layers that this denoiser lacks ({missing[0]})"
        elif fitted is not None and not fitted.matches(self.fingerprint()):
            why = f"was fitted on different weights ({edit.model_id or 'unnamed model'})"
        else:
            return edit
        raise ProjectionMismatchError(f"{self.name}: the edit {why}; {refit}")

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the denoisers' modules with their component and module names."""
        for component, denoiser in self.denoisers.items():
            for name, module in denoiser.named_modules():
                yield f"{component}.{name}", module

    # ---- fitting

    def responses(
        self, prompts: Sequence[str], noise: Sequence[int], steps: int, **options: object
    ) -> tuple[Tensor, Tensor]:
        """Generate images and return each layer's mean output over image positions.

        Args:
            prompts: one prompt per image.
            noise: the generator seeds, one per image.
            steps: number of scheduler steps.
            options: additional pipeline arguments.

        Returns:
            The ascending times (t,), and the layers' mean outputs (t, prompts, d) in float64, where
            d is the total width of the layers (`layers_and_widths`).

        Raises:
            UnsupportedHostError: If the denoiser has no cross-attention.
        """
        recorder, hooks = self._recorder(prompts[0], **options)
        self._generate(recorder, hooks, prompts, noise, steps, **options)
        return self._recorded(recorder)

    def first_pass(
        self,
        prompts: Sequence[str],
        noise: Sequence[int],
        steps: int,
        effects: Tensor | None = None,
        **options: object,
    ) -> tuple[Tensor, Tensor]:
        """Return the layers' and the denoiser's outputs in the first pass, and stop the pipeline.

        Args:
            prompts: one prompt per image.
            noise: the generator seeds, one per image.
            steps: number of scheduler steps.
            effects: (prompts, d) added to the layers' outputs. If None, nothing is added.
            options: additional pipeline arguments.

        Returns:
            Two float64 tensors: the layers' mean outputs over image positions (prompts, d), and the
            denoiser's prediction (prompts, p) for all p latent values.
        """
        recorder, hooks = self._recorder(prompts[0], **options)
        if effects is not None:
            widths = [width for _, width in self.layers_and_widths]
            parts = effects.split(widths, dim=1)
            recorder.effects = dict(zip(recorder.layers, parts, strict=True))
            modules = dict(self._modules())
            hooks += [(modules[name], partial(recorder.add, name)) for name in recorder.layers]

        def stop(module: nn.Module, args: object, output: object) -> None:
            if recorder.rows:
                recorder.predict(output)
            raise _FirstPassError

        with ExitStack() as stack:
            for denoiser in self.denoisers.values():
                stack.enter_context(denoiser.register_forward_hook(stop, prepend=False))
            self._generate(recorder, hooks, prompts, noise, steps, **options)
        _, rows = self._recorded(recorder)
        assert recorder.predictions is not None  # `_recorded` has checked that prompts were found
        return rows[-1], recorder.predictions

    def _recorder(self, prompt: str, **options: object) -> tuple[Recorder, list[LayerHook]]:
        """Find the layers with a call on a prompt, and return a recorder and its layer hooks."""
        if not self._layers:
            self._layers = self.found_layers(prompt, **options)
        recorder = Recorder(not self.pipeline.source.negatives, self._layers)
        modules = dict(self._modules())
        hooks: list[LayerHook] = [
            (modules[name], partial(recorder.record, name)) for name in recorder.layers
        ]
        return recorder, hooks

    def _recorded(self, recorder: Recorder) -> tuple[Tensor, Tensor]:
        """Return the recorded times (t,) and responses (t, prompts, d), and store layer widths."""
        if not recorder.means:
            raise UnsupportedHostError(
                f"{self.name}: its denoiser does not receive the output of encode_prompt, so the"
                f" rows of the prompt cannot be found; {_INSTEAD}"
            )
        times = sorted({time for time, _ in recorder.means})
        blocks = [
            torch.cat([recorder.means[time, name] for name in recorder.layers], dim=1)
            for time in times
        ]
        widths = [recorder.means[times[0], name].shape[1] for name in recorder.layers]
        self.layers_and_widths = tuple(zip(recorder.layers, widths, strict=True))
        return torch.tensor(times, dtype=torch.float64), torch.stack(blocks)

    def found_layers(self, prompt: str, **options: object) -> list[str]:
        """Return the names of the cross-attention layers, in execution order.

        Raises:
            UnsupportedHostError: If the denoiser has no cross-attention.
        """
        recorder = Recorder(not self.pipeline.source.negatives, [])
        hooks: list[LayerHook] = []
        for name, module in self._modules():
            if "attn" in name.rpartition(".")[2] or "ttention" in type(module).__name__:
                hooks.append((module, partial(recorder.probe, name)))
        self._generate(recorder, hooks, [prompt], [0], 2, **options)
        if not recorder.layers:
            raise UnsupportedHostError(
                f"{self.name}: its denoiser has no cross-attention that reads only the prompt and"
                " receives the output of encode_prompt (SD3, FLUX and others use joint attention,"
                f" in which the text has no separate output); {_INSTEAD}"
            )
        return recorder.layers

    def _generate(
        self,
        recorder: Recorder,
        hooks: Sequence[LayerHook],
        prompts: Sequence[str],
        noise: Sequence[int],
        steps: int,
        **options: object,
    ) -> None:
        """Run the unedited pipeline with a recorder hooked to its prompts, denoisers and modules.

        The recorder runs after `encode_prompt`, before the denoisers and after the hooked modules.
        """
        parameters = inspect.signature(type(self.pipe).__call__).parameters
        call: dict[str, object] = {"num_inference_steps": steps, "output_type": "latent"}
        count = count_of(parameters)
        if count is not None:
            call[count] = 1
        call = {name: value for name, value in call.items() if name in parameters} | options
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in noise]
        encode = self.pipe.encode_prompt

        def recorded(*args: object, **kwargs: object) -> Sequence[object]:
            with during(INSIDE, True):
                result: Sequence[object] = encode(*args, **kwargs)
            recorder.note(self.pipeline.embeddings_of(result))
            return result

        bars = dict(getattr(self.pipe, "_progress_bar_config", {}))
        with ExitStack() as stack:
            stack.enter_context(replaced(self.pipe, "encode_prompt", recorded))
            stack.callback(self.pipe.set_progress_bar_config, **bars)
            self.pipe.set_progress_bar_config(**{**bars, "disable": True})
            for denoiser in self.denoisers.values():
                begin = denoiser.register_forward_pre_hook(recorder.begin, with_kwargs=True)
                stack.enter_context(begin)
                stack.callback(denoiser.train, denoiser.training)
                denoiser.eval()
            for module, hook in hooks:
                stack.enter_context(module.register_forward_hook(hook, with_kwargs=True))
            with (
                torch.no_grad(),
                during(BARE, True),
                TOKENIZING,
                suppress(_FirstPassError),
                without_caches(self.denoisers.values()),
                warnings.catch_warnings(),
            ):
                # The DPM++, Euler and UniPC schedulers in diffusers call np.array on tensors, but
                # PyTorch's Tensor.__array__ lacks a keyword that numpy 2 expects.
                warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
                self.pipe(prompt=list(prompts), generator=generators, **call)

    # ---- attaching

    def install_values(self, attachment: DenoiserAttachment) -> Callable[[], None]:
        """Sample values after `encode_prompt` and set them in the denoisers (`Steering`)."""
        steering = Steering(attachment, self.pipeline, self.denoisers)
        modules = dict(self._modules())
        handles = []
        for denoiser in self.denoisers.values():
            hook = WeakHook(steering, "begin")
            handles.append(denoiser.register_forward_pre_hook(hook, with_kwargs=True))
            hook = WeakHook(steering, "end")
            handles.append(denoiser.register_forward_hook(hook, always_call=True))
        for name in steering.layers:
            hook = WeakHook(steering, "change", name)
            handles.append(modules[name].register_forward_hook(hook, with_kwargs=True))
        # Other pipelines may share the denoiser, which then outlives this one.
        for handle in handles:
            finalize(steering, handle.remove).atexit = False
        methods: dict[str, Around] = {"encode_prompt": steering.encode, **self.pipeline.frame()}
        # Pipelines call this method when the images are finished.
        if hasattr(self.pipe, "maybe_free_model_hooks"):
            methods["maybe_free_model_hooks"] = steering.finish
        restore = hook_methods(attachment, self.pipe, methods)

        def remove_hooks() -> None:
            restore()
            for handle in handles:
                handle.remove()

        return remove_hooks
