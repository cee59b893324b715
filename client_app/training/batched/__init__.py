"""The clients of a node trained together: stacked models, one pass for all of their batches."""

from client_app.training.batched.training import BatchedTrainer

__all__ = ["BatchedTrainer"]
