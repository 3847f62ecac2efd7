"""Names and buckets of the Prometheus metrics (contract §9).

The processes register what they measure.
"""

PREFIX = "headrace_"

LATENCY_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
INTER_TOKEN_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0)
BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

PREFIX_CACHE_TIERS = ("local", "redis")
KV_DIRECTIONS = ("read", "written")
