"""How many workers there should be, and the loop that brings it about."""
