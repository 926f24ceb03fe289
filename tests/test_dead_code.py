"""Test that every function and class of the library and its programs is used or documented."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Names that other libraries call, and the counterpart of `register_language`.
CALLED_BY_OTHERS = {
    *("_repr_html_", "extra_repr", "format_help_text"),  # IPython, torch, typer
    *("aembed_query", "aembed_documents"),  # LangChain
    *("_postprocess_nodes", "send_400_response"),  # llama-index, uvicorn
    *("comfy_entrypoint", "get_node_list"),  # ComfyUI
    "unregister_language",
}


def unused(*trees: ast.Module, text: str = "") -> Iterator[str]:
    """Yield the names of definitions without a decorator that no code and no text contains."""
    defined: Counter[str] = Counter()
    used = Counter(re.findall(r"\w+", text))
    for tree in trees:
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, DEFINITIONS) and not node.decorator_list:
                defined[node.name] += 1
            elif isinstance(node, ast.Name):
                used[node.id] += 1
            elif isinstance(node, ast.Attribute):
                used[node.attr] += 1
            elif isinstance(node, ast.alias):
                used[node.name] += 1
            elif isinstance(node, ast.Constant) and id(node) not in docstrings:
                used.update(re.findall(r"\w+", str(node.value)))
    for name in defined:
        if not used[name] and not name.startswith("__"):
            yield name


def test_every_function_and_class_is_used_or_documented() -> None:
    files = [path for folder in ("vldebias", "apps") for path in (ROOT / folder).rglob("*.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    users = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "eval").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in users)
    assert sorted(set(unused(*trees, text=text)) - CALLED_BY_OTHERS) == []
