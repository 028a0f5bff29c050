"""The producing side of the SDK: sends, batches, transactions, request and reply.

`producer` is what applications use; `send_pipeline` carries a send from its call to its result.
"""
