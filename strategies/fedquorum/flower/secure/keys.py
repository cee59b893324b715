"""Derive keys and masks from secrets, and encrypt shares.

Every key belongs to one round of one run, one purpose and one ordered pair of nodes, all of which
enter its derivation. So no key encrypts two messages or makes two masks.

Sources: X25519 (RFC 7748), HKDF with SHA-256 (RFC 5869), AES-256 in counter mode (NIST SP 800-38A)
and AES-256-GCM (NIST SP 800-38D), all of the package ``cryptography``.
"""

import hashlib
import os
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from .errors import ProtocolViolationError

SECRET_BYTES = 16
"""One chunk of Shamir's scheme over GF(2^128); keys are derived from it."""

KEY_BYTES = 32
HASH_BYTES = 32
NONCE_BYTES = 12
COUNTER_BYTES = 16
BLOCK = 2**16
"""How many numbers get their masks at a time: 512 KiB, which stay in a core's cache."""

PAIR_MASK, OWN_MASK, SHARES = b"pair mask", b"own mask", b"shares"
"""The purposes of keys."""

Vector = NDArray[np.uint64]
"""Integers modulo 2^64, shape (d,)."""


@dataclass(frozen=True)
class RoundId:
    """The run and the round to which keys belong.

    Parameters
    ----------
    run : str
    server_round : int
        From 1.
    """

    run: str
    server_round: int

    @property
    def of_evaluation(self) -> "RoundId":
        """The same for the evaluation of the round's model."""
        return RoundId(f"{self.run} evaluation", self.server_round)

    def encode(self, purpose: bytes, *nodes: int) -> bytes:
        """Return what a derivation binds a key to, distinct for distinct arguments."""
        run = self.run.encode()
        numbers = (len(purpose), len(run), self.server_round, *nodes)
        return purpose + run + b"".join(int(n).to_bytes(8, "big") for n in numbers)


def create_secret() -> bytes:
    """Return a new secret from the system's random numbers."""
    return os.urandom(SECRET_BYTES)


def hash_secret(secret: bytes) -> bytes:
    """Return the SHA-256 that commits a node to a secret or to a share."""
    return hashlib.sha256(secret).digest()


def derive_private_key(secret: bytes, round_id: RoundId, purpose: bytes) -> X25519PrivateKey:
    """Return the X25519 key that a secret stands for."""
    return X25519PrivateKey.from_private_bytes(_derive(secret, round_id.encode(purpose)))


def get_public_bytes(key: X25519PrivateKey) -> bytes:
    """Return the public key that belongs to a private one, 32 bytes."""
    return key.public_key().public_bytes_raw()


def check_public_key(public: bytes, sender: int) -> None:
    """Refuse a public key that gives the all-zero key for any private key (RFC 7748, section 7).

    Raises
    ------
    ProtocolViolationError
        If it does, or has another length than 32 bytes.
    """
    _compute_shared_secret(X25519PrivateKey.generate(), public, sender)


def agree_on_key(
    private: X25519PrivateKey,
    public: bytes,
    round_id: RoundId,
    purpose: bytes,
    pair: tuple[int, int],
) -> bytes:
    """Return the key of two nodes, the same for both.

    Parameters
    ----------
    private : X25519PrivateKey
        The key of the first node of ``pair``.
    public : bytes
        The public key of the second one, 32 bytes.
    round_id : RoundId
    purpose : bytes
    pair : tuple of int
        Both nodes; their order does not matter for the key.

    Raises
    ------
    ProtocolViolationError
        If the public key has another length, or gives the all-zero key for any private key.
    """
    shared = _compute_shared_secret(private, public, pair[1])
    return _derive(shared, round_id.encode(purpose, *sorted(pair)))


def encrypt_shares(
    key: bytes, plain: bytes, round_id: RoundId, sender: int, receiver: int
) -> bytes:
    """Return shares encrypted by AES-256-GCM, bound to the round, sender and receiver."""
    nonce = os.urandom(NONCE_BYTES)  # both directions of a pair have the same key
    return nonce + AESGCM(key).encrypt(nonce, plain, round_id.encode(SHARES, sender, receiver))


def decrypt_shares(
    key: bytes, sealed: bytes, round_id: RoundId, sender: int, receiver: int
) -> bytes:
    """Return the shares of ``encrypt_shares``.

    Raises
    ------
    ProtocolViolationError
        If they were not encrypted by ``sender`` for ``receiver`` in this round.
    """
    data = round_id.encode(SHARES, sender, receiver)
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], data)
    except (InvalidTag, ValueError):
        raise ProtocolViolationError(sender, "its shares cannot be decrypted") from None


def derive_own_mask_key(secret: bytes, round_id: RoundId, node: int) -> bytes:
    """Return the key of a node's own mask."""
    return _derive(secret, round_id.encode(OWN_MASK, node))


def add_mask(vector: Vector, key: bytes, *, negative: bool = False) -> None:
    """Add the numbers that a key generates to a vector, in place, modulo 2^64; or subtract them.

    The numbers are the key stream of AES-256 in counter mode from counter 0, eight bytes each in
    little-endian order. The counter can start at 0 because each key makes one mask.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(COUNTER_BYTES))).encryptor()
    size = max(1, min(BLOCK, len(vector)))
    zeros = bytes(8 * size)
    buffer = bytearray(8 * size + COUNTER_BYTES - 1)  # as ``update_into`` demands
    numbers = np.frombuffer(buffer, "<u8", size)
    combine = np.subtract if negative else np.add
    for low in range(0, len(vector), size):
        part = vector[low : low + size]
        stream.update_into(memoryview(zeros)[: 8 * len(part)], buffer)
        combine(part, numbers[: len(part)], out=part)


def _compute_shared_secret(private: X25519PrivateKey, public: bytes, sender: int) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolViolationError(sender, "its public key cannot be used") from None


def _derive(secret: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)
