"""One run of the job `metrics`: sums by window, and where the windows are kept."""
