"""Readers: WARC, WET, WACZ, HTML, JSONL, Parquet, Arrow, plain text; and what they share: `records`
(of WARC), `members` (of gzip and zstd files), `payload` (HTTP bodies and their content encodings), `charset`."""
