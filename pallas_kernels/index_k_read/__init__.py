"""Scores of queries against the sparse indexer's keys in their pages."""
