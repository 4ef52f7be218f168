"""Processes of this machine: cores, GPUs, the template that workers are forked from, signals, and clean ends.

From outside: `template`, `lifetime`, `cores`, `nodes`, `gpus`, `kernel_packs`.
"""
