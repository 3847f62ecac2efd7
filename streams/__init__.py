"""The worker: Faust agents, delivery protocol and the life of a request in one process."""
