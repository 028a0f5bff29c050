"""The name server: routes of topics, in the broker process or its own."""
