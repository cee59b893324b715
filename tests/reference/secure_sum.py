"""A round of secure sums by hand: all secrets in one place, and masks byte by byte.

Independent of ``fedquorum.flower.secure``: HKDF by HMAC, the counter mode by blocks, and Shamir's
polynomials are written out; X25519 and the AES block are the ``cryptography`` package's.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

MODULUS = 2**64


def derive_key(secret: bytes, info: bytes, length: int = 32) -> bytes:
    """Return HKDF-SHA256 without salt (RFC 5869)."""
    pseudo_random = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    output, block = b"", b""
    for i in range(1, -(-length // 32) + 1):
        block = hmac.new(pseudo_random, block + info + bytes([i]), hashlib.sha256).digest()
        output += block
    return output[:length]


def build_info(purpose: bytes, run: str, server_round: int, nodes: Sequence[int]) -> bytes:
    """Return what a key is bound to."""
    numbers = [len(purpose), len(run.encode()), server_round, *nodes]
    return purpose + run.encode() + b"".join(n.to_bytes(8, "big") for n in numbers)


def generate_mask(key: bytes, length: int) -> list[int]:
    """Return numbers from the key stream of AES-256 in counter mode, one block at a time."""
    block_cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - one block
    blocks = [block_cipher.update(i.to_bytes(16, "big")) for i in range(-(-length // 2))]
    stream = b"".join(blocks)
    return [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(length)]


def mask_vectors(
    vectors: Mapping[int, Sequence[int]],
    mask_secrets: Mapping[int, bytes],
    own_secrets: Mapping[int, bytes],
    *,
    run: str,
    server_round: int,
    neighbors: Mapping[int, Sequence[int]],
) -> dict[int, list[int]]:
    """Return the vector that each node sends."""
    keys = {
        k: X25519PrivateKey.from_private_bytes(
            derive_key(secret, build_info(b"pair mask", run, server_round, ()))
        )
        for k, secret in mask_secrets.items()
    }
    masked = {}
    for k, vector in vectors.items():
        own_key = derive_key(own_secrets[k], build_info(b"own mask", run, server_round, (k,)))
        total = [a + b for a, b in zip(vector, generate_mask(own_key, len(vector)), strict=True)]
        for other in neighbors[k]:
            shared = keys[k].exchange(keys[other].public_key())
            info = build_info(b"pair mask", run, server_round, sorted((k, other)))
            mask = generate_mask(derive_key(shared, info), len(vector))
            sign = 1 if k < other else -1
            total = [a + sign * b for a, b in zip(total, mask, strict=True)]
        masked[k] = [a % MODULUS for a in total]
    return masked


POLYNOMIAL = (1 << 128) | 0b10000111
"""x^128 + x^7 + x^2 + x + 1, the field of the shares."""


def multiply(a: int, b: int) -> int:
    """Return the product in GF(2^128)."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a <<= 1
        if a >> 128:
            a ^= POLYNOMIAL
        b >>= 1
    return product


def invert(a: int) -> int:
    """Return 1 / a in GF(2^128), by Fermat: a^(2^128 - 2)."""
    result, power = 1, a
    for _ in range(127):
        power = multiply(power, power)
        result = multiply(result, power)
    return result


def restore_secret(shares: Mapping[int, bytes]) -> bytes:
    """Return the value at 0 of the polynomial through the shares, by Lagrange."""
    total = 0
    for i, share in shares.items():
        term = int.from_bytes(share, "big")
        for j in shares:
            if j != i:
                term = multiply(term, multiply(j, invert(i ^ j)))
        total ^= term
    return total.to_bytes(16, "big")
