"""The app for ``flwr run``, and ``python sim.py``, which runs it in this process."""

import sys

import clients
import strategies
from fedtrellis.app import App, pairs
from tasks import TASKS

app = App(methods=pairs(strategies, clients), tasks=TASKS.values())
# each by itself: Flower reads the source for these names
server_app = app.server_app
client_app = app.client_app

if __name__ == "__main__":
    sys.exit(app.command_line())
