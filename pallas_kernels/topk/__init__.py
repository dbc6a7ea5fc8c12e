"""Exact top-k over masked scores, and the chosen entries by page and offset."""
