"""Token shards in the formats of others: Megatron, MDS, TRL, torchtune, and a folder for a Hugging Face hub.

From outside: `export.export`.
"""
