"""What federated Frank-Wolfe can be set to, and what of it fits together."""

from __future__ import annotations

from typing import Literal, get_args

from fedtrellis.corrective import Correction
from fedtrellis.schedules import Schedule
from fedtrellis.settings import SettingsError, setting

from ..frank_wolfe import FrankWolfeStrategy

__all__ = ["PAPERS", "VARIANTS", "FedFWSettings"]

Paper = Literal["plain", "augmented", "stochastic"]
Variant = Literal["corrective", Paper]
PAPERS: tuple[Paper, ...] = get_args(Paper)
VARIANTS: tuple[Variant, ...] = get_args(Variant)
StepCount = Literal["own", "round"]
_CORRECTIVE = {"variant": ("corrective",)}
_PAPERS = {"variant": PAPERS}
# whose clients send atoms alone, of gradients of one round
_PRIVATE = ("plain", "augmented")
_AUGMENTED = {"variant": ("augmented",)}
_STOCHASTIC = {"variant": ("stochastic",)}


class FedFWSettings(FrankWolfeStrategy):
    """The settings of :class:`~strategies.FedFW`, which has the method itself."""

    penalty: float = setting(
        None,
        "weight of the consensus penalty, λ_0, or ρ of the corrective variant; auto: "
        "by what the clients' first answers say",
        symbol="λ_0",
        minimum=0.0,
    )
    variant: Variant | Literal["auto"] = setting(
        None,
        "corrective steps, FedFW, FedFW+ (augmented) or FedFW-sto",
        auto="corrective",
        choices=Variant,
    )
    correction: Correction = setting(
        "projected",
        "the corrective variant's steps: on x_i itself, within a face that the oracle "
        "widens, or pairwise, on the weights of atoms",
        choices=Correction,
        only=_CORRECTIVE,
    )
    schedule: Schedule | Literal["auto"] = setting(
        None,
        "of step size and penalty; the corrective variant has no steps of a schedule, "
        "and asks only whether F is convex or nonconvex",
        note="see :class:`~fedtrellis.schedules.FrankWolfeSchedule`",
        auto="convex",
        choices=Schedule,
    )
    step_count: StepCount | Literal["auto"] = setting(
        None,
        "what t of the convex schedule counts: the steps of each client that were "
        "used (own), or the rounds (round), as the paper does; auto: own with that "
        "schedule",
        choices=StepCount,
        only=_PAPERS,
    )
    local_steps: int = setting(
        None,
        "steps of a client in a round; auto: 20 of the corrective variant, 1 of the "
        "papers'",
        symbol="k",
        minimum=1,
    )
    step_size: float = setting(
        0.01,
        "of the constant schedule",
        symbol="η",
        above=0.0,
        maximum=1.0,
        only=_PAPERS,
    )
    averaging: float = setting(
        0.1,
        "weight of a new gradient in FedFW-sto's constant schedule",
        symbol="ρ",
        above=0.0,
        maximum=1.0,
        only=_STOCHASTIC,
    )
    dual_penalty: float = setting(
        None,
        "λ_0 of y_i in FedFW+; auto: that of penalty",
        minimum=0.0,
        only=_AUGMENTED,
    )
    batch_size: int = setting(
        64, "examples in a mini-batch of FedFW-sto", minimum=1, only=_STOCHASTIC
    )
    tolerance: float = setting(
        0.0,
        "relative size of the corrective variant's residuals, and of the certificate "
        "if there is one, that ends the run; 0: never",
        minimum=0.0,
        only=_CORRECTIVE,
    )
    certificate: bool = setting(
        False,
        "bound F* from below, for convex f_i: every client of the corrective variant "
        "also sends f_i(x_i) and a Frank-Wolfe gap",
        only=_CORRECTIVE,
    )
    lmo_noise: float = setting(
        0.0,
        "standard deviation of Gaussian noise on g_i, added by the client before its "
        "oracle; 0: none",
        symbol="σ",
        minimum=0.0,
        only=_PAPERS,
    )
    lmo_noise_decay: bool = setting(
        True,
        "whether that deviation is σ √η_t; without this F stays above F*, by more the "
        "larger σ is",
        only=_PAPERS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.privacy != "none":
            self._check_private()
        if self.variant not in PAPERS:
            if self.schedule not in ("convex", "nonconvex"):
                raise SettingsError(
                    f"schedule = {self.schedule!r} is for variant = "
                    f"{', '.join(PAPERS)}, not for {self.variant!r}; allowed: convex, "
                    "nonconvex"
                )
            if self.penalty == 0.0:
                raise SettingsError(
                    "penalty = 0.0 is for variant = "
                    f"{', '.join(PAPERS)}, not for {self.variant!r}, which divides by "
                    "it; allowed: numbers above 0, 'auto'"
                )
            return
        if self.step_count == "own" and self.schedule != "convex":
            raise SettingsError(
                "step_count = 'own' is for schedule = 'convex', not for "
                f"{self.schedule!r}; allowed: 'round'"
            )
        self._needs_planned_rounds = self.schedule == "nonconvex"

    def _check_aggregation(self) -> None:
        """The corrective variant averages each client's last; x̄ of others is atoms."""
        self.needs = None if self.variant in PAPERS else "each"
        # an atom for each local step
        self._private_releases = self.local_steps or 1
        super()._check_aggregation()

    def _check_private(self) -> None:
        """Refuse variants that send more than atoms, and what needs ‖g_i‖."""
        given = f"privacy = {self.privacy!r}"
        if self.variant not in _PRIVATE:
            raise SettingsError(
                f"{given} does not apply to variant = {self.variant!r}; allowed: "
                f"{', '.join(_PRIVATE)}"
            )
        if self.penalty is None:
            raise SettingsError(
                f"penalty = 'auto' does not apply beside {given}, as clients would "
                "send the norm of their gradients; allowed: numbers"
            )

    @property
    def _counts_own_steps(self) -> bool:
        """Whether the schedule goes by each client's own steps."""
        return self.schedule == "convex" and self.step_count != "round"
