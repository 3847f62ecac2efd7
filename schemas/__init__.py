"""What crosses a process boundary: messages, topics, keys, metrics, settings, errors.

Imports nothing of ours.
"""
