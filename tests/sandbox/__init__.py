"""The sandbox under attack: see `hosts.py` for who attacks whom."""
