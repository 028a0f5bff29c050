"""The sink's parts; `sink.py` is the door to them."""
