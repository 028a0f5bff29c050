"""The consuming side of the SDK."""
