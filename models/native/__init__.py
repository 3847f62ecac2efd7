"""A whole step of a Llama-like model on a CPU in one call: packed weights, paged attention, argmax.

The C++ sources stand in cpp/; they are compiled on first use for the machine they run on.
"""
