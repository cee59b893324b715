"""fedau: A Flower Baseline."""
