"""One run of the job `replay`, its tasks and its ledger."""
