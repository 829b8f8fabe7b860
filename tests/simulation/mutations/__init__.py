"""Breaks of the shipped source, made on purpose: the simulation has to catch each.

`python -m tests.simulation.mutations` runs them.
"""
