"""Codecs and vocabulary of the remoting protocol and the message record; sans I/O."""
