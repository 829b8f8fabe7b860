"""Chaos: a mixed load on a scheduler and an executor while everything around them fails at random.

    __main__      prepares a place and a user, compares what was told at the end, prints the table
      | starts (in private mounts, as a user of its own)
    saboteur      kills, stops, starves and garbles what is below it; sees what outlives the subject
      | starts (with the clock that can be stepped)
    subject       Scheduler and ProcessExecutor with their load; writes down what it is told
      | procsched
    guard, helper, workers: actions that write down that they begin and end

What the subject is told goes to its ledger, what really ran to the marks; `checking.py` compares the two.
"""
