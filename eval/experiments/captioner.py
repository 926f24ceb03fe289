"""Edit a small captioner that was trained on real photographs, and measure its captions.

    python -m eval.experiments.captioner --captions captions.csv --json eval/results/captioner.json

A captioner with 1.8 million parameters is trained on 4,050 photographs of Flickr8k with five
captions each: pooled features of EfficientNet-Lite0, a linear connector to four tokens, and a Llama
decoder with two layers. Its greedy captions of other photographs are then measured with and without
each edit by `vldebias.evaluate_captions`. Photographs are labelled by their captions by people.

    --captions  Flickr8k's captions, as a table with the columns image and caption
    photographs `photos/flickr_train.npz` and `photos/flickr_dev.npz` in $VLDEBIAS_REAL: `before`
                (n, 1280) and `names` (n,)

Directions are estimated from the genders that the model itself states about 2,000 photographs of
the training set, so no edit uses labels. CIDEr is CIDEr-D (Vedantam et al., 2015).
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import vldebias
from apps.captions.captions import evaluate_captions
from apps.captions.reading import StatementReader
from eval.photographs import folder
from eval.tables import parser
from vldebias.measure.rows import NONE
from vldebias.metrics import Metric, register_metric
from vldebias.prompts import load_prompts

PAD, START, END, UNKNOWN = range(4)
PREFIX, WIDTH, LONGEST = 4, 160, 18
EPOCHS, BATCH = 7, 128
DIRECTIONS = 2000  # photographs from whose captions the directions are estimated
PAIRS = 400  # pairs of a photograph of a woman and one of a man
# Male and female words that the captioner may write.
WORDS = (
    ("man", "woman"),
    ("men", "women"),
    ("boy", "girl"),
    ("boys", "girls"),
    ("guy", "lady"),
    ("guys", "ladies"),
    ("he", "she"),
    ("his", "her"),
    ("him", "her"),
    ("himself", "herself"),
    ("father", "mother"),
    ("son", "daughter"),
    ("brother", "sister"),
    ("groom", "bride"),
    ("male", "female"),
)
Edit = Callable[[Tensor], Tensor]
Captions = dict[str, list[str]]
CIDER = register_metric(Metric("cider", "CIDEr-D", "utility", "higher", (0.0, 10.0)))


def tokens(text: str) -> list[str]:
    """Split a caption into words in lower case."""
    return re.findall(r"[a-z]+", text.lower().replace("-", " "))


def read_captions(path: Path) -> Captions:
    """Return image -> captions by people."""
    captions: Captions = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            captions[row["image"].strip()].append(" ".join(tokens(row["caption"])))
    return captions


class Captioner(nn.Module):
    """Write captions from the pooled features (n, 1280) of images."""

    def __init__(self, vocabulary: Sequence[str], features: Tensor) -> None:
        super().__init__()
        self.vocabulary = list(vocabulary)
        self.code_of = {word: code for code, word in enumerate(vocabulary)}
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("scale", features.std())
        self.dropout = nn.Dropout(0.3)
        self.connector = nn.Linear(features.shape[1], PREFIX * WIDTH)
        self.decoder = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(vocabulary),
                hidden_size=WIDTH,
                intermediate_size=448,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=64,
                tie_word_embeddings=True,
                pad_token_id=PAD,
                bos_token_id=START,
                eos_token_id=END,
                attention_dropout=0.1,
            )
        )

    def normalised(self, features: Tensor) -> Tensor:
        """Return features with mean 0 and a common scale."""
        return (features - self.mean) / self.scale

    def forward(self, features: Tensor, ids: Tensor) -> Tensor:
        """Return the logits (n, length - 1, words) of each next word."""
        prefix = self.connector(self.dropout(self.normalised(features)))
        words = F.dropout(self.decoder.get_input_embeddings()(ids[:, :-1]), 0.1, self.training)
        inputs = torch.cat([prefix.view(len(ids), PREFIX, WIDTH).to(words.dtype), words], 1)
        hidden = self.decoder.model(inputs_embeds=inputs).last_hidden_state[:, PREFIX:]
        return self.decoder.lm_head(hidden)

    @torch.no_grad()
    def write(
        self,
        features: Tensor,
        *,
        edit_features: Edit | None = None,
        edit_hidden: Edit | None = None,
    ) -> tuple[list[str], list[Tensor]]:
        """Return greedy captions, and the log-probabilities (n, words) of each step."""
        self.eval()
        x = self.normalised(features)
        prefix = self.connector(x if edit_features is None else edit_features(x))
        embeddings = self.decoder.get_input_embeddings()
        start = embeddings(torch.full((len(x), 1), START))
        inputs = torch.cat([prefix.view(len(x), PREFIX, WIDTH), start], 1)
        cache = None
        ids: list[Tensor] = []
        steps: list[Tensor] = []
        for _ in range(LONGEST):
            output = self.decoder.model(inputs_embeds=inputs, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            hidden = output.last_hidden_state[:, -1]
            hidden = hidden if edit_hidden is None else edit_hidden(hidden)
            logits = self.decoder.lm_head(hidden)
            logits[:, [PAD, START, UNKNOWN]] = -1e9
            steps.append(logits.log_softmax(1))
            ids.append(logits.argmax(1))
            inputs = embeddings(ids[-1])[:, None]
        texts = []
        for row in torch.stack(ids, 1).tolist():
            row = row[: row.index(END)] if END in row else row
            texts.append(" ".join(self.vocabulary[code] for code in row))
        return texts, steps


def train(features: Tensor, names: Sequence[str], captions: Captions) -> Captioner:
    """Train a captioner with AdamW and a cosine schedule."""
    counts = Counter(word for name in names for text in captions[name] for word in text.split())
    vocabulary = ["<pad>", "<s>", "</s>", "<unk>"]
    vocabulary += sorted(word for word, count in counts.items() if count >= 5)
    model = Captioner(vocabulary, features)
    rows = []
    sequences = []
    for row, name in enumerate(names):
        for text in captions[name]:
            codes = [model.code_of.get(word, UNKNOWN) for word in text.split()][:20]
            rows.append(row)
            sequences.append([START, *codes, END])
    lengths = np.array([len(sequence) for sequence in sequences])
    optimizer = torch.optim.AdamW(model.parameters(), 2.5e-3, weight_decay=0.05, betas=(0.9, 0.98))
    steps = EPOCHS * (len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2.5e-3, steps + 1, pct_start=0.08)
    rng = np.random.default_rng(0)
    for epoch in range(EPOCHS):
        model.train()
        # Batches of similar lengths need little padding.
        order = np.argsort(lengths + 3 * rng.random(len(rows)))[: len(rows) // BATCH * BATCH]
        losses = []
        for batch in rng.permutation(order.reshape(-1, BATCH)):
            ids = torch.full((BATCH, int(lengths[batch].max())), PAD)
            for place, index in enumerate(batch):
                ids[place, : lengths[index]] = torch.tensor(sequences[index])
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(features[[rows[index] for index in batch]], ids)
            targets = ids[:, 1:].masked_fill(ids[:, 1:] == UNKNOWN, PAD)
            loss = F.cross_entropy(
                logits.float().flatten(0, 1),
                targets.flatten(),
                ignore_index=PAD,
                label_smoothing=0.05,
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}", flush=True)
    return model


# ---- edits
# -------------------------------------------------------------------------------------------------


def without(rows: Tensor) -> Edit:
    """Return the projection onto the complement of the span of rows."""
    _, scales, basis = torch.linalg.svd(rows, full_matrices=False)
    basis = basis[scales > 1e-4 * scales[0]]
    return lambda x: x - x @ basis.T @ basis


def leace(features: Tensor, genders: Tensor) -> Edit:
    """Return least-squares concept erasure for one binary concept (Belrose et al., 2023).

    The covariance is shrunk by 1%.
    """
    centre = features.mean(0)
    covariance = torch.cov(features.T)
    ridge = 0.01 * covariance.diagonal().mean() * torch.eye(len(covariance))
    cross = ((features - centre) * (genders - genders.mean())[:, None]).mean(0)
    reader = torch.linalg.solve(covariance + ridge, cross)
    reader = reader / (cross @ reader)
    return lambda x: x - ((x - centre) @ reader)[:, None] * cross


class Odds:
    """The model's odds between female and male words at the first gendered word of a caption."""

    def __init__(self, model: Captioner, texts: Sequence[str], steps: Sequence[Tensor]) -> None:
        codes = model.code_of
        female = [codes[f] for f in {f for _, f in WORDS} if f in codes]
        male = [codes[m] for m in {m for m, _ in WORDS} if m in codes]
        gendered = {model.vocabulary[code] for code in (*female, *male)}
        self.values = np.zeros(len(texts))
        for row, text in enumerate(texts):
            places = [place for place, word in enumerate(text.split()) if word in gendered]
            if places:
                step = steps[places[0]][row]
                self.values[row] = float(step[female].logsumexp(0) - step[male].logsumexp(0))


