"""Take screenshots of the nodes for ComfyUI.

In `python -m eval.comfyui STATIC`, STATIC is the `static` folder of comfyui-frontend-package
1.28.8. The screenshots show ComfyUI's own web page with the nodes in apps/comfyui. ComfyUI itself
does not run, so the workflows are shown as loaded, without images. The command writes
results/comfyui-{list,batch}.png and the images in apps/comfyui/example_workflows. Each PNG file
contains its workflow and the nodes' sockets.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from PIL.PngImagePlugin import PngInfo

from eval.tables import RESULTS, plain_parser
from vldebias.utils.pictures import decode

NODES = Path(__file__).parents[1] / "apps" / "comfyui"
SCREENSHOTS = {"comfyui-list": "balance-prompt", "comfyui-batch": "one-sampler-call"}
ADDRESS = "http://comfyui.test/"
SIZE = (1500, 620)
SCALE = 0.82  # zoom factor at which a workflow fills the screenshot
CORNER = (20, 88)  # position of the first node on the canvas, in pixels
NODES_ALONE = {"x": 44, "y": 80, "width": 1455, "height": 515}  # the page without its toolbars
THUMBNAIL_WIDTH = 720
# Hide the tutorial, the minimap and the drawing speed, which are unrelated to the nodes.
SETTINGS = {
    "Comfy.TutorialCompleted": True,
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
    "Comfy.Graph.CanvasMenu": False,
}
VIEW = """([scale, corner]) => {
    const view = window.app.canvas.ds;
    view.scale = scale;
    view.offset = corner.map((pixels) => pixels / scale);
    window.app.canvas.setDirty(true, true);
}"""

Definition = dict[str, Any]


def _combo(*options: str) -> list[Any]:
    return [list(options)]


def _number(kind: str, default: float, **options: Any) -> list[Any]:
    return [kind, {"default": default, "min": 0, "max": 2**53, **options}]


# Inputs (in order) and outputs of ComfyUI's built-in nodes in the example workflows.
CORE: dict[str, tuple[str, dict[str, list[Any]], list[str]]] = {
    "CheckpointLoaderSimple": (
        "Load Checkpoint",
        {"ckpt_name": _combo("v1-5-pruned-emaonly-fp16.safetensors")},
        ["MODEL", "CLIP", "VAE"],
    ),
    "CLIPTextEncode": (
        "CLIP Text Encode (Prompt)",
        {"text": ["STRING", {"multiline": True}], "clip": ["CLIP"]},
        ["CONDITIONING"],
    ),
    "EmptyLatentImage": (
        "Empty Latent Image",
        {
            "width": _number("INT", 512),
            "height": _number("INT", 512),
            "batch_size": _number("INT", 1),
        },
        ["LATENT"],
    ),
    "KSampler": (
        "KSampler",
        {
            "model": ["MODEL"],
            "seed": _number("INT", 0, control_after_generate=True),
            "steps": _number("INT", 20),
            "cfg": _number("FLOAT", 8.0, step=0.1, round=0.01),
            "sampler_name": _combo("euler"),
            "scheduler": _combo("normal"),
            "positive": ["CONDITIONING"],
            "negative": ["CONDITIONING"],
            "latent_image": ["LATENT"],
            "denoise": _number("FLOAT", 1.0, step=0.01),
        },
        ["LATENT"],
    ),
    "VAEDecode": ("VAE Decode", {"samples": ["LATENT"], "vae": ["VAE"]}, ["IMAGE"]),
    "SaveImage": (
        "Save Image",
        {"images": ["IMAGE"], "filename_prefix": ["STRING", {"default": "ComfyUI"}]},
        [],
    ),
    "PreviewAny": ("Preview as Text", {"source": ["*", {}]}, []),
}


class _Type:
    """Stand in for a type of `comfy_api.latest.io`, such as `io.String`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def Input(self, name: str, **options: Any) -> SimpleNamespace:  # noqa: N802  (ComfyUI's name)
        """Return an input."""
        is_optional = options.pop("optional", False)
        kind: Any = options.pop("options", self.name)
        settings = {_KEYS.get(key, key): value for key, value in options.items()}
        return SimpleNamespace(name=name, kind=kind, settings=settings, is_optional=is_optional)

    def Output(self, name: str | None = None, **options: Any) -> SimpleNamespace:  # noqa: N802
        """Return an output."""
        is_list = options.get("is_output_list", False)
        shown = options.get("display_name") or self.name
        return SimpleNamespace(name=name, kind=self.name, shown=shown, is_list=is_list)


_KEYS = {"dynamic_prompts": "dynamicPrompts", "force_input": "forceInput"}
_TYPES = {"String": "STRING", "Int": "INT", "Combo": "COMBO", "Clip": "CLIP", "Image": "IMAGE"}
_TYPES |= {"Conditioning": "CONDITIONING"}


@contextmanager
def _stand_in() -> Iterator[None]:
    """Provide the parts of ComfyUI that the nodes import for their definitions."""
    types: dict[str, Any] = {name: _Type(kind) for name, kind in _TYPES.items()}
    latest = ModuleType("comfy_api.latest")
    facts = {
        "ComfyExtension": object,
        "io": SimpleNamespace(
            **types,
            ComfyNode=object,
            Schema=SimpleNamespace,
            NodeOutput=SimpleNamespace,
            Hidden=SimpleNamespace(prompt="PROMPT", extra_pnginfo="EXTRA_PNGINFO"),
        ),
        "ui": SimpleNamespace(),
    }
    vars(latest).update(facts)
    modules = {"comfy_api": ModuleType("comfy_api"), "comfy_api.latest": latest}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in (*modules, "apps.comfyui.nodes"):
            sys.modules.pop(name, None)


