"""Run the client's half: the gate's decision, simulated availability and response times."""
