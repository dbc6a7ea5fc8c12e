"""DSML, the markup of DeepSeek's tool calls. Knows no jax, no tokenizer and no HTTP."""
