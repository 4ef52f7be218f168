"""Token shards in the formats of others (Megatron, MDS, DataTrove, TRL, torchtune, a folder for a Hugging Face hub),
and tokens of others as shards.

From outside: `export.export`, `importing.import_tokens`.
"""
