"""The command line: `__main__` reads it, and each command has a file of its own."""
