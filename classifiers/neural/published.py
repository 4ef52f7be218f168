"""Published sequence classifiers as judges: FineWeb-Edu's (BERT, one value), toxicity classifiers (BERT or RoBERTa, a
probability for each label), others of DistilBERT, ModernBERT and DeBERTa (a probability over labels).

Only config.json, safetensors and the tokenizer's files are read (`encoder_weights`). What the numbers mean comes from
`problem_type`, as transformers has it: without one, one output is a value, several are a softmax.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from gristmill.classifiers.card import Head, JudgeCard, JudgeError
from gristmill.classifiers.neural.encoder import Encoder
from gristmill.classifiers.neural.encoder_weights import Config, own_file, read_config, read_encoder
from gristmill.classifiers.neural.judge import (
    LONGEST,
    TOKENIZER,
    NeuralJudge,
    neural_judge,
    preprocessing_of,
    versions,
)
from gristmill.classifiers.neural.network import Network
from gristmill.classifiers.neural.text_tokens import TextTokenizer, read_tokenizer
from gristmill.kernels.common.extras import install

Problem = Literal["regression", "single_label_classification", "multi_label_classification"]
EDUCATIONAL = Head(
    "educational_value",
    "regression",
    (),
    "how useful the text is for teaching, from none (0) to excellent (5)",
    0.0,
    5.0,
)


@dataclass(frozen=True)
class Published:
    """A classifier as its folder has it; `labels` are the names of its outputs."""

    folder: Path
    config: Config
    encoder: Encoder
    weight_KW: Tensor
    bias_K: Tensor
    labels: tuple[str, ...]
    problem: Problem

    @property
    def head_names(self) -> tuple[str, ...]:
        """The labels as names of signals."""
        lowered = (re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_") for label in self.labels)
        return tuple(name if name[:1].isalpha() else f"label_{name}" for name in lowered)

    def judge(self, heads: tuple[Head, ...], attribution: tuple[str, ...] = (), device: str = "cpu") -> NeuralJudge:
        """With a head for each value or independent label, in their order, or one head for a softmax."""
        softmax = self.problem == "single_label_classification"
        if len(heads) != (1 if softmax else len(self.labels)):
            raise JudgeError(f"{self.folder}: {len(self.labels)} outputs do not make {len(heads)} heads")
        network = Network(self.encoder, heads)
        parts = [self._softmax(heads[0])] if softmax else [self._alone(head, row) for row, head in enumerate(heads)]
        weight, bias = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        network.heads.load_state_dict({"weight": weight, "bias": bias})
        if not all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values()):
            raise JudgeError(f"{self.folder}: weights that are not finite numbers")
        most = min(LONGEST, self.encoder.shape.positions)
        tokenizer = _tokenizer_of(self.folder, most)
        facts = {
            "from": str(self.config.get("_name_or_path") or self.folder.name),
            "folder": self.folder.name,  # of the hub's cache: the commit
            "kind": str(self.config.get("architectures")),
            "problem_type": self.problem,
        }
        card = JudgeCard(
            "neural", heads, preprocessing_of(most), training=facts, versions=versions(), attribution=attribution
        )
        return neural_judge(card, network, tokenizer, device)

    def _alone(self, head: Head, row: int) -> tuple[Tensor, Tensor]:
        """A value in shares of its range, or the log-odds of one label."""
        wanted = "regression" if self.problem == "regression" else "probability"
        if head.kind != wanted:
            raise JudgeError(f"{self.folder}: output {self.labels[row]!r} makes a head of {wanted}, not of {head.kind}")
        low, span = (head.low, head.high - head.low) if wanted == "regression" else (0.0, 1.0)
        return self.weight_KW[row : row + 1] / span, (self.bias_K[row : row + 1] - low) / span

    def _softmax(self, head: Head) -> tuple[Tensor, Tensor]:
        """All labels in the head's order, or of two the log-odds of the good one: a softmax of two is the sigmoid of
        their difference."""
        if head.kind == "regression" or sorted(head.labels) != sorted(self.labels):
            raise JudgeError(f"{self.folder}: head {head.name} has not the labels {', '.join(self.labels[:20])}")
        rows = torch.tensor([self.labels.index(label) for label in head.labels])
        weight, bias = self.weight_KW[rows], self.bias_K[rows]
        return (weight[1:] - weight[:1], bias[1:] - bias[:1]) if head.kind == "probability" else (weight, bias)


def read_published(folder: Path) -> Published:
    config = read_config(folder)
    made = config.get("architectures") or []
    if not isinstance(made, list) or not any(str(name).endswith("ForSequenceClassification") for name in made):
        named = ", ".join(map(str, made)) if isinstance(made, list) else made
        raise config.wrong(f"architectures: {named or 'none'}; a ...ForSequenceClassification was expected")
    encoder, rest = read_encoder(folder)
    name = "classifier.out_proj" if "classifier.out_proj.weight" in rest else "classifier"
    weight, bias = rest.pop(f"{name}.weight", None), rest.pop(f"{name}.bias", None)
    if weight is None or bias is None or weight.ndim != 2 or weight.shape != (len(bias), encoder.shape.width):
        raise JudgeError(
            f"{folder}: one head is read from a classifier's weight and bias; train heads on an encoder that has none"
        )
    if unknown := sorted(other for other in rest if other.startswith(("classifier", "head.", "score", "pre_"))):
        raise JudgeError(f"{folder}: {unknown[0]} is of another kind of head than is read here")
    if encoder.shape.pooler == "none":
        raise JudgeError(f"{folder}: the weights have no pooler, which such a classifier reads")
    return Published(folder, config, encoder, weight, bias, _labels(config, len(bias)), _problem(config, len(bias)))


def from_transformers(
    folder: str | os.PathLike[str],
    heads: tuple[Head, ...] = (EDUCATIONAL,),
    device: str = "cpu",
    attribution: tuple[str, ...] = (),
) -> NeuralJudge:
    """A classifier of the transformers kind: FineWeb-Edu's as it is published, unless `heads` say otherwise."""
    return read_published(Path(folder)).judge(heads, attribution, device)


