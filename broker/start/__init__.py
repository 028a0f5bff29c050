"""How a daemon's process starts and stops: what it prints, what systemd is told, signals."""
