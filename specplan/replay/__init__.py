"""Replay recorded tokens through draft sources, without a GPU."""
