"""One run of the job `archive`."""
