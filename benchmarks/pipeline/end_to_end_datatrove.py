"""DataTrove's FineWeb steps on a crawl, as its examples/fineweb.py has them: run by end_to_end.py with a Python that
has DataTrove.

    python -m benchmarks.pipeline.end_to_end_datatrove CRAWL OUT LID_MODEL [TIMEOUT]

Left out: the url filter (its lists are not ours to give to both) and the upload. Two workers; four MinHash stages, each
as wide as it goes.
"""

import sys
from pathlib import Path

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
)
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import JsonlReader, WarcReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.hashing import HashConfig
from datatrove.utils.lid import FT176LID

WORKERS = 2
TIMEOUT = float(sys.argv[4]) if len(sys.argv) > 4 else 1.0
FT176LID.MODEL_URL = sys.argv[3]  # workers import this file again: what is set in main() they never see


def main() -> None:
    crawl, out = sys.argv[1:3]
    files = len(list(Path(crawl).glob("*.warc.gz")))
    rejects = f"{out}/rejected"
    filtering = [
        WarcReader(crawl, glob_pattern="*.warc.gz", default_metadata={"dump": "crawl"}),
        Trafilatura(favour_precision=True, timeout=TIMEOUT),
        LanguageFilter(languages=["en"], exclusion_writer=JsonlWriter(f"{rejects}/language")),
        GopherRepetitionFilter(exclusion_writer=JsonlWriter(f"{rejects}/gopher_repetition")),
        GopherQualityFilter(exclusion_writer=JsonlWriter(f"{rejects}/gopher_quality")),
        C4QualityFilter(filter_no_terminal_punct=False, exclusion_writer=JsonlWriter(f"{rejects}/c4")),
        FineWebQualityFilter(exclusion_writer=JsonlWriter(f"{rejects}/fineweb")),
        JsonlWriter(f"{out}/filtered"),
    ]
    config = MinhashConfig(
        hash_config=HashConfig(hash_fc="sha1", precision=64), num_buckets=14, hashes_per_bucket=8, n_grams=5
    )
    bands, buckets, remove = f"{out}/signatures", f"{out}/buckets", f"{out}/remove"
    steps = [
        (filtering, files),
        ([JsonlReader(f"{out}/filtered"), MinhashDedupSignature(bands, config)], files),
        ([MinhashDedupBuckets(bands, buckets, config=config)], config.num_buckets),
        ([MinhashDedupCluster(buckets, remove, config=config)], 1),
        (
            [
                JsonlReader(f"{out}/filtered"),
                MinhashDedupFilter(remove, exclusion_writer=JsonlWriter(f"{rejects}/minhash")),
                PIIFormatter(),
                JsonlWriter(f"{out}/done"),
            ],
            files,
        ),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=WORKERS, logging_dir=f"{out}/logs/{number}").run()


if __name__ == "__main__":
    main()
