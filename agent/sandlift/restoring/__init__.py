"""Restore: a pure plan of what to write, and the run that has the helper write it."""

from sandlift.restoring.run import RestoreSpec, restore

__all__ = ["RestoreSpec", "restore"]
