"""The endpoint for clients of RocketMQ 5: gRPC in the broker's own process.

It needs protobuf, which the extra `grpc` brings. A broker whose `grpcListenPort` is 0
imports nothing of it. What it promises is done elsewhere: messages by the store, consumption by
`broker/pop/`, the forwarding of calls to other brokers by `broker/forwarding/`.
"""
