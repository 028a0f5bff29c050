"""Pulls that cannot be answered at once: they wait for a message, or for the disk."""