def _labels(config: Config, outputs: int) -> tuple[str, ...]:
    named = config.get("id2label") or {str(number): f"LABEL_{number}" for number in range(outputs)}
    if not isinstance(named, dict) or sorted(named) != sorted(map(str, range(outputs))):
        raise config.wrong(f"id2label does not name the classifier's {outputs} outputs, 0 to {outputs - 1}")
    return tuple(str(named[str(number)]) for number in range(outputs))


def _problem(config: Config, outputs: int) -> Problem:
    problem = config.get("problem_type") or ("regression" if outputs == 1 else "single_label_classification")
    if problem not in get_args(Problem):
        raise config.wrong(f"problem_type is {problem!r}; known are {', '.join(get_args(Problem))}")
    if problem == "single_label_classification" and outputs == 1:
        raise config.wrong("a softmax of one output is always 1")
    found: Problem = problem
    return found


def _tokenizer_of(folder: Path, most: int) -> TextTokenizer:
    """tokenizer.json, or what transformers makes of older files."""
    if (folder / TOKENIZER).is_file():
        return read_tokenizer(own_file(folder, TOKENIZER), most)
    older = [
        name for name in ("vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json") if (folder / name).exists()
    ]
    if not {"vocab.txt", "vocab.json"} & {*older}:
        raise JudgeError(
            f"{folder}: no {TOKENIZER}; transformers writes one: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        from transformers import AutoTokenizer

        for name in older:
            own_file(folder, name)
        made = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return TextTokenizer(made.backend_tokenizer.to_str(), most)
    except ImportError as error:
        raise JudgeError(f"{folder}: no {TOKENIZER}; older files need transformers: {install('gpu')}") from error
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise JudgeError(f"{folder}: the tokenizer's files cannot be read ({error})") from error
