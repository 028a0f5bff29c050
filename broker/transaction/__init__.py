"""Transactions: half messages, their ends, and the questions about those that do not end."""
