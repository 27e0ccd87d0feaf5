"""FedGiA's shifted linear systems: factors, closed forms, conjugate gradients."""
