"""KV state beyond this process: blocks in Redis, so that any worker goes on with any conversation.

Knows nothing of Kafka, sessions' text or the scheduler. What it cannot be sure of is a miss.
"""
