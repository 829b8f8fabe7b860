"""What runs inside the child processes: the guard, the helper and the workers."""
