"""The hand-over: moves named cache buffers between a prefill and a decode process, fenced.

It knows buffers, layouts, leases, digests and peers. It does not know what attention is, and it
imports neither the model nor the engine.
"""
