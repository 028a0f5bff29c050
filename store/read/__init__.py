"""Reading messages by queue offset, time or physical offset; from the disk off the loop."""
