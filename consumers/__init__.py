"""What reads the response log: the reader itself, and the gateway with its web page."""
