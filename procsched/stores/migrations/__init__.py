"""The migrations of a store's schema, for Alembic; `stores/migrating.py` runs them."""
