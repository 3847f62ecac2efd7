"""A schedule explorer for the worker's own code: `python -m tests.explorer --help`."""
