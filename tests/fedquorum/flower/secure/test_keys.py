"""Keys, masks and encrypted shares, beside the vectors of their standards."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fedquorum.flower.secure import keys
from fedquorum.flower.secure.errors import ProtocolViolationError
from fedquorum.flower.secure.keys import (
    OWN_MASK,
    PAIR_MASK,
    SHARES,
    RoundId,
    add_mask,
    agree_on_key,
    create_secret,
    decrypt_shares,
    derive_own_mask_key,
    derive_private_key,
    encrypt_shares,
    get_public_bytes,
)
from fedquorum.flower.secure.shares import restore_secret, split_secret

from tests.reference import secure_sum as reference

ROUND = RoundId("run", 7)


def test_the_reference_derives_the_keys_of_rfc_5869() -> None:
    """Test case 3: no salt, no info."""
    expected = (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )
    assert reference.derive_key(b"\x0b" * 22, b"", 42).hex() == expected


def test_the_reference_generates_the_stream_of_aes_256() -> None:
    """The block of FIPS 197, appendix C.3, encrypted as a counter."""
    key = bytes(range(32))
    counter = int.from_bytes(bytes.fromhex("00112233445566778899aabbccddeeff"), "big")
    assert reference.generate_mask(key, 2) != [counter, counter]
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - one block
    assert block.update(counter.to_bytes(16, "big")).hex() == "8ea2b7ca516745bfeafc49904b496089"


def test_two_nodes_agree_on_a_key() -> None:
    """Each from its private key and the other's public one; the order of the pair is not in it."""
    alice, bob = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    one = agree_on_key(alice, get_public_bytes(bob), ROUND, PAIR_MASK, (1, 2))
    other = agree_on_key(bob, get_public_bytes(alice), ROUND, PAIR_MASK, (2, 1))
    shared = alice.exchange(bob.public_key())
    info = reference.build_info(b"pair mask", "run", 7, (1, 2))
    assert one == other == reference.derive_key(shared, info)


@pytest.mark.parametrize(
    "public",
    [bytes(32), b"\x01" + bytes(31), b"", bytes(31)],
    ids=["zero", "one", "empty", "short"],
)
def test_a_public_key_without_an_agreement_is_refused(public: bytes) -> None:
    """A point of small order gives the all-zero key with any private key."""
    private = X25519PrivateKey.generate()
    with pytest.raises(ProtocolViolationError, match="node 5: its public key cannot be used"):
        agree_on_key(private, public, ROUND, PAIR_MASK, (4, 5))


def test_every_key_has_one_use() -> None:
    """Another run, round, purpose, node or pair gives another key."""
    secret, private = create_secret(), X25519PrivateKey.generate()
    public = get_public_bytes(X25519PrivateKey.generate())
    rounds = [ROUND, RoundId("run", 8), RoundId("ru", 7), RoundId("run2", 7)]
    found = [derive_own_mask_key(secret, one, node) for one in rounds for node in (1, 2)]
    found += [
        agree_on_key(private, public, one, purpose, pair)
        for one in rounds
        for purpose in (PAIR_MASK, SHARES)
        for pair in ((1, 2), (1, 3))
    ]
    found += [
        derive_private_key(secret, one, purpose).private_bytes_raw()
        for one in rounds
        for purpose in (PAIR_MASK, SHARES, OWN_MASK)
    ]
    assert len({*found}) == len(found)


@pytest.mark.parametrize("length", [1, 2, 3, 1000, keys.BLOCK, keys.BLOCK + 1, 2 * keys.BLOCK + 5])
def test_a_mask_is_the_key_stream(length: int) -> None:
    """Over any number of blocks; subtracting it again leaves the vector."""
    key = bytes(range(32))
    vector = np.random.default_rng(0).integers(0, 2**64, length, dtype=np.uint64)
    masked = vector.copy()
    add_mask(masked, key)
    few = min(length, 2000)
    mask = np.array(reference.generate_mask(key, few), dtype=np.uint64)
    assert np.array_equal(masked[:few], vector[:few] + mask)
    add_mask(masked, key, negative=True)
    assert np.array_equal(masked, vector)


def test_an_empty_vector_has_no_mask() -> None:
    """A model without numbers can be summed, too."""
    vector = np.zeros(0, np.uint64)
    add_mask(vector, bytes(32))
    assert vector.size == 0


@pytest.mark.parametrize(("threshold", "count"), [(2, 3), (3, 5), (5, 9)])
def test_any_threshold_of_shares_restores_a_secret(threshold: int, count: int) -> None:
    """By Lagrange's formula written out; one fewer gives another secret."""
    secret = create_secret()
    shares = dict(enumerate(split_secret(secret, threshold, count), 1))
    for start in range(count - threshold + 1):
        few = dict(list(shares.items())[start : start + threshold])
        assert reference.restore_secret(few) == restore_secret(few) == secret
    assert restore_secret(dict(list(shares.items())[: threshold - 1])) != secret


def test_encrypted_shares_are_for_one_receiver_of_one_round() -> None:
    """Every other sender, receiver, round or byte is refused, with the sender's name."""
    key = create_secret() * 2
    sealed = encrypt_shares(key, b"shares", ROUND, 1, 2)
    assert decrypt_shares(key, sealed, ROUND, 1, 2) == b"shares"
    assert encrypt_shares(key, b"shares", ROUND, 1, 2) != sealed
    flipped = bytes([sealed[0] ^ 1]) + sealed[1:]
    for wrong in (
        (key, sealed, ROUND, 1, 3),
        (key, sealed, ROUND, 2, 1),
        (key, sealed, RoundId("run", 8), 1, 2),
        (bytes(32), sealed, ROUND, 1, 2),
        (key, flipped, ROUND, 1, 2),
        (key, sealed[:-1], ROUND, 1, 2),
        (key, b"", ROUND, 1, 2),
    ):
        with pytest.raises(ProtocolViolationError, match=f"node {wrong[3]}: its shares cannot"):
            decrypt_shares(*wrong)
