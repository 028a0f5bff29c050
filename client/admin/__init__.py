"""Administration of a cluster, by kind of thing; `Admin` is all of it."""

from skylarkmq.client.admin.admin import Admin

__all__ = ["Admin"]
