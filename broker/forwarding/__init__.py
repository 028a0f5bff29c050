"""The gRPC endpoint that stands for several brokers: calls are forwarded to who has the queue.

Only `broker/grpc_service.py`, which starts it, imports it.
"""
