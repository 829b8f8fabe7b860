"""The test suite. `pytest` runs it; see docs/pages/contributing.md."""
