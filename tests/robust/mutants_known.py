"""What `mutants` breaks, by what it should be noticed, the mutants that have a name, and those that change nothing."""

from __future__ import annotations

_DIFFUSERS = ("tests/hosts/test_diffusers.py", "tests/hosts/test_diffusers_families.py",
              "tests/hosts/test_diffusers_fitting.py", "tests/hosts/test_diffusers_steering.py",
              "tests/hosts/test_beginning.py")  # fmt: skip
_CLIPS = ("tests/hosts/test_open_clip.py", "tests/hosts/test_transformers.py", "tests/hosts/test_image_side.py",
          "tests/hosts/test_image_side_laws.py")  # fmt: skip

# What is broken -> the tests that are about it.
TARGETS: dict[str, tuple[str, ...]] = {
    "vldebias/edit.py": ("tests/test_edit.py", "tests/test_projection.py"),
    "vldebias/edit_folder.py": ("tests/test_edit.py",),
    "vldebias/axes.py": ("tests/test_edit.py", "tests/methods/test_method_contract.py"),
    "vldebias/files.py": ("tests/test_files.py",),
    "vldebias/projection.py": ("tests/test_projection.py", "tests/methods/test_pipeline_default.py"),
    "vldebias/prompts/prompt_set.py": ("tests/prompts",),
    "vldebias/prompts/recipe.py": ("tests/prompts",),
    "vldebias/prompts/stated_words.py": ("tests/prompts",),
    "vldebias/data/embeddings.py": ("tests/data/test_embedding_files.py", "tests/data/test_embeddings.py"),
    "vldebias/data/labels.py": ("tests/data/test_labels.py",),
    "vldebias/data/store.py": ("tests/data/test_store.py",),
    "vldebias/hosts/attachment.py": ("tests/hosts/test_attachment.py", "tests/methods/test_steering.py"),
    "vldebias/hosts/base.py": (
        "tests/hosts/test_attachment.py",
        "tests/hosts/test_open_clip.py",
        "tests/hosts/test_image_side_transformers.py",
    ),
    "vldebias/hosts/beginning.py": ("tests/hosts/test_beginning.py",),
    "vldebias/hosts/checkpoints.py": ("tests/training/test_saving.py", "tests/training/test_tuning.py"),
    "vldebias/hosts/diffusers.py": _DIFFUSERS,
    "vldebias/hosts/diffusers_families.py": _DIFFUSERS,
    "vldebias/hosts/fingerprint.py": ("tests/hosts/test_fingerprint.py",),
    "vldebias/hosts/images.py": ("tests/hosts/test_images.py",),
    "vldebias/hosts/joint.py": _CLIPS,
    "vldebias/hosts/merge.py": ("tests/hosts/test_diffusers_merge.py", *_CLIPS),
    "vldebias/hosts/open_clip.py": _CLIPS,
    "vldebias/hosts/seam.py": ("tests/hosts/test_seam.py", "tests/hosts/test_open_clip.py", _DIFFUSERS[0]),
    "vldebias/hosts/side.py": _CLIPS,
    "vldebias/hosts/table.py": ("tests/hosts/test_table.py", "tests/methods/test_bounded.py"),
    "vldebias/hosts/towers.py": ("tests/hosts/test_towers.py",),
    "vldebias/hosts/transformers.py": _CLIPS,
    "vldebias/methods/auto.py": ("tests/methods/test_auto.py", "tests/methods/test_gaps.py"),
    "vldebias/methods/bounded.py": ("tests/methods/test_bounded.py",),
    "vldebias/methods/closed_form.py": (
        "tests/methods/test_closed_form.py",
        "tests/methods/test_pipeline_default.py",
        "tests/methods/test_equalise.py",
        "tests/methods/test_bounded.py",
    ),
    "vldebias/methods/equalise.py": ("tests/methods/test_equalise.py",),
    "vldebias/methods/rank_shares.py": ("tests/methods/test_targets.py",),
    "vldebias/methods/shares.py": ("tests/methods/test_steering.py",),
    "vldebias/losses/bounds.py": ("tests/losses",),
    "vldebias/losses/contrast.py": ("tests/losses",),
    "vldebias/losses/debiased.py": ("tests/losses",),
    "vldebias/losses/global_contrastive.py": ("tests/losses",),
    "vldebias/losses/info_nce.py": ("tests/losses",),
    "vldebias/losses/rince.py": ("tests/losses",),
    "vldebias/losses/sigmoid.py": ("tests/losses",),
    "vldebias/losses/spread.py": ("tests/losses",),
    "vldebias/losses/sums.py": ("tests/losses",),
    "vldebias/metrics/agreement.py": ("tests/metrics",),
    "vldebias/metrics/bootstrap.py": ("tests/metrics",),
    "vldebias/metrics/detection.py": ("tests/metrics",),
    "vldebias/metrics/discrepancy.py": ("tests/metrics",),
    "vldebias/metrics/groups.py": ("tests/metrics",),
    "vldebias/metrics/metric.py": ("tests/evaluation/test_own_metric.py",),
    "vldebias/metrics/paired.py": ("tests/metrics",),
    "vldebias/metrics/rankings.py": ("tests/metrics",),
    "vldebias/metrics/robustness.py": ("tests/metrics",),
    "vldebias/metrics/skew.py": ("tests/metrics",),
    "vldebias/evaluation/accuracies.py": ("tests/evaluation/test_groups_bootstrap.py",),
    "vldebias/evaluation/answers.py": (
        "tests/evaluation/test_annotations_log.py",
        "tests/evaluation/test_annotations.py",
    ),
    "vldebias/evaluation/plausible.py": ("tests/evaluation/test_plausible_mistakes.py",),
    "vldebias/evaluation/report/front.py": ("tests/evaluation/test_report_front.py",),
    "vldebias/evaluation/report/tables.py": (
        "tests/evaluation/test_report_tables.py",
        "tests/evaluation/test_report_front.py",
    ),
    "vldebias/evaluation/result.py": ("tests/evaluation/test_result.py", "tests/evaluation/test_own_metric.py"),
    "vldebias/registry.py": ("tests/test_registry.py",),
    "vldebias/training/monitor.py": ("tests/training/test_monitor.py",),
    "vldebias/training/optim.py": ("tests/training/test_optim.py",),
    "vldebias/training/sampling.py": ("tests/training/test_sampling.py", "tests/training/test_folds.py"),
    "vldebias/training/state.py": ("tests/training/test_state.py",),
}

