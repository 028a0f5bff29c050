"""Records and properties into Arrow columns.

Source, archive and log reader share it; `batches` in the folder above is the door. A column that a
query does not ask for is not made.
"""
