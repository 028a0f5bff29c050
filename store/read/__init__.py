"""Reading messages back: by queue offset, by time, by place; from the disk off the loop."""
