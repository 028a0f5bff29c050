"""The messages of RocketMQ 5's gRPC service, and its status codes.

`schema_pb2` needs protobuf, which the extra `grpc` brings; `codes` needs nothing.
"""
