"""The audit of a running deployment: the same sessions there, many at once, and at a control."""
