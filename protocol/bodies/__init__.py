"""Typed JSON bodies of requests and responses, a module for each family of codes.

They read what RocketMQ's fastjson writes, also where that is no JSON (`lenient_json`), and write
what it reads. Fields that we do not know are passed over.
"""
