"""Run the authors' own code on small generated inputs, and store the results in published.json.

    git clone https://github.com/waltergerych/bend_vlm        # commit 3777904
    git clone https://github.com/Supltz/Debias_VLM            # commit 8c441ad
    git clone https://github.com/fuzihaofzh/FairImagen        # commit e2ef1c1
    python tests/methods/published/make_published.py bend_vlm Debias_VLM FairImagen

This only has to be run once; the baseline tests read the results. The functions called here do not
need the other packages that these modules import (kneed, sentence_transformers), so the packages
are replaced by empty modules, except for one cosine. An empty argument leaves the stored results of
that repository unchanged.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cosine_similarity

HERE = Path(__file__).parent


class Rows(dict):
    """Mimic the data set interface that the authors' code expects: columns by name, rows by
    index."""

    def __getitem__(self, key: Any) -> Any:
        return (
            super().__getitem__(key)
            if isinstance(key, str)
            else Rows({k: v[key] for k, v in self.items()})
        )

    def __len__(self) -> int:
        return len(super().__getitem__("embedding"))


def cos_sim(first: Any, second: Any) -> torch.Tensor:
    a = torch.as_tensor(first)
    b = torch.as_tensor(second)
    return cosine_similarity(a[:, None], b[None], dim=-1)


def opened(path: Path, **empty: Any) -> Any:
    for name, content in empty.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(content)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    rows = rng.normal(size=shape)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def bend(folder: Path) -> dict[str, Any]:
    code = opened(
        folder / "bend_utils.py",
        kneed={"KneeLocator": None},
        sentence_transformers={"util": types.SimpleNamespace(cos_sim=cos_sim)},
    )
    rng = np.random.default_rng(0)
    texts = unit(rng, 3, 8)
    images = unit(rng, 30, 8)
    query = unit(rng, 1, 8)
    values = np.array(["a", "b", "c"])[np.arange(30) % 3]
    projection = code.get_proj_matrix(texts)
    data = Rows(embedding=images, value=values)
    bent, *_ = code.legrange_text(query, data, "value", ["a", "b", "c"], 4, projection)
    inputs = {
        "texts": texts.tolist(),
        "images": images.tolist(),
        "values": values.tolist(),
        "query": query.tolist(),
    }
    return {**inputs, "near": 4, "projection": projection.tolist(), "bent": bent.tolist()}


def lian(folder: Path) -> dict[str, Any]:
    code = opened(folder / "debiasing.py")
    rng = np.random.default_rng(2)
    groups = torch.from_numpy(unit(rng, 3, 4, 8)).float()
    rows = torch.from_numpy(unit(rng, 6, 8)).float()
    means = {str(k): code.spherical_mean(group) for k, group in enumerate(groups)}
    turned = code.compute_optimal_debiased_embedding(rows, code.construct_attribute_space(means))
    return {"groups": groups.tolist(), "rows": rows.tolist(), "turned": turned.tolist()}


def fair_pca(folder: Path) -> dict[str, Any]:
    code = opened(folder / "src" / "fair_PCA.py")
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(30, 8))
    groups = np.eye(3)[np.arange(30) % 3]
    kept = {}
    for keep in (4, 6):
        fitted = code.FairPCA(target_dim=keep, standardize=False, tradeoff_param=0)
        kept[str(keep)] = fitted.fit_mg(rows, groups).UUT.tolist()
    return {"rows": rows.tolist(), "groups": groups.tolist(), "kept": kept}


MADE = {"bend_vlm": bend, "lian": lian, "fair_pca": fair_pca}

if __name__ == "__main__":
    path = HERE / "published.json"
    made = json.loads(path.read_text()) if path.is_file() else {}
    made |= {
        name: compute(Path(folder))
        for (name, compute), folder in zip(MADE.items(), sys.argv[1:], strict=True)
        if folder
    }
    path.write_text(json.dumps(made) + "\n")