def own_definitions() -> dict[str, Definition]:
    """Return the definitions of the nodes in apps/comfyui, based on their classes."""
    with _stand_in():
        nodes = importlib.import_module("apps.comfyui.nodes")
        classes = (nodes.BalancePrompt, nodes.EncodeBalancedPrompt, nodes.SaveBalancedImages)
        schemas = [node.define_schema() for node in classes]
    found = {}
    for schema in schemas:
        inputs: dict[str, dict[str, list[Any]]] = {"required": {}, "optional": {}}
        for part in schema.inputs:
            need = "optional" if part.is_optional else "required"
            inputs[need][part.name] = [part.kind, part.settings]
        outputs = getattr(schema, "outputs", [])
        found[schema.node_id] = _definition(
            schema.node_id,
            schema.display_name,
            inputs,
            [output.kind for output in outputs],
            output_name=[output.shown for output in outputs],
            output_is_list=[output.is_list for output in outputs],
            description=schema.description,
            python_module="custom_nodes.balanced-prompts",
        )
    return found


def _definition(
    name: str,
    title: str,
    inputs: Mapping[str, Mapping[str, list[Any]]],
    outputs: list[str],
    **facts: Any,
) -> Definition:
    """Return a definition in the format of ComfyUI's `/object_info`."""
    return {
        "name": name,
        "display_name": title,
        "input": inputs,
        "input_order": {need: list(parts) for need, parts in inputs.items()},
        "output": outputs,
        "output_name": outputs,
        "output_is_list": [False] * len(outputs),
        "output_node": not outputs,
        "category": "conditioning",
        "description": "",
        "python_module": "nodes",
        **facts,
    }


def sockets() -> dict[str, dict[str, list[str]]]:
    """Return the names of the inputs and outputs of each node in apps/comfyui."""
    found = {}
    for name, definition in own_definitions().items():
        inputs = [part for parts in definition["input"].values() for part in parts]
        found[name] = {"inputs": inputs, "outputs": definition["output_name"]}
    return found


def definitions() -> dict[str, Definition]:
    """Return the definitions of all nodes in the example workflows."""
    found = {}
    for name, (title, inputs, outputs) in CORE.items():
        found[name] = _definition(name, title, {"required": inputs}, outputs)
    return found | own_definitions()


class Page:
    """A replacement for ComfyUI's server that answers requests from its page.

    Attributes:
        static: The folder with the files of the page.
    """

    def __init__(self, static: Path) -> None:
        self.static = static
        self.answers: dict[str, Any] = {
            "object_info": definitions(),
            "users": {"storage": "server", "migrated": True},
            "settings": SETTINGS,
            "extensions": [],
            "system_stats": {"system": {"comfyui_version": "0.3.64", "argv": []}, "devices": []},
            "queue": {"queue_running": [], "queue_pending": []},
            "history": {},
            "prompt": {"exec_info": {"queue_remaining": 0}},
        }

    def answer(self, route: Any) -> None:
        """Answer a request with a file or with the response of a ComfyUI server."""
        path = route.request.url.partition("?")[0].removeprefix(ADDRESS)
        if path.startswith("api/"):
            route.fulfill(json=self.answers.get(path.removeprefix("api/"), []))
            return
        file = self.static / (path or "index.html")
        if file.is_file():
            route.fulfill(path=file)
        else:
            route.fulfill(status=404)


def take(static: Path, browser: str) -> None:
    """Write the images of the example workflows."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for screenshot, name in SCREENSHOTS.items():
            width, height = SIZE
            context = chromium.new_context(viewport={"width": width, "height": height})
            page = context.new_page()
            page.route("**/*", Page(static).answer)
            page.route_web_socket("**/ws*", lambda socket: None)
            page.goto(ADDRESS)
            page.wait_for_function("window.app?.graph && window.app.extensionManager")
            workflow = json.loads((NODES / "example_workflows" / f"{name}.json").read_text())
            page.evaluate("workflow => window.app.loadGraphData(workflow)", workflow)
            page.wait_for_timeout(1500)  # wait until the page has set its initial view
            page.evaluate(VIEW, [SCALE, CORNER])
            page.wait_for_timeout(500)
            facts = PngInfo()
            facts.add_text("workflow", json.dumps(workflow))
            facts.add_text("sockets", json.dumps(sockets()))
            example = NODES / "example_workflows" / name
            for path, clip in (
                (RESULTS / f"{screenshot}.png", None),
                (example.with_suffix(".png"), NODES_ALONE),
            ):
                png = page.screenshot(animations="disabled", clip=clip)
                image = decode(png)
                image.save(path, optimize=True, pnginfo=facts)
            # The thumbnail in the list of templates does not show the toolbars.
            image.thumbnail((THUMBNAIL_WIDTH, THUMBNAIL_WIDTH))
            image.save(example.with_suffix(".jpg"), quality=85)
            context.close()
        chromium.close()


def main() -> None:
    """Take all screenshots."""
    options = plain_parser(__doc__)
    options.add_argument("static", type=Path, help="folder `static` of comfyui-frontend-package")
    options.add_argument("--browser", default="/usr/bin/chromium", help="a Chromium")
    arguments = options.parse_args()
    take(arguments.static, arguments.browser)


if __name__ == "__main__":
    main()
