"""What name servers are told about this broker and its topics."""
