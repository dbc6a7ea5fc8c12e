"""`python -m serve demo`: prefill and decode as two real processes, and the proof."""
