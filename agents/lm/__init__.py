"""Policies that run language models with transformers or vLLM."""
