"""Token shards: the format, its writer, its reader, the loader that trains from it, and exporters to other formats
(docs/shards.md)."""
