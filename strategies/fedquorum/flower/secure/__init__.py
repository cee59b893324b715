"""Sum integer vectors of nodes so that the server learns the sum and no vector.

Each node adds masks to its vector, modulo 2^64. A pair of neighbors has a common mask, which one
adds and the other subtracts; each node also adds a mask of its own. In the sum the common masks
vanish. Nodes hold Shamir shares of each other's secrets, so that the server can remove the own
masks of those that sent a vector, and the common masks of those that did not.

One round has four exchanges:

1. keys     each node sends two public keys and the hash of the secret of its own mask
2. shares   each node sends encrypted shares of its two secrets to its neighbors, through the server
3. vectors  each node sends its masked vector
4. unmask   each node sends, of each neighbor, one of the two shares that it holds

``node`` has the node's side, ``server`` the server's; both are pure, but for the system's random
numbers: a secret must not follow from the seed of the run.

An honest-but-curious server, with fewer than ``threshold`` of the holders of a node's shares of the
same mind, learns who took part and the sum. Not covered: a server that lies about who is there or
replaces public keys, which it carries itself; and what a node puts into its own vector.

Sources: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning"
(CCS 2017); Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead" (CCS
2020), for the graph of neighbors.
"""
