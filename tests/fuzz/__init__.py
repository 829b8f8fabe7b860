"""Bytes that nobody should have written, into each end that reads what another process wrote.

`targets.py` has a function for each protocol: given any bytes it feeds them, cut and framed as they say, to the shipped
code, and asserts that they make a message, an error that ends that worker (or helper) alone, or a wait that has a
deadline. `tests/property/test_fuzz.py` gives them what hypothesis thinks of; ``python -m tests.fuzz --minutes 10`` what
atheris finds by coverage (https://github.com/google/atheris), where that is installed.
"""
