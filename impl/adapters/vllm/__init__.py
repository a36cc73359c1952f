"""Real releases of vLLM as targets, on a machine without a GPU."""
