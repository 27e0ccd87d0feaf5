"""What clients agree on: read back as it was written, or refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrellis.dual.alignment import HASH_BYTES, Agreement, align, feature_digests
from fedtrellis.encryption.block_sum import Introduction


def _hashes(samples: list[int]) -> Any:
    data = b"".join(hashlib.sha256(b"%d" % i).digest()[:HASH_BYTES] for i in samples)
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, HASH_BYTES)


def _member(name: str) -> Introduction:
    return Introduction(name, "f" * 16, hashlib.sha256(name.encode()).digest())


def _agreed(samples: dict[str, list[int]], features: dict[str, list[str]]) -> Agreement:
    alignment = align({k: _hashes(v) for k, v in samples.items()}, features)
    new = align({k: _hashes(v[:1]) for k, v in samples.items()}, features).groups
    members = [_member(name) for name in samples]
    return Agreement.of({"session": "s", "answers": 5}, members, alignment, new)


def _small() -> Agreement:
    return _agreed(
        {"a": [1, 2, 3], "b": [2, 3], "c": [4]},
        {"a": ["x", "y"], "b": ["z"], "c": ["y"]},
    )


@st.composite
def _holdings(draw: st.DrawFn) -> tuple[dict[str, list[int]], dict[str, list[str]]]:
    names = [str(i) for i in range(draw(st.integers(1, 5)))]
    samples = st.lists(st.integers(0, 12), min_size=1, max_size=9, unique=True)
    features = st.lists(st.sampled_from("abcdefghij"), min_size=1, unique=True)
    return {n: draw(samples) for n in names}, {n: draw(features) for n in names}


@settings(max_examples=60, deadline=None)
@given(held=_holdings())
def test_it_says_who_holds_what(held: Any) -> None:
    samples, features = held
    agreement = Agreement.from_bytes(_agreed(samples, features).to_bytes())
    assert agreement.names == tuple(samples)
    for i, name in enumerate(samples):
        assert agreement.index(name) == i
        said = {agreement.features[m] for m in np.flatnonzero(agreement.holdings[i])}
        assert said == set(feature_digests(features[name]))
        groups = enumerate(agreement.groups)
        sizes = [size for g, (_, size, _) in groups if name in agreement.holders(g)]
        assert sum(sizes) == len(samples[name])
    counts = dict(
        zip(agreement.features, agreement.holdings.sum(axis=0).tolist(), strict=True)
    )
    for feature in set().union(*features.values()):
        (digest,) = feature_digests([feature])
        assert counts[digest] == sum(feature in own for own in features.values())
    sets = {agreement.holders(g) for g in range(len(agreement.groups))}
    sets |= {agreement.holders(g, new=True) for g in range(len(agreement.new_groups))}
    assert set(agreement.holder_sets) == {one for one in sets if len(one) > 1}


def test_one_form_only_and_its_digest() -> None:
    agreement = _small()
    data = agreement.to_bytes()
    again = Agreement.from_bytes(data)
    assert again == agreement
    assert again.to_bytes() == data
    assert again.digest == hashlib.sha256(data).digest()
    with pytest.raises(ValueError, match="client d is not in the agreement"):
        again.index("d")


def test_the_digest_changes_with_everything_that_is_agreed() -> None:
    one = _small()
    g = next(g for g, (holders, _, _) in enumerate(one.groups) if len(holders) > 1)
    holders, size, digest = one.groups[g]
    before, after = one.groups[:g], one.groups[g + 1 :]
    others = [
        replace(one, settings={**one.settings, "answers": 6}),
        replace(one, settings={**one.settings, "more": 0}),
        replace(one, members=one.members[::-1]),
        replace(one, features=one.features[::-1]),
        replace(one, held=one.held[::-1]),
        replace(one, groups=one.groups[::-1]),
        replace(one, new_groups=one.new_groups[:-1]),
        replace(one, groups=(*before, (holders, size + 1, digest), *after)),
        replace(one, groups=(*before, (holders, size, "0" * 64), *after)),
        replace(one, groups=(*before, (holders[::-1], size, digest), *after)),
    ]
    member = one.members[0]._replace
    changed = [member(name="0"), member(key="0"), member(fresh=b"0")]
    others += [replace(one, members=(own, *one.members[1:])) for own in changed]
    assert len({other.digest for other in [one, *others]}) == len(others) + 1


def _edited(edit: Callable[[dict[str, Any]], Any]) -> bytes:
    content = json.loads(_small().to_bytes())
    edit(content)
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "edit",
    [
        lambda c: c.pop("settings"),
        lambda c: c.update(settings=[1]),
        lambda c: c.update(extra=1),
        lambda c: c.update(members=[]),
        lambda c: c["members"].append(c["members"][0]),
        lambda c: c["members"][0].append("more"),
        lambda c: c["held"].pop(),
        lambda c: c["held"].__setitem__(0, "zz"),
        lambda c: c["held"].__setitem__(0, "c0c0"),
        lambda c: c["groups"][0].__setitem__(0, []),
        lambda c: c["groups"][0].__setitem__(0, [0, 0]),
        lambda c: c["groups"][0].__setitem__(0, [3]),
        lambda c: c["groups"][0].__setitem__(0, [-1]),
        lambda c: c["groups"][0].__setitem__(1, 0),
        lambda c: c["groups"][0].__setitem__(1, 1.5),
        lambda c: c["new-groups"].append([[0], 1]),
    ],
)
def test_what_contradicts_itself_is_refused(edit: Any) -> None:
    with pytest.raises(ValueError, match="the agreement is malformed"):
        Agreement.from_bytes(_edited(edit))


def test_what_is_no_agreement_is_refused() -> None:
    data = _small().to_bytes()
    for wrong in (b"", b"[]", b"\xff", data[:-1], data + b" ", b"[" * 100_000):
        with pytest.raises(ValueError, match="the agreement is malformed"):
            Agreement.from_bytes(wrong)
