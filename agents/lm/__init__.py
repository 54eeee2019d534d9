"""Language models as policies, with transformers and with vLLM."""
