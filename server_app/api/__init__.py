"""Run jobs and sweeps from Python; ``fedquorum_app`` is the public interface."""
