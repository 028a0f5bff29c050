"""The endpoint for clients of RocketMQ 5: gRPC in the broker's own process.

It needs grpcio and protobuf, which the extra `grpc` brings. A broker whose `grpcListenPort` is 0
imports nothing of it.
"""
