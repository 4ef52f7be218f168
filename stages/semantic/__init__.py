"""What texts are about, as vectors: `embed` and `corpus_embed` make them, `clusters` groups them, `dedup` keeps one of
texts that say the same."""
