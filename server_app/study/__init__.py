"""Which method helps a federation, and by how much."""

from server_app.study.decision import Comparison, Decision, decide

__all__ = ["Comparison", "Decision", "decide"]
