"""Models that give a text a vector: `static` (a table of tokens' vectors), `encoder` (BERT and ModernBERT), and
`embedder`, which tells them apart by their folders and which others call."""
