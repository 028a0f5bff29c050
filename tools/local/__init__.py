"""What the command line keeps and offers on the machine it runs on: contexts, shell completion,
private files, and which addresses are its own.

`contexts` is the file of saved clusters, which `tools/connection.py` reads, too.
"""
