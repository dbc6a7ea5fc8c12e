"""Top-k over masked scores with a defined order of ties."""
