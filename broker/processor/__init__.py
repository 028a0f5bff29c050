"""Request processors, a module a family of codes."""
