"""kvexact finds byte-level bugs in paged KV-cache code."""