# Name -> (file, before, after): mutants that survived once, and defects that were mended.
NAMED: dict[str, tuple[str, str, str]] = {
    "order of stated words": (
        "vldebias/prompts/stated_words.py",
        "tuple(dict.fromkeys(self._found(text)))",
        "tuple(sorted(set(self._found(text))))",
    ),
    "resamples without the group": (
        "vldebias/evaluation/accuracies.py",
        "(drawn[:, 0, 1] - drawn[:, 1, 0])[size > 0] / size[size > 0]",
        "(drawn[:, 0, 1] - drawn[:, 1, 0]) / np.maximum(size, 1)",
    ),
    "EMA warm-up": (
        "vldebias/training/optim.py",
        "min(self.decay, (step + 1) / (step + 10))",
        "self.decay",
    ),
    "fsync": ("vldebias/evaluation/answers.py", "os.fsync(file)", "None"),
    "lock": ("vldebias/evaluation/answers.py", "fcntl.flock(file, fcntl.LOCK_EX)", "None"),
    "end position": (
        "vldebias/hosts/diffusers.py",
        "1 + is_end.int().argmax(1)",
        "tokens.attention_mask.sum(1) - 1",
    ),
    "words of a phrase, the shortest first": (
        "vldebias/prompts/stated_words.py",
        "range(min(start + self._longest, len(words)), start, -1)",
        "range(start + 1, min(start + self._longest, len(words)) + 1)",
    ),
    "worst group of a resample without it": (
        "vldebias/evaluation/accuracies.py",
        "present = self.weights * (size > 0)",
        "present = self.weights",
    ),
    "EMA counts from one": ("vldebias/training/optim.py", "self.decay, (step + 1)", "self.decay, (step + 2)"),
    "fsync of a file": ("vldebias/files.py", "os.fsync(handle)", "None"),
    "fsync of the folder": ("vldebias/files.py", "sync(path.parent)", "None"),
    "a lock that is shared": ("vldebias/evaluation/answers.py", "fcntl.LOCK_EX", "fcntl.LOCK_SH"),
    "shares that nearly sum to 1": ("vldebias/methods/shares.py", "abs_tol=1e-6", "abs_tol=1e-1"),
    "a share of all noises, not of each": (
        "vldebias/hosts/beginning.py",
        "along.clamp(0, 1).mean()",
        "along.mean().clamp(0, 1)",
    ),
    "folds by the order of the rows": (
        "vldebias/training/sampling.py",
        'numpy_generator("folds", seed).permutation(n) % folds',
        "np.arange(n) % folds",
    ),
    "of two answers at one time the first": (
        "vldebias/evaluation/answers.py",
        "_when(answer) >= _when(last[key])",
        "_when(answer) > _when(last[key])",
    ),
    "a state without a copy": (
        "vldebias/training/state.py",
        'gathered.to("cpu", copy=True)',
        'gathered.to("cpu")',
    ),
    "a shard of more rows than fit": (
        "vldebias/data/store.py",
        " or shard.notes.count > self.shard_size",
        "",
    ),
    "a fingerprint of the first tensors": (
        "vldebias/hosts/fingerprint.py",
        "tuple(_numbers(_spread(p)) for _, p in parameters)",
        "tuple(_numbers(_spread(p)) for _, p in parameters[: -len(parameters) // 16])",
    ),
    "a fingerprint without the wave": (
        "vldebias/hosts/fingerprint.py",
        "round(float(wide.norm()), 6), round(product, 6)",
        "round(float(wide.norm()), 6), 0.0",
    ),
    "a dropped pipeline's attachment stands": (
        "vldebias/hosts/attachment.py",
        "        gc.collect()  # a pipeline",
        "        pass  # a pipeline",
    ),
    "beginnings that no call keeps": (
        "vldebias/hosts/diffusers.py",
        "known = _CALL.get(self._beginnings)",
        "known = self._beginnings",
    ),
    "no prompts, no rows": (
        "vldebias/hosts/base.py",
        "torch.zeros(0, self.dim(role), dtype=torch.float64)",
        "torch.zeros(0, 0, dtype=torch.float64)",
    ),
    "image terms behind P0": (
        "vldebias/methods/closed_form.py",
        "scatters += part if p0 is None or not images else [replace(s, rows=p0(s.rows)) for s in part]",
        "scatters += part",
    ),
    "pairs inside P0": (
        "vldebias/methods/closed_form.py",
        "part if p0 is None or not images else",
        "part if p0 is None else",
    ),
    "a default for pipelines that spares nothing": (
        "vldebias/methods/closed_form.py",
        "    spares=SPARES_OF_DEFAULT,\n",
        "    spares=None,\n",
    ),
    "a default for pipelines by the smaller bound": (
        "vldebias/methods/closed_form.py",
        "max(edit.dim / self.spares, len(problem.attributes))",
        "min(edit.dim / self.spares, len(problem.attributes))",
    ),
    "no lam so low": (
        "vldebias/projection.py",
        "if self.at_multiple(middle).removed <= directions",
        "if self.at_multiple(middle).removed > directions",
    ),
    "auto fits on what it predicts": (
        "vldebias/methods/auto.py",
        "if i not in own",
        "if i in own",
    ),
    "auto reads groups of one value": (
        "vldebias/methods/auto.py",
        "if len(values) > 1]",
        "if len(values) > 0]",
    ),
    "edits are not looked at when made": (
        "vldebias/edit.py",
        "    def __post_init__(self) -> None:\n        self.check_tensors()",
        "    def __post_init__(self) -> None:\n        return",
    ),
    "edits are not looked at when loaded": (
        "vldebias/edit.py",
        "            edit.check_tensors()\n",
        "            pass\n",
    ),
    "-1 is unknown": (
        "vldebias/data/labels.py",
        "        known = np.ones(len(array), dtype=bool)",
        "        known = array != -1",
    ),
    "groups of four are enough": (
        "vldebias/data/labels.py",
        "_FEW, _MANY = 5, 100",
        "_FEW, _MANY = 1, 100",
    ),
    "names that differ by case": (
        "vldebias/data/labels.py",
        '" ".join(name.split()).casefold()',
        "name",
    ),
    "a digest of names alone": (
        "vldebias/data/embeddings.py",
        "        total.update(tensor.contiguous()",
        "        memoryview(tensor.contiguous()",
    ),
    "features without a sign": (
        "vldebias/evaluation/plausible.py",
        "if not (sample < 0).any():",
        "if not (sample <= 0).any():",
    ),
    "texts at chance are no doubt": (
        "vldebias/evaluation/plausible.py",
        "if right > 1 / of + 2 * error:",
        "if right > 1 / of - 2 * error:",
    ),
    "images of another space": (
        "vldebias/evaluation/plausible.py",
        "if spread and deviations < _FOREIGN:",
        "if spread and deviations > _FOREIGN:",
    ),
    "a verdict where nothing is to remove": (
        "vldebias/evaluation/report/tables.py",
        "and r.metric not in self.at_chance]",
        "]",
    ),
    "chance by its lower end": (
        "vldebias/evaluation/report/tables.py",
        "else none[row.metric] <= high",
        "else none[row.metric] <= low",
    ),
    "one cost in a conclusion": (
        "vldebias/evaluation/report/front.py",
        'fell = sum(any(verdict(cost) == "worse" for cost in costs)',
        'fell = sum(all(verdict(cost) == "worse" for cost in costs)',
    ),
    "tables of wholes alone": (
        "vldebias/evaluation/result.py",
        'part, down = (part, ["subset", "method"]) if wholes.empty else (wholes, ["method"])',
        'part, down = wholes, ["method"]',
    ),
    "a change of a fact": (
        "vldebias/evaluation/result.py",
        ' or about.kind == "fact"',
        "",
    ),
    "an interval beyond what can be": (
        "vldebias/evaluation/result.py",
        "(max(least, low), min(most, high))",
        "(least, most)",
    ),
    "two metrics of one name": (
        "vldebias/registry.py",
        "there is not None and there != item",
        "False",
    ),
    "one tail of two": (
        "vldebias/metrics/paired.py",
        "2 * tail / 2**differing",
        "tail / 2**differing",
    ),
    "subsets that share rows": (
        "vldebias/metrics/robustness.py",
        "order.reshape(blocks, 2, size)",
        "np.concatenate([order[: 2 * size]] * blocks).reshape(blocks, 2, size)",
    ),
    "a lock that waits for nobody": (
        "vldebias/files.py",
        "fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "None",
    ),
    "a killed run is not told of": (
        "vldebias/files.py",
        "            if before:\n                say(",
        "            if not before:\n                say(",
    ),
    "skew that rose is no worse": (
        "vldebias/training/monitor.py",
        '-1 if name.startswith("max_skew") else 1',
        "1",
    ),
    "the last end of text": (
        "vldebias/hosts/diffusers.py",
        "1 + is_end.int().argmax(1)",
        "tokens.input_ids.shape[1] - 1 - is_end.flip(1).int().argmax(1)",
    ),
}

