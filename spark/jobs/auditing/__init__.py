"""What the job `audit` compares, and with what."""
