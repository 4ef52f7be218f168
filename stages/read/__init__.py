"""Readers: WARC, WET, WACZ, HTML, JSONL, Parquet, Arrow, plain text; and what they share (records, payloads,
charsets)."""
