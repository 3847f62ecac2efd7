"""The load generator of `headrace bench`: a run, what it measures, and how that is told."""
