"""HTTP/2, both ends of it, as far as gRPC needs it; no I/O.

`server.py` and `client.py` take the bytes of one peer and tell what they mean, over what both have
in common, which is `connection.py`; `broker/grpc/` does the rest. `grpc.py` has what gRPC says over
it; the others know nothing of that.
"""
