"""A small static embedding as model2vec writes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WORDS = ("[PAD]", "[UNK]", "the", "red", "old", "small", "house", "river", "tree", "king", "##s", "a", "b", ".")


def static_model(folder: Path, seed: int, quantised: bool = False, width: int = 12) -> Path:
    """`quantised`: of its vocabulary, with a weight and a row for each token."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordPiece({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    dice = np.random.default_rng(seed)
    rows = 5 if quantised else len(WORDS)
    tensors = {"embeddings": dice.normal(size=(rows, width)).astype(np.float32)}
    if quantised:
        tensors["weights"] = dice.uniform(0.1, 2, len(WORDS)).astype(np.float32)
        tensors["mapping"] = dice.integers(0, rows, len(WORDS)).astype(np.int64)
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "model2vec", "normalize": False, "hidden_dim": width, "seq_length": 512}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
