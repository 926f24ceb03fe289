"""What `mutants` breaks, by what it should be noticed, the mutants that have a name, and those that change nothing."""

from __future__ import annotations

_DIFFUSERS = ("tests/hosts/test_diffusers.py", "tests/hosts/test_diffusers_families.py",
              "tests/hosts/test_diffusers_fitting.py", "tests/hosts/test_diffusers_steering.py")  # fmt: skip
_CLIPS = ("tests/hosts/test_open_clip.py", "tests/hosts/test_transformers.py", "tests/hosts/test_image_side.py",
          "tests/hosts/test_image_side_laws.py")  # fmt: skip

# What is broken -> the tests that are about it.
TARGETS: dict[str, tuple[str, ...]] = {
    "vldebias/edit.py": ("tests/test_edit.py", "tests/test_projection.py"),
    "vldebias/files.py": ("tests/test_files.py",),
    "vldebias/projection.py": ("tests/test_projection.py",),
    "vldebias/prompts/prompt_set.py": ("tests/prompts",),
    "vldebias/prompts/recipe.py": ("tests/prompts",),
    "vldebias/prompts/stated_words.py": ("tests/prompts",),
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
    "vldebias/methods/closed_form.py": ("tests/methods/test_equalise.py", "tests/methods/test_bounded.py"),
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
    "vldebias/metrics/rankings.py": ("tests/metrics",),
    "vldebias/metrics/robustness.py": ("tests/metrics",),
    "vldebias/metrics/skew.py": ("tests/metrics",),
    "vldebias/evaluation/accuracies.py": ("tests/evaluation/test_groups_bootstrap.py",),
    "vldebias/evaluation/answers.py": (
        "tests/evaluation/test_annotations_log.py",
        "tests/evaluation/test_annotations.py",
    ),
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
    "the last end of text": (
        "vldebias/hosts/diffusers.py",
        "1 + is_end.int().argmax(1)",
        "tokens.input_ids.shape[1] - 1 - is_end.flip(1).int().argmax(1)",
    ),
}

# Survivors that no test can notice: what they change, and why it makes no difference. By `Mutant.key`.
EQUIVALENT: dict[str, str] = {
    "vldebias/edit.py: _Config: False -> True": (
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
