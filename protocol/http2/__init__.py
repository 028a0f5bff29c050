"""The server's end of HTTP/2, as far as gRPC needs it; no I/O.

`connection.py` takes the bytes of one peer and tells what they mean; `broker/grpc/` does the rest.
Nothing here knows of gRPC.
"""
