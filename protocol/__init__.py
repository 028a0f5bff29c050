"""Codecs and vocabulary of the remoting protocol and of the stored message. No input or output.

Frames, commands with their three kinds of headers, message records, batches, properties, codes and
flags: bytes in, values out, and back. All rooms but `common` call it. It opens no socket or file,
has no clock of its own and keeps no state, so it can be tested with bytes alone.
"""
