"""The broker daemon: network, processors, state and services."""
