"""Pools: where attempts run."""
