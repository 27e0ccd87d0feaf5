"""The task ``characters``: its text and its transformer."""

from typing import Any

import pytest

from tasks.classification import SOURCES, Characters, passages

torch = pytest.importorskip("torch")


def test_clients_by_source_have_one_each() -> None:
    sizes: Any = {"train_passages": 120, "test_passages": 40, "context": 16}
    made = Characters(8, 0, partition="labels", width=16, blocks=1, **sizes)
    own, tests = (
        [{row.tobytes() for row in passages(s, n, 17, 0, part)[:, 1:]} for s in SOURCES]
        for part, n in (("training", 30), ("test", 10))
    )
    # what is trained on and what is tested on are not the same
    assert not any(b <= a for a, b in zip(own, tests, strict=True))
    holders = []
    for i in range(8):
        objective: Any = made.client_objective(i)
        rows = {r.numpy().tobytes() for r in objective.examples.tensors["labels"]}
        holders.append([s for s in range(4) if rows <= own[s]])
    assert sorted(holders) == [[s] for s in (0, 0, 1, 1, 2, 2, 3, 3)]


def test_the_transformer_is_pytorchs_own_encoder() -> None:
    """Its attention, norms and perceptron against ``nn.TransformerEncoderLayer``."""
    from tasks.networks import HEADS, CharacterTransformer, seeded

    with seeded(3):
        model = CharacterTransformer(7, 9, 12, 1).double()
    twin = torch.nn.TransformerEncoderLayer(
        12, HEADS, 48, 0.0, "gelu", batch_first=True, norm_first=True
    ).double()
    block: Any = model.blocks[0]
    names = {
        "queries_keys_values.weight": "self_attn.in_proj_weight",
        "joined.weight": "self_attn.out_proj.weight",
        "before_attention.": "norm1.",
        "perceptron.0.": "norm2.",
        "perceptron.1.": "linear1.",
        "perceptron.3.": "linear2.",
    }
    state = {name: torch.zeros_like(value) for name, value in twin.state_dict().items()}
    for name, value in block.state_dict().items():
        for own, theirs in names.items():
            if name.startswith(own):
                state[name.replace(own, theirs)] = value
    twin.load_state_dict(state)
    with torch.no_grad():
        text = torch.randint(7, (5, 9), generator=torch.Generator().manual_seed(0))
        x = model.symbols(text) + model.places
        mask = torch.nn.Transformer.generate_square_subsequent_mask(9).double()
        x = twin(x, src_mask=mask)
        expected = model.scores(model.before_scores(x)).transpose(1, 2)
        assert torch.abs(model(text) - expected).max() < 1e-12
