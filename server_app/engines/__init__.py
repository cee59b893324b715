"""Run the clients: in this process, on Ray, or on a federation of Flower's."""
