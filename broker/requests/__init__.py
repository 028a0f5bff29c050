"""What all who handle requests share: the broker's state as they see it, and common checks."""
