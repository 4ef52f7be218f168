"""The decoder: its shape, its layers and their fused operators, and Llama checkpoints in and out.

From outside: `model.Decoder`, `shapes.Shape`, `llama`. It knows nothing of ranks or optimisers.
"""
