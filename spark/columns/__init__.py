"""Records into Arrow columns, each kind by itself; `batches.py` is the door to them."""
