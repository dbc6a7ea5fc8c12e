"""Kernels of the engine, one folder each: `api` (what callers use), `reference` (plain jnp).

A leaf package: it imports nothing else of this repository. Every `api` function takes
`implementation`, resolved by `pallas_kernels.dispatch`.
"""
