"""The pure part: no threads, files, pipes, signals, clock reads or randomness."""
