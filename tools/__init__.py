"""The command line beside the servers: messages from a shell, and tools for stopped stores."""
