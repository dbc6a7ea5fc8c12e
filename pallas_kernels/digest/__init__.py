"""The digest of bytes on a device: equal, bit for bit, to the one that a transfer is checked by."""
