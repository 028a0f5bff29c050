"""Dead letters of the job `dlq` on their way back, with a ledger."""
