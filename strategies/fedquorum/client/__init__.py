"""The client's half: the gate's decision, and availability processes with their Flower mod."""
