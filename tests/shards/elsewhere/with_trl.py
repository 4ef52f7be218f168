"""Feeds rows to TRL's own collator, packed and free of padding; prints what a model would get."""

import json
import sys
import tempfile

from datasets import load_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        rows = load_dataset("parquet", data_files=sys.argv[1], split="train", cache_dir=cache)
        batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)([rows[i] for i in range(len(rows))])
    print(json.dumps({name: value.tolist() if hasattr(value, "tolist") else value for name, value in batch.items()}))
