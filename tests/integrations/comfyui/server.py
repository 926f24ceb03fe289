"""Start ComfyUI in a separate folder, send it workflows, and read the results."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
NODES = ROOT / "apps" / "comfyui"
CHECKPOINT = "tiny.safetensors"
PATIENCE = 600  # seconds, generous because the machine may be busy

Graph = dict[str, dict[str, Any]]


class Done(NamedTuple):
    """Store the results of a workflow.

    Attributes:
        outputs: Node id -> what the node shows.
        error: The message of the node that failed, or an empty string.
    """

    outputs: dict[str, Any]
    error: str


class RefusedError(Exception):
    """Report a workflow that ComfyUI rejected before running it. The message contains all its
    explanations."""


class Comfy:
    """Talk to a running ComfyUI."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.folder = folder

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def send(self, graph: Graph) -> str:
        """Queue a workflow and return its id.

        Raises:
            RefusedError: If ComfyUI considers it invalid.
        """
        try:
            return str(self.call("/prompt", {"prompt": graph})["prompt_id"])
        except urllib.error.HTTPError as error:
            answer = json.loads(error.read())
        sentences = [answer["error"]["message"]]
        for node in answer["node_errors"].values():
            sentences += [f"{row['message']}: {row['details']}" for row in node["errors"]]
        raise RefusedError("\n".join(sentences))

    def run(self, graph: Graph) -> Done:
        """Run a workflow until it finishes."""
        identity = self.send(graph)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            entry = self.call(f"/history/{identity}").get(identity)
            if entry is not None and entry["status"]["status_str"] == "error":
                last = entry["status"]["messages"][-1][1]
                return Done({}, f"{last['node_type']}: {last['exception_message'].strip()}")
            if entry is not None and entry["status"]["completed"]:
                return Done(entry["outputs"], "")
            time.sleep(0.1)
        raise TimeoutError(f"no end after {PATIENCE} s")

    def runs(self) -> int:
        """Return how many workflows have run or are waiting."""
        queue = self.call("/queue")
        waiting = len(queue["queue_running"]) + len(queue["queue_pending"])
        return len(self.call("/history")) + waiting

    def output_files(self, prefix: str) -> list[Path]:
        return sorted((self.folder / "output").glob(f"{prefix}_*"))


@contextmanager
def started(comfyui: Path, python: str, folder: Path, port: int | None = None) -> Iterator[Comfy]:
    """Start ComfyUI on the CPU with our nodes and a tiny checkpoint, and stop it afterwards.

    Everything that it reads and writes is in `folder`. The ComfyUI checkout is not modified.
    """
    nodes = folder / "custom_nodes"
    checkpoints = folder / "models" / "checkpoints"
    for made in (nodes, checkpoints):
        made.mkdir(parents=True, exist_ok=True)
    for name, target in {"balanced-prompts": NODES, "tiny_models": HERE / "tiny_models"}.items():
        if not (nodes / name).exists():
            (nodes / name).symlink_to(target, target_is_directory=True)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    checkpoint = checkpoints / CHECKPOINT
    if not checkpoint.exists():
        build = [python, str(HERE / "tiny_checkpoint.py"), str(checkpoint)]
        path = os.pathsep.join([str(comfyui), str(ROOT)])
        subprocess.run(build, cwd=comfyui, env=environment | {"PYTHONPATH": path}, check=True)
    number = port or free_port()
    command = [python, "main.py", "--cpu", "--listen", "127.0.0.1", "--port", str(number)]
    command += ["--base-directory", str(folder), "--database-url", "sqlite:///:memory:"]
    command += ["--disable-auto-launch", "--disable-api-nodes"]
    log = folder / "comfyui.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=comfyui, env=environment, stdout=output, stderr=output
        )
        try:
            comfy = Comfy(f"http://127.0.0.1:{number}", folder)
            wait_for(comfy, process, log)
            yield comfy
        finally:
            process.terminate()
            process.wait(60)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def wait_for(comfy: Comfy, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            comfy.call("/system_stats")
            return
        except OSError:
            time.sleep(0.3)
    raise RuntimeError(f"ComfyUI did not start:\n{log.read_text(errors='replace')[-4000:]}")


def as_graph(workflow: Mapping[str, Any], nodes: Mapping[str, Any]) -> Graph:
    """Return a saved workflow as the graph that the browser page would send.

    Args:
        workflow: The workflow as saved by the page.
        nodes: The response of /object_info.
    """
    link_of_id = {link[0]: link for link in workflow["links"]}
    graph: Graph = {}
    for node in workflow["nodes"]:
        inputs: dict[str, Any] = {}
        values = list(node["widgets_values"])
        for name, kind, options in _inputs(nodes[node["type"]]):
            if _is_widget(kind, options):
                inputs[name] = values.pop(0)
                if _has_control(name, kind, options):
                    values.pop(0)
        for slot in node["inputs"]:
            if slot["link"] is not None:
                _, origin, origin_slot, *_ = link_of_id[slot["link"]]
                inputs[slot["name"]] = [str(origin), origin_slot]
        graph[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return graph


def _inputs(node: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Yield the name, type and options of a node's inputs, in the order of its widgets."""
    for group in ("required", "optional"):
        for name, (kind, *rest) in node["input"].get(group, {}).items():
            yield name, kind, (rest[0] if rest else {})


def _is_widget(kind: Any, options: Mapping[str, Any]) -> bool:
    is_menu = isinstance(kind, list) or kind == "COMBO"
    is_value = kind in ("INT", "FLOAT", "STRING", "BOOLEAN")
    return (is_menu or is_value) and not options.get("forceInput", False)


def _has_control(name: str, kind: Any, options: Mapping[str, Any]) -> bool:
    by_name = name in ("seed", "noise_seed")
    return kind == "INT" and bool(options.get("control_after_generate", by_name))
