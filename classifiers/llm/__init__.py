"""Asking a large language model: by vLLM, over HTTP, or with transformers; with a cache and an account of the cost.

From outside: `model` says what is asked; `vllm`, `http` and `transformers` ask.
"""
