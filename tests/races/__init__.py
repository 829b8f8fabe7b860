"""Ways in which a run can end, aimed at the same instant: every pair, on real processes, thousands of times.

`python -m tests.races --rounds 10000` runs all pairs in both faces; `tests/process/test_races.py` runs some hundred.
"""
