"""Paged store of the sparse indexer's keys, and the scores of queries against it."""
