"""Split a secret into shares, and restore it (Shamir 1979, by pycryptodome over GF(2^128))."""

from collections.abc import Mapping, Sequence

from Crypto.Protocol.SecretSharing import Shamir


def split_secret(secret: bytes, threshold: int, num_shares: int) -> Sequence[bytes]:
    """Return the shares with the indices 1 to ``num_shares``, 16 bytes each.

    Any ``threshold`` of them restore the secret; fewer tell nothing about it.
    """
    return [share for _, share in Shamir.split(threshold, num_shares, secret, ssss=False)]


def restore_secret(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from as many shares as the threshold, by index.

    Wrong shares give a wrong secret in silence: check each against its hash before.
    """
    return bytes(Shamir.combine(list(shares.items()), ssss=False))
