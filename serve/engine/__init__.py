"""The engine: requests, scheduling policy, compiled steps, sampling. Knows token ids, not sockets."""
