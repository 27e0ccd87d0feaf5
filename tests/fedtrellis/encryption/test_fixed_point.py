"""Real numbers as integers: rounding, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtrellis.encryption import (
    FIELD_MODULUS,
    MAX_TERMS,
    PLAIN_MODULUS,
    EncryptionError,
    FixedPoint,
)


def _is_prime(number: int) -> bool:
    """Miller-Rabin with bases that decide every number below 3.3e24."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def test_the_modulus_is_the_largest_prime_of_58_bits_for_batching() -> None:
    assert PLAIN_MODULUS.bit_length() == 58
    assert PLAIN_MODULUS % 8192 == 1
    assert _is_prime(PLAIN_MODULUS)
    larger = range(PLAIN_MODULUS + 8192, 2**58, 8192)
    assert not any(_is_prime(number) for number in larger)


@given(
    st.floats(-131071.0, 131071.0),
    st.integers(1, 40),
)
def test_rounding_is_to_the_nearest_multiple(value: float, bits: int) -> None:
    fixed = FixedPoint(bits)
    (integer,) = fixed.quantize([value])
    assert abs(integer * fixed.resolution - value) <= fixed.resolution / 2
    assert fixed.dequantize(fixed.quantize([value]))[0] == integer * 2.0**-bits


@given(st.integers(-(2**53), 2**53))
def test_integers_come_back_exactly(integer: int) -> None:
    fixed = FixedPoint(40)
    values = fixed.dequantize([integer])
    assert fixed.quantize(values).tolist() == [integer]


@given(st.integers(1, MAX_TERMS), st.integers(1, 52))
def test_the_limit_is_the_largest_that_is_taken(terms: int, bits: int) -> None:
    fixed = FixedPoint(bits)
    limit = fixed.limit(terms)
    (integer,) = fixed.quantize([limit], terms).tolist()
    assert integer * terms <= (FIELD_MODULUS - 1) // 2
    beyond = max(math.nextafter(limit, math.inf), limit + fixed.resolution)
    with pytest.raises(EncryptionError, match="too large"):
        fixed.quantize([beyond], terms)
    with pytest.raises(EncryptionError, match="too large"):
        fixed.quantize([-beyond], terms)


def test_what_does_not_fit_is_named_with_its_bound() -> None:
    fixed = FixedPoint(40, PLAIN_MODULUS)
    with pytest.raises(EncryptionError) as caught:
        fixed.quantize(np.array([1.0, -2000.0, 3.0]), terms=100)
    text = str(caught.value)
    for part in ("2000", "100 terms", "1310.72", "scale the data"):
        assert part in text
    assert "\n" not in text
    assert isinstance(caught.value, ValueError)
    with pytest.raises(EncryptionError, match="too large"):
        fixed.quantize([1e308])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(EncryptionError, match="1 of 3 values are not finite"):
        FixedPoint().quantize([0.0, value, 1.0])


@pytest.mark.parametrize("terms", [0, -1, MAX_TERMS + 1, True, 1.5, "3"])
def test_terms_are_checked(terms: int) -> None:
    with pytest.raises(EncryptionError, match="terms"):
        FixedPoint().quantize([0.0], terms)


@pytest.mark.parametrize(("bits", "modulus"), [(0, 7), (53, 7), (4, 8), (4, 2**63 + 1)])
def test_parameters_are_checked(bits: int, modulus: int) -> None:
    with pytest.raises(EncryptionError):
        FixedPoint(bits, modulus)


def test_shapes_are_kept_and_nothing_is_nothing() -> None:
    fixed = FixedPoint()
    assert fixed.quantize(np.ones((2, 3))).shape == (2, 3)
    assert fixed.quantize([]).shape == (0,)
    assert fixed.resolution == 2.0**-40
    assert fixed.scale == 2**40
