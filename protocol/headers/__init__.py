"""Typed request and response headers, a module a family of codes."""
