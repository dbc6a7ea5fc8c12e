"""Checkpoints on disk: official DeepSeek-V4 names and their variants, every format they ship in.

What builds models (`load`, `plan`) needs jax; the rest is plain NumPy and starts in a moment.
"""
