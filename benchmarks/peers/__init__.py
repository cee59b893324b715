"""Other simulators of federated learning, run on the workloads of ``benchmarks/engines.py``."""
