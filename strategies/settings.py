"""The settings of all methods, as a run config names them."""

from __future__ import annotations

from dataclasses import dataclass

from fedtrellis.admm.shifted_systems import HESSIANS
from fedtrellis.local_steps import STEP_SCHEDULES
from fedtrellis.schedules import SCHEDULES
from fedtrellis.server.loop import SAMPLINGS
from fedtrellis.settings import setting

from .fedfw import VARIANTS
from .hyfdca import ENCRYPTIONS, SLOTS, STEPS
from .zeroth_order_rfl import UPLOADS

__all__ = ["MethodSettings"]


@dataclass(frozen=True)
class MethodSettings:
    """What a run config says of the method; each method uses its own part."""

    participation: float = setting(
        1.0, "probability or fraction of clients in a round", above=0.0, maximum=1.0
    )
    sampling: str = setting("bernoulli", "how clients are drawn", choices=SAMPLINGS)
    variant: str = setting(
        "plain", "FedFW, FedFW+ (augmented) or FedFW-sto", choices=VARIANTS
    )
    schedule: str = setting(
        "",
        "of step size and penalty (Frank-Wolfe); empty: the task's own",
        choices=("", *SCHEDULES),
    )
    penalty: float = setting(
        -1.0, "λ_0 of FedFW, at least 0; -1: the task's own", minimum=-1.0
    )
    dual_penalty: float = setting(
        -1.0, "λ_0 of y in FedFW+; -1: the same as penalty", minimum=-1.0
    )
    step_size: float = setting(
        0.01, "η of the constant schedule", above=0.0, maximum=1.0
    )
    averaging: float = setting(
        0.1, "ρ of FedFW-sto's constant schedule", above=0.0, maximum=1.0
    )
    batch_size: int = setting(64, "mini-batch of FedFW-sto", minimum=1)
    lmo_noise: float = setting(
        0.0, "standard deviation of noise on the oracle's input", minimum=0.0
    )
    local_steps: int = setting(
        5, "local steps a round, k_0 (all but Frank-Wolfe)", minimum=1
    )
    local_step_size: float = setting(
        0.1, "local step size, a (all but Frank-Wolfe and FedGiA)", above=0.0
    )
    local_batch_size: int = setting(
        0,
        "local mini-batch (projected-fedavg, FedDR, Riemannian); 0: all examples",
        minimum=0,
    )
    step_schedule: str = setting(
        "log",
        "local step size in iteration k: a/log2(k+1), a/√k or a "
        "(fedavg-gd, local-sgd, fedprox)",
        choices=STEP_SCHEDULES,
    )
    batch_fraction: float = setting(
        0.05, "local-sgd's mini-batch, of a client's examples", above=0.0, maximum=1.0
    )
    proximal_weight: float = setting(0.01, "μ of FedProx", minimum=0.0)
    relaxation: float = setting(1.95, "α of FedDR, below 2", above=0.0, maximum=1.999)
    proximal_step: float = setting(10.0, "η of FedDR", above=0.0)
    server_step_size: float = setting(
        0.0, "η_g of the Riemannian methods; 0: √n, n the clients averaged", minimum=0.0
    )
    correction: bool = setting(
        True, "whether the Riemannian methods' clients have correction terms"
    )
    step_tolerance: float = setting(
        0.0, "the Riemannian methods' stop rule, on step-norm; 0: none", minimum=0.0
    )
    samples: int = setting(50, "m of zeroth-order-rfl: directions a step", minimum=1)
    smoothing: float = setting(1e-4, "μ of zeroth-order-rfl", above=0.0)
    upload: str = setting("auto", "what zeroth-order-rfl sends up", choices=UPLOADS)
    shared_samples: bool = setting(
        True, "one mini-batch for all values of a zeroth-order step, not one each"
    )
    sigma: float = setting(0.0, "σ of FedGiA; 0: t·r/m", minimum=0.0)
    sigma_scale: float = setting(
        0.0, "t of FedGiA, above 6 in theory; 0: the task's own", minimum=0.0
    )
    selected_fraction: float = setting(
        0.5, "s of FedGiA: clients that take ADMM steps", above=0.0, maximum=1.0
    )
    hessian: str = setting(
        "diagonal", "H_i of FedGiA: FedGiA_D or FedGiA_G", choices=HESSIANS
    )
    curvature: float = setting(
        0.0, "h of H_i = h·I, where a loss knows no bound; 0: its own", minimum=0.0
    )
    dual_step: str = setting("bundle", "hyfdca's step", choices=STEPS)
    local_fraction: float = setting(
        1.0,
        "H/N_k: fraction of a client's samples that move in an iteration of hyfdca",
        above=0.0,
        maximum=1.0,
    )
    memory: int = setting(20, "proposals of a group that a bundle remembers", minimum=3)
    slots: str = setting(
        "all",
        "inner products that hyfdca encrypts: all samples', or the drawn ones'",
        choices=SLOTS,
    )
    local_passes: int = setting(
        0, "dual passes over samples that nobody shares (CoCoA+)", minimum=0
    )
    parts: int = setting(
        1, "groups that samples with the same holders are cut into", minimum=1
    )
    secure_sum: bool = setting(
        False, "whether hyfdca encrypts contributions to w, too: only their sum is seen"
    )
    cyclic_groups: int = setting(
        0, "clients take turns in so many groups (theoretical step); 0: not", minimum=0
    )
    gap_tolerance: float = setting(
        1e-6, "hyfdca's stop rule, on (P − D)/P; 0: none", minimum=0.0
    )
    encryption: str = setting(
        "tenseal-bfv",
        "whose key a simulation's clients make; none is for debugging",
        choices=ENCRYPTIONS,
    )
    context_file: str = setting(
        "",
        "the clients' evaluation context (fedtrellis-keys); empty: they make one",
    )
    backup_every: int = setting(
        10, "iterations between backups of hyfdca's encrypted α", minimum=1
    )
    retries: int = setting(
        2, "how often a phase is asked again of clients that did not answer", minimum=0
    )
    matching: float = setting(1.0, "μ of hyfem", minimum=0.0)
    step_offset: float = setting(
        1.0, "b of the step a/(b + √t) of hyfem and hybrid-fedavg", minimum=0.0
    )
    tolerance: float = setting(
        1e-9, "FedGiA's stop rule, times the parameters; 0: none", minimum=0.0
    )
