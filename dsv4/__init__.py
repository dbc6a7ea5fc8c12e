"""DeepSeek-V4 in JAX: configuration, Flax modules, cache layout, checkpoints and text.

Knows nothing of requests, networks or transfers. The hot path is pure functions over flat
parameter leaves and one explicit cache (see `dsv4.model` and `dsv4.cache`).
"""
