"""What runs in a release's own process: it knows vLLM, and of kvexact only this folder."""
