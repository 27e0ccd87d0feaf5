"""What this package adds to fedtrellis: its entry point names ``plugin``."""

from fedtrellis.app import Plugin

from .client import MajoritySignClient
from .feddyn import FedDyn, FedDynClient
from .strategy import MajoritySign

plugin = Plugin(methods=[(MajoritySign, MajoritySignClient), (FedDyn, FedDynClient)])
