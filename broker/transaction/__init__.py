"""Transactions: half messages, how they end, and the questions about those that do not.

A half waits in RocketMQ's half topic; an entry in the op topic says that it has ended. `ledger`
follows both topics, `check_service` asks producers about open ones. No half is ever shown to a
consumer.
"""
