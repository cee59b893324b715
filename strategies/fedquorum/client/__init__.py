"""Run the client's side: the gate's decision, simulated availability and response times."""
