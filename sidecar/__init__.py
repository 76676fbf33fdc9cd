"""Watches one vLLM server and its GPUs and says, from evidence, where the memory goes."""

__version__ = "0.1.0"
