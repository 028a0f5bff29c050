"""The HTTP pages: metrics, health, `/drainz`."""