# Survivors that no test can notice: what they change, and why it makes no difference. By `Mutant.key`.
EQUIVALENT: dict[str, str] = {
    "vldebias/edit_folder.py: Config: False -> True": (
        "the default of uses_images is never read: format 1 sets it by the method, format 2 always writes it"
    ),
    "vldebias/files.py: parse_yaml: 300 -> 301": "where the parser's own sentence is cut, which nobody depends on",
    "vldebias/prompts/stated_words.py: StatedWords._found: min -> max": (
        "a slice that reaches beyond the text is the text's end, and longer phrases than the longest are no entries: "
        "the same words, found more slowly"
    ),
    "vldebias/hosts/checkpoints.py: write_checkpoint: .detach() -> ": "the weights come from state_dict, detached",
    "vldebias/metrics/rankings.py: top_rankings: 10.0 -> 15.1": "a wider margin: more candidates, the same ranking",
    "vldebias/metrics/robustness.py: k_variance: // -> / (2)": "a whole number up to n / 2 is one up to n // 2",
    "vldebias/hosts/towers.py: Towers._warn_of_cuts: - ->  (2)": "more rows are counted; the count decides, as before",
    "vldebias/hosts/towers.py: _causal: - ->  (2)": "ids are (b, length), whose axis 1 is the last",
    "vldebias/hosts/joint.py: JointHost.texts: - ->  (2)": "ids are (b, length), whose axis 1 is the last",
    "vldebias/metrics/groups.py: average_accuracy: or -> and": "both are None or neither, as was checked before",
    "vldebias/metrics/agreement.py: agreement: 1 -> 2 (5)": "a second row of ones, whose value nobody reads",
    "vldebias/hosts/images.py: _bytes: .detach() -> ": "a view as bytes carries no gradient, so numpy takes it",
    "vldebias/losses/debiased.py: hard_negative_contrastive: > -> >= (2)": (
        "a tie of two floats; where data make one, with all similarities the least there is, both branches are equal"
    ),
}
