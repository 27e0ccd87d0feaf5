"""What HyFDCA can be set to, what of it fits together, and what clients hear of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fedtrellis.dual.alignment import Agreement
from fedtrellis.dual.penalty import Penalty
from fedtrellis.dual.weights import class_rule
from fedtrellis.encryption import Cipher, load_evaluation
from fedtrellis.objectives.losses import LOSSES
from fedtrellis.settings import SettingsError, given, setting
from fedtrellis.wire.arrays import FloatArray, Layout

from ..hybrid import HybridStrategy

Step = Literal["bundle", "line-search", "practical", "theoretical"]
Encryption = Literal["stream", "tenseal-bfv", "none"]
Exposed = Literal["refuse", "leave-out", "accept"]

# what clients agree on, beside what is made of settings
_PINNED = (
    *("encryption", "loss", "smoothing", "regularization", "local_fraction"),
    *("step", "secure_sum", "exposed", "least", "noise", "num_clients"),
)


class HyFDCASettings(HybridStrategy):
    """The settings of :class:`~strategies.HyFDCA`, which has the method itself."""

    classes: int = given(
        "1, or how many there are, 3 or more, each against the rest",
        note="Labels are then numbers from 0, the model has shape (p, C), and the loss "
        "is one of two classes",
        default=1,
        symbol="C",
        minimum=1,
    )
    l1_ratio: float = given(
        "share of ‖w‖₁ in the penalty λ((1 − ρ)/2 ‖w‖² + ρ‖w‖₁), below 1",
        default=0.0,
        symbol="ρ",
        minimum=0.0,
        below=1.0,
    )
    free_feature: str = given(
        "name of a constant column whose weight is not penalised: the intercept; "
        "empty: none",
        default="",
    )
    class_weight: Mapping[float, float] | str | None = given(
        "what samples of a class count: 'balanced', or weights by label, 1 where none "
        "is given; None: all alike",
        default=None,
        shown=False,
    )
    step: Step = setting(
        "bundle",
        "how proposals become a step",
        note="``bundle`` mixes all proposals that the server remembers; "
        "``line-search`` takes the best step towards the last; ``practical`` and "
        "``theoretical`` are the paper's",
        choices=Step,
    )
    local_fraction: float = setting(
        1.0,
        "fraction of a client's samples that move in an iteration, drawn anew each "
        "time",
        symbol="H/N_k",
        above=0.0,
        maximum=1.0,
    )
    memory: int = setting(40, "proposals of a group that a bundle remembers", minimum=3)
    memory_limit: int = setting(
        1024,
        "MiB that the bundle may take on the server: where ``memory`` proposals need "
        "more, fewer are remembered",
        minimum=1,
    )
    standardize: bool | None = setting(
        None,
        "whether columns are brought to one scale first: the penalty is then on the "
        "weights of standardised columns, and the model is in the columns' own units; "
        "auto: for nodes' own files, and otherwise not",
    )
    parts: int = setting(
        1,
        "groups that the samples of one set of holders are cut into, without "
        "secure-sum",
        minimum=1,
    )
    secure_sum: bool = setting(
        True,
        "whether the server sees only sums over all clients: each client's v_k and its "
        "sums of losses are hidden by masks that cancel in the sum",
    )
    exposed: Exposed = setting(
        "refuse",
        "in a simulation, what its nodes do where sums would give single numbers away: "
        "refuse, leave out a node's rare entries, or accept; real nodes say so "
        "themselves",
        choices=Exposed,
    )
    least: int = setting(
        3,
        "in a simulation, the nodes' least number of holders of a feature, of samples "
        "of a group, and of non-zero entries of a feature on a node",
        minimum=2,
    )
    noise: float = setting(
        0.0,
        "in a simulation, the nodes' noise on v_k, in units of what one sample adds",
        minimum=0.0,
    )
    cyclic_groups: int = setting(
        0,
        "C ≥ 2: only every C-th client is asked in turn, γ_t = 1/t (the paper's "
        "vertical case, theoretical step only); 0: not",
        minimum=0,
    )
    tolerance: float = setting(
        1e-7, "stop when (P − D)/P is at most this; 0: never", minimum=0.0
    )
    encryption: Encryption = setting(
        "stream",
        "the cipher: a stream cipher that adds, BFV, or none, for debugging",
        choices=Encryption,
    )
    context: str | Path | bytes | None = setting(
        None,
        "file with the evaluation context that belongs to the clients' key file "
        "(fedtrellis-keys); auto: the clients of one machine make a key of their own "
        "for the run, and send its context",
        note="Python takes its bytes, too",
        shown=False,
    )
    backup_every: int = setting(
        10,
        "iterations after which a client sends enc(α) for safekeeping, to be given "
        "back to those that lose their state",
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.safe = self.step in ("bundle", "line-search")
        self.class_rule = class_rule(self.class_weight, self.classes)
        bundle, theoretical = self.step == "bundle", self.step == "theoretical"
        cyclic, sums, several = self.cyclic_groups, self.secure_sum, self.classes > 1
        signs = LOSSES[self.loss].labels == "signs"
        step = f"does not go with step = {self.step!r}; allowed: "
        safe = f"{step}'bundle', 'line-search'"
        loss = f"does not go with loss = {self.loss!r}, which is none of two classes"
        together = "must be 1 with secure_sum: all groups move together"
        two = "is one problem of labels -1 and 1; allowed: 1, or 3 and up"
        cycles = "must be 0, or at least 2 with step 'theoretical'"
        clear = "sends each client's own sums in the clear: it needs secure_sum = "
        clear += "False, and every node to accept that (exposed = 'accept')"
        for name, fits, why in (
            ("l1_ratio", bundle or not self.l1_ratio, f"{step}'bundle'"),
            ("free_feature", bundle or not self.free_feature, f"{step}'bundle'"),
            ("class_weight", signs or not self.class_rule, loss),
            ("classes", self.safe or not several, safe),
            ("classes", signs or not several, loss),
            ("classes", self.classes != 2, two),
            ("cyclic_groups", not cyclic or (cyclic > 1 and theoretical), cycles),
            ("step", self.safe or not sums, clear),
            ("noise", sums or not self.noise, "needs secure_sum = True"),
            ("parts", not sums or self.parts == 1, together),
        ):
            if not fits:
                raise SettingsError(f"{name} = {getattr(self, name)!r} {why}")
        if self.context is not None and self.encryption == "stream":
            raise SettingsError(
                "context = ... does not apply to encryption = 'stream', whose server "
                "needs no context; allowed: nothing, or encryption = 'tenseal-bfv'"
            )
        if self.class_rule:
            self.check_weights(f"class_weight = {self.class_weight!r}")
        # refused now, before any client has sent anything, if it holds a secret key
        self.given_cipher = None
        if self.context is not None:
            context = self.context
            path = Path(context).expanduser() if isinstance(context, str) else context
            self.given_cipher = load_evaluation(path)

    def check_weights(self, what: str) -> None:
        """Raise SettingsError unless samples may have weights with these settings."""
        if self.step != "bundle":
            why = f"which does not go with step = {self.step!r}; allowed: 'bundle'"
            raise SettingsError(f"{what}, {why}")

    @property
    def penalty(self) -> Penalty:
        """What λ weighs; once it is known which column is which."""
        names = list(self.alignment.feature_names)
        if self.free_feature and self.free_feature not in names:
            raise SettingsError(
                f"free_feature = {self.free_feature!r} is not the name of any feature"
            )
        free = names.index(self.free_feature) if self.free_feature else -1
        return Penalty(self.l1_ratio, free)

    # ------------------------------------------------------ what clients have agreed on

    def setup(self, point: FloatArray, layout: Layout) -> None:
        """Nothing is known of keys yet."""
        super().setup(point, layout)
        self._agreement: Agreement | None = None
        self.cipher: Cipher  # adds ciphertexts, once the clients are aligned
        self._fingerprint = ""  # of the clients' common key, if they have one
        self._own_keys = self.given_cipher is not None  # whether the nodes have some

    @property
    def agreement(self) -> Agreement:
        """What all clients have agreed on."""
        assert self._agreement is not None
        return self._agreement

    def phase_config(self) -> dict[str, Any]:
        """What clients are sent in every phase."""
        config: dict[str, Any] = {
            "encryption": self.encryption,
            "own-key": self._own_keys,
        }
        if self._agreement is None:  # later on, what was agreed on counts
            config |= self.pinned_settings()
        if self._fingerprint:
            config["key"] = self._fingerprint
        return config

    def pinned_settings(self) -> dict[str, Any]:
        """The settings that clients agree on before any label travels."""
        settings = {name.replace("_", "-"): getattr(self, name) for name in _PINNED}
        settings |= {
            "session": self.conversation.session,
            "standardize": bool(self.standardize),
        }
        optional = (
            ("classes", self.classes, 1),
            ("l1-ratio", self.l1_ratio, 0.0),
            ("free-feature", self.free_feature, ""),
            ("weighted", self._weighted(), False),
            ("class-weight", self.class_rule, ""),
        )
        # of its default an agreement says nothing
        settings |= {key: own for key, own, default in optional if own != default}
        if self._alignment is not None:
            settings["num-samples-all"] = self.alignment.num_samples
        return settings

    def _weighted(self) -> bool:
        """Whether some client's samples have weights."""
        names = [name for name in self.clients if self.announced(name, "weighted")]
        if names:
            self.check_weights(f"client {', '.join(names)}: samples have weights")
        return bool(names)

    def announced(self, client: str, what: str, default: Any = None) -> Any:
        """What a client said of itself before round 1."""
        return self.conversation.clients[client].properties.get(what, default)

    @property
    def noisy(self) -> bool:
        """Whether clients add noise, so that neither v nor D is exact."""
        noisy = (self.announced(name, "noisy") for name in self.clients)
        return self.noise > 0.0 or any(map(bool, noisy))
