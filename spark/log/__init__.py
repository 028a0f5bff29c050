"""Store files without a broker; `commitlog.py` is the door to them."""
