"""The parity harness: capture what both trainers compute, compare it, name the first difference."""
