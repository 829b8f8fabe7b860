"""The deterministic simulation: scheduler and pool in one thread, on a clock and with processes that a seed rules.

    run.py --builds--> World (world.py) --steps--> strands.py: the shipped threads, turned inside out
                         |   edges.py: clock, timer, poller, in the modules' own namespaces
                         |   helper.py, children.py: processes that speak the real frames
                         |   script.py: what a seed makes of them;  users.py: what users do
                         '-> checker.py: the contract, after every step

`python -m tests.simulation --seeds 1000` runs it; `--replay SEED --verbose` shows every step of one seed.
"""
