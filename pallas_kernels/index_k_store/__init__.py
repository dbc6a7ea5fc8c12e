"""Store of the sparse indexer's keys into their pages."""
