"""The topics of this broker: who may create them, their settings, their deletion."""
