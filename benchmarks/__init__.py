"""Ours beside a peer in one run: `python -m benchmarks.NAME`, each a table beside its goals."""
