"""What keeps a store sound: recovery after a crash, removal of what has expired, full disks."""