# ---- quality
# -------------------------------------------------------------------------------------------------


def cider(texts: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return CIDEr-D (n,) with n-grams of 1 to 4 words and a length penalty with sigma 6."""

    def ngrams(text: str, n: int) -> Counter[tuple[str, ...]]:
        words = text.split()
        return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))

    scores = np.zeros(len(texts))
    for n in range(1, 5):
        known = [[ngrams(text, n) for text in of_image] for of_image in references]
        documents = Counter(gram for counts in known for gram in set().union(*counts))

        def weights(counts: Counter[tuple[str, ...]], seen: Counter = documents) -> dict:
            log_n = np.log(len(texts))
            return {g: c * (log_n - np.log(max(seen[g], 1))) for g, c in counts.items()}

        for row, text in enumerate(texts):
            candidate = weights(ngrams(text, n))
            norm = np.sqrt(sum(weight**2 for weight in candidate.values()))
            total = 0.0
            for reference, counts in zip(references[row], known[row], strict=True):
                other = weights(counts)
                other_norm = np.sqrt(sum(weight**2 for weight in other.values()))
                shared = sum(
                    min(w, other[g]) * other[g] for g, w in candidate.items() if g in other
                )
                length = len(text.split()) - len(reference.split())
                if norm and other_norm:
                    total += shared / (norm * other_norm) * np.exp(-(length**2) / 72)
            scores[row] += 10 * total / len(references[row]) / 4
    return scores


# ---- the study
# -------------------------------------------------------------------------------------------------


def edited_captions(
    model: Captioner, features: Tensor, train_features: Tensor, reader: StatementReader
) -> dict[str, list[str]]:
    """Return the captions of photographs with and without each edit, by title."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    chosen = train_features[rng.choice(len(train_features), DIRECTIONS, replace=False)]
    own = [reader.stated_value([text]) for text in model.write(chosen)[0]]
    signs = torch.tensor([{"female": 1.0, "male": -1.0}.get(word, 0.0) for word in own])
    x = model.normalised(chosen)[signs != 0]
    signs = signs[signs != 0]
    women = x[signs > 0]
    men = x[signs < 0]
    pairs = torch.stack([women[rng.choice(len(women), PAIRS)], men[rng.choice(len(men), PAIRS)]], 1)
    cali = vldebias.CalibratedProjection(lam=1000.0).fit(pairs)
    codes = model.code_of
    output = model.decoder.lm_head.weight.detach()
    known = [(codes[m], codes[f]) for m, f in WORDS if m in codes and f in codes]
    write = partial(model.write, features)
    texts, steps = write()
    captions = {NONE: texts}
    edits: dict[str, dict[str, Edit]] = {
        "features, difference of means": {
            "edit_features": without((women.mean(0) - men.mean(0))[None])
        },
        "features, LEACE": {"edit_features": leace(x, signs)},
        "features, cali": {"edit_features": cali},
        "hidden states, orth of word differences": {
            "edit_hidden": without(torch.stack([output[m] - output[f] for m, f in known]))
        },
    }
    for title, edit in edits.items():
        captions[title] = write(**edit)[0]
    captions["neutral_texts"] = vldebias.neutral_texts(texts)
    return captions | abstained(texts, captions["neutral_texts"], Odds(model, texts, steps), reader)


def abstained(
    texts: Sequence[str], neutral: Sequence[str], odds: Odds, reader: StatementReader
) -> dict[str, list[str]]:
    """Return captions that are neutral if the odds are small, with one or two margins.

    The margins keep three quarters of the captions that state a gender. With one margin per word,
    they keep three quarters of those that state each gender.
    """
    values = np.array([reader.stated_value([text]) for text in texts])
    certainty = np.abs(odds.values)
    stated = np.isin(values, ("female", "male"))
    margins = dict.fromkeys(("female", "male"), np.quantile(certainty[stated], 0.25))
    kept = {"abstaining, one margin": margins}
    kept["abstaining, one margin per word"] = {
        value: np.quantile(certainty[values == value], 0.25) for value in ("female", "male")
    }
    captions = {}
    for title, margin_of in kept.items():
        captions[title] = [
            text if certainty[row] >= margin_of.get(values[row], 0.0) else neutral[row]
            for row, text in enumerate(texts)
        ]
    return captions


def main() -> None:
    """Train the captioner, measure each edit, and write the result."""
    options = parser(__doc__)
    options.add_argument("--captions", type=Path, required=True)
    arguments = options.parse_args()
    torch.manual_seed(0)
    captions = read_captions(arguments.captions)
    arrays = [np.load(folder() / "photos" / f"flickr_{part}.npz") for part in ("train", "dev")]
    features = [torch.tensor(array["before"].astype(np.float32)) for array in arrays]
    names = [array["names"].tolist() for array in arrays]
    model = train(features[0], names[0], captions)
    reader = StatementReader(load_prompts("gender"))
    labels = [reader.label_of_references(captions[name]) for name in names[1]]
    shown = [row for row, label in enumerate(labels) if label in ("female", "male", "unclear")]
    texts_of_edit = edited_captions(model, features[1][shown], features[0], reader)
    labels = [labels[row] for row in shown]
    table = {"image": [], "caption": [], "label": [], "model": []}
    for title, texts in texts_of_edit.items():
        table["image"] += range(len(texts))
        table["caption"] += texts
        table["label"] += labels
        table["model"] += [title] * len(texts)
    result = evaluate_captions(table)
    result.name = "captioner"
    references = [captions[names[1][row]] for row in shown]
    for title, texts in texts_of_edit.items():
        score = float(cider(texts, references).mean())
        like = result.row("captions", "said_right", title)
        cost = like.model_copy(
            update={"metric": "cider", "value": score, "interval": (score, score), "change": None}
        )
        result.rows.append(cost)
    if arguments.json:
        result.write(arguments.json)
    print(result)


if __name__ == "__main__":
    main()
