"""The command line beside the servers.

`messages` sends, receives and looks at messages of a running cluster with the SDK; `store` works on
stopped stores. Each command prints a table on a terminal and JSON otherwise.
"""
