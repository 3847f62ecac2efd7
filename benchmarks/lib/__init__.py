"""What the benchmarks share: workloads, measured engines in processes of their own, tables."""
