"""The client's side: what runs where the data is."""
