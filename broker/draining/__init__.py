"""Moving clients away before a stop."""
