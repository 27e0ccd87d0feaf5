"""``fedtrellis check``: what is in order, and each kind of fault, in one line."""

import os
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from deploy.cases import write_data
from fedtrellis.command_line import main
from fedtrellis.encryption.identity import write_identity, write_roster

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
ROWS = 'task="logistic-regression" logistic-regression.dataset="nodes"'
SECURE = f'{ROWS} method="fedavg-gd" aggregation="secure-sum" data.features=30'
TLS = "--root-certificates tls/ca.crt --server tls/server.crt tls/server.key"
NODE = 'client-id="a" data="{}/{}"'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the scripts make, and files that are not what they should be."""
    made = tmp_path_factory.mktemp("check")
    for script, days in (("tls", "365"), ("old", "-1"), ("node-keys", "")):
        command = [f"{DEPLOY}/certificates.sh", script, "localhost"]
        command = [f"{DEPLOY}/node-keys.sh", ".", "node"] if not days else command
        environment = {**os.environ, "DAYS": days}
        subprocess.run(command, cwd=made, env=environment, check=True)
    write_data(made / "data")
    keys = {
        name: write_identity(made / f"{name}.key", name) for name in ("a", "b", "c")
    }
    write_roster(made / "roster", {name: keys[name].public for name in ("a", "b")})
    text = (made / "data/rows/node-1.csv").read_text()
    (made / "labels.csv").write_text(text.replace(",1\n", ",7\n"))
    shutil.copy(made / "node", made / "open")
    (made / "open").chmod(0o644)
    (made / "junk").write_text("junk")
    (made / "junk").chmod(0o600)
    return made


def test_what_is_in_order_is_a_line_each(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain("tls/server.crt", "tls/server.key")
    link = tls.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
    threading.Thread(target=link.accept, daemon=True).start()
    keys = f'identity-file="{folder}/a.key" roster-file="{folder}/roster"'
    node = f"{NODE.format(folder, 'data/rows/node-1.csv')} {keys}"
    arguments = f"{TLS} --superlink localhost:{link.getsockname()[1]}".split()
    arguments += ["--auth-supernode-private-key", "node", "--node-config", node]
    assert main(["check", *arguments, "-c", SECURE]) == 0
    output = capsys.readouterr().out
    assert output.count("ok ") == 6
    for found in ("365 days", "flwr 1.", "143 rows, 30 features", "TLSv1.3", "digest"):
        assert found in output


KEYED = f'{NODE.format("{}", "data/rows/node-1.csv")} identity-file="a.key"'
KEYED += ' roster-file="roster"'

#: Options but the next two, the node's config, the run's, and what is wrong.
FAULTS = [
    (f"{TLS} --superlink 127.0.0.2:1", "", "", "not valid for '127.0.0.2'"),
    (TLS.replace("tls/", "old/"), "", "", "certificate has expired"),
    (TLS.replace("tls/ca", "old/ca"), "", "", "certificate verify failed"),
    (TLS.replace("tls/server.k", "old/server.k"), "", "", "and its key in PEM"),
    (TLS.replace("tls/ca.crt", "junk"), "", "", "'junk' has no certificate"),
    ("--root-certificates gone --superlink x:1", "", "", "'gone' cannot be read"),
    ("--superlink localhost", "", "", "must be HOST:PORT"),
    ("--superlink 127.0.0.1:1", "", "", "Connection refused"),
    ("--auth-supernode-private-key open", "", "", "is open to others"),
    ("--auth-supernode-private-key junk", "", "", "'junk': must be an SSH key"),
    ("", "least=2", "", "node config: partition-id = None"),
    ("", 'client-id="a" identity-file="a.key"', "", "roster-file"),
    ("", 'client-id="c" identity-file="c.key" roster-file="roster"', "", "no such"),
    ("", 'client-id="a" key-file="junk"', "", "neither a key nor a context"),
    ("", NODE.format("/gone", "x.csv"), ROWS, "there is none"),
    ("", NODE.format("{}", "labels.csv"), ROWS, "labels.csv, row 6, column 'label'"),
    ("", NODE.format("{}", "data/rows/node-1.csv"), SECURE, "and no key"),
    ("", KEYED, ROWS, "its fit would travel in the clear"),
    ("", KEYED, SECURE.replace("-gd", ""), "over mini-batches single out rows"),
    ("", 'client-id="a"', 'task="digits"', "needs no file of a node"),
    ("", 'client-id="a"', "fedfw.stepsize=1", "fedfw.stepsize"),
]


def test_a_fault_is_a_line_and_status_1(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for arguments, node, config, why in FAULTS:
        words = ["check", *arguments.split(), *(["-c", config] if config else [])]
        words += ["--node-config", node.format(folder)] if node else []
        assert main(words) == 1
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith("wrong") and why in line for line in lines), lines
