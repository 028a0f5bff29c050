"""The source's decisions and readers; `source.py` is the door to them."""
