"""Typed headers of requests and responses, a module for each family of codes.

A header is a dataclass whose fields carry their names on the wire; `fields` turns it into the text
fields of a command and back, with RocketMQ's rules for what is missing or is no number.
"""
