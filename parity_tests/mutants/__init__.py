"""Planted faults: the harness must find each where it was planted, and raise no alarm without one."""
