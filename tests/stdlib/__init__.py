"""The standard library's own tests of executors, run with `ProcessExecutor`: ``python -m tests.stdlib``."""
