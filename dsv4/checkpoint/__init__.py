"""Checkpoints on disk: official DeepSeek-V4 names and their variants, every format they ship in.

`load` builds models and needs jax; `reader`, `names` and `formats` are plain NumPy.
"""
