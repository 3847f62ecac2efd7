"""What writes to the topics: our own producer, for the command line and the gateway."""
