"""What is on each board: one module a board, each with a BOARD."""
