"""How Alembic runs the migrations: on the connection that the store gives, in its transaction."""

from alembic import context

from procsched.stores.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,  # SQLite cannot alter a column
    transaction_per_migration=False,
)
context.run_migrations()
