"""Opens files with `datasets.load_dataset`, offline; prints columns and rows. A folder is opened by its card, as a hub
does."""

import json
import sys
import tempfile

from datasets import load_dataset

if __name__ == "__main__":
    kind, where = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as cache:
        if kind == "folder":
            rows = load_dataset(where, sys.argv[3], split="train", cache_dir=cache)
        else:
            rows = load_dataset(kind, data_files=where, split="train", cache_dir=cache)
        print(json.dumps({"columns": rows.column_names, "rows": list(rows)}))
