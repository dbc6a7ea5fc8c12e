"""The engine: requests, admission, batching, compiled steps, sampling. Knows no sockets."""
