"""A CUDA runtime without a GPU, whose order is chosen; docs/time.md has its rules."""
