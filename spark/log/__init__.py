"""The log files of a store as a table, without a broker; `source.py` is the door to them."""
