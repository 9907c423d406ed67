"""Models: where their files come from, loading them, adapters, weights to keep."""
