"""The module names of version 0.1: each still imports, with all that was public."""

from __future__ import annotations

import importlib
import sys

import pytest

from fedtrellis._moved import _MOVED

# The public names of the modules that have moved, as version 0.1 had them.
PUBLIC = {
    "alignment": "HASH_BYTES Alignment AlignmentError Group align",
    "app_directory": "App flatten load_app one_line read_config",
    "arrays": "FloatArray Layout array_record decode encode filled record_arrays",
    "atoms": "Atom DenseAtom PermutationAtom ProductAtom RankOneAtom SignAtom "
    "SparseAtom pack_atoms unpack_atoms",
    "broadcast": "ModelBroadcast OutOfSyncError Step receive sparse_or_dense",
    "callbacks": "Callback EarlyStop RoundRecord format_bytes",
    "checkpoint": "checkpoint_clients load_checkpoint save_checkpoint",
    "client": "MethodClient StatefulClient client_app evaluate_objective",
    "dual_bundle": "DualBundle Mixture maximise_over_simplices",
    "enclosing": "ENCLOSING enclosing_ball",
    "factor_file": "FactorFile fingerprint",
    "local": "FAULTS LocalGrid encode_message",
    "local_dual_passes": "local_dual_passes",
    "loop": "SAMPLINGS RoundStrategy",
    "losses": "LOSSES Hinge Logistic Loss SmoothedHinge Squared make_loss",
    "low_rank_network": "LowRankPerceptron",
    "mean_objective": "MeanObjective",
    "method": "Answer Method",
    "mirror": "Mirror",
    "nonconvex_logistic": "NonconvexLogistic",
    "plots": "plot_convergence",
    "principal_components": "PrincipalComponents",
    "progress": "LOG_FORMATS JsonLines Progress json_log print_json",
    "protocol": "HELLO LARGEST PHASES ClientMemory Named client_identity "
    "identity_order read_request",
    "records": "RunRecord default_results_dir summarise summary_rows to_toml",
    "reference": "Certified Stationary certified_minimum unconstrained_minimum",
    "regularized_loss": "Optimum RegularizedLoss central_optimum",
    "shifted_systems": "HESSIANS CholeskySystem ConjugateGradientSystem DiagonalSystem "
    "ShiftedSystem SpectralSystem UserSystem WideCholeskySystem WideSpectralSystem "
    "cached_system lipschitz_of make_system",
    "sizes": "message_bytes",
    "torch_objective": "TorchObjective",
    "universal_perturbation": "Classifier DifferentiableClassifier "
    "PerceptronClassifier UniversalPerturbation",
}


@pytest.mark.parametrize("old", sorted({*PUBLIC, *_MOVED}))
def test_an_old_name_is_the_module_of_today(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old == "torch_objective":
        pytest.importorskip("torch")
    name, new = f"fedtrellis.{old}", f"fedtrellis.{_MOVED[old]}"
    today = importlib.import_module(new)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(FutureWarning, match=f"{name} is now {new}; the old name goes"):
        module = importlib.import_module(name)
    assert module is today
    assert (module.__name__, module.__spec__ and module.__spec__.name) == (new, new)
    missing = [
        public for public in PUBLIC.get(old, "").split() if public not in dir(module)
    ]
    assert not missing


def test_a_name_that_never_was_does_not_import() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"fedtrellis\.nothing"):
        importlib.import_module("fedtrellis.nothing")
