"""The command line, the stack on one machine, topics: what starts and provisions the pipeline."""
