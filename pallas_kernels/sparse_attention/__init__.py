"""Attention over window and chosen compressed entries, under one softmax with a sink per head."""
