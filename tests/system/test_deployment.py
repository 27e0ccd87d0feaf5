"""The scripts of ``deploy/``: files, a whole trial, and who is kept out of it."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml
from flower_process import ROOT, processes_of

import sim
from deploy.cases import FAMILIES, METHODS, NODES, SECRET_DRAWS
from fedtrellis.server.records import Checkpoint
from tests.harness import model_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

DEPLOY = ROOT / "deploy"


def script(name: str, *arguments: object, **environment: str) -> str:
    return subprocess.run(
        [str(DEPLOY / name), *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    ).stdout


def test_certificate_is_for_the_names_signed_by_the_authority(tmp_path: Path) -> None:
    script("certificates.sh", tmp_path, "link.example.org", "10.0.0.7", "::1")
    authority, certificate = tmp_path / "ca.crt", tmp_path / "server.crt"
    for name in (
        "verify_hostname link.example.org",
        "verify_ip 10.0.0.7",
        "verify_ip 127.0.0.1",  # by which a SuperLink's processes call it
    ):
        for other, good in ((name, True), (f"{name}9", False)):
            command = ["openssl", "verify", "-x509_strict", "-CAfile", str(authority)]
            command += [f"-{word}" if "_" in word else word for word in other.split()]
            verified = subprocess.run(
                [*command, str(certificate)], capture_output=True, check=False
            )
            assert (verified.returncode == 0) == good, verified.stderr
    for secret in ("ca.key", "server.key"):
        assert (tmp_path / secret).stat().st_mode & 0o777 == 0o600


def test_image_gets_what_its_installation_needs(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"(?m)^COPY (.*)$", text):
        *sources, target = line.split()
        for source in sources:
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            (tmp_path / target).parent.mkdir(exist_ok=True)
            copy(ROOT / source, tmp_path / target)
    (tmp_path / "made").mkdir()
    build = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel"
    subprocess.run(
        [sys.executable, "-c", f"{build}('made')"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (metadata,) = (tmp_path / "made").glob("*/METADATA")
    known = re.findall(r"(?m)^Provides-Extra: (.*)$", metadata.read_text())
    (extras,) = re.findall(r'"\.\[(.*)\]"', text)
    installed = set(extras.split(","))
    assert "data" in installed  # csv files, such as those of deploy.cases, need it
    assert installed <= set(known)


def test_compose_file_starts_what_the_scripts_start(tmp_path: Path) -> None:
    # what a script passes on to Flower's program
    for name in ("flower-superlink", "flower-supernode"):
        (tmp_path / name).write_text('#!/bin/sh\nprintf "%s " "$0" "$@"\n')
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"superlink", *NODES}
    kubernetes = {
        made["metadata"]["name"]: container["args"]
        for made in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
        if made["kind"] in ("Deployment", "StatefulSet")
        for container in made["spec"]["template"]["spec"]["containers"]
    }
    for name, service in services.items():
        start, *rest = (
            re.sub("/certificates|/state", str(tmp_path), part)
            for part in service["command"]
        )
        assert start in (DEPLOY / "Dockerfile").read_text()
        started = script(Path(start).name, *rest, PATH=path)
        assert "--insecure" not in started
        for volume in service["volumes"][:3]:
            file = volume.split(":")[-2].replace("/certificates", str(tmp_path))
            assert file in started
        if name == "superlink":
            assert started.startswith(f"{tmp_path}/flower-superlink ")
            assert "--enable-supernode-auth " in started
            assert service["volumes"][3] == "state:/state"
            assert service["command"] == kubernetes["superlink"]
        else:
            assert service["command"][:4] == kubernetes["node-1"][:4]
            assert started.startswith(f"{tmp_path}/flower-supernode ")
            assert "--superlink superlink:8000 " in started
            assert f'client-id="{name}" data="/node/data.csv"' in started
            assert f"keys/{name}:" in service["volumes"][1]


def test_backup_has_what_the_database_has_in_its_log(tmp_path: Path) -> None:
    part = (ROOT / "docs" / "deploy.md").read_text().partition("## Backup")[2]
    save, restore = re.findall(r"```bash\n(.*?)```", part, re.DOTALL)[:2]
    database = tmp_path / "federation" / "superlink" / "superlink.db"
    for folder in (database.parent, tmp_path / ".fedtrellis" / "runs"):
        folder.mkdir(parents=True)
    (tmp_path / "federation" / "certificates").mkdir()
    used = sqlite3.connect(database)
    used.execute("PRAGMA journal_mode = WAL")
    used.execute("CREATE TABLE node AS SELECT 'node-1' AS name")
    used.commit()
    environment = {**os.environ, "HOME": str(tmp_path)}
    for commands in (save, "mv ~/federation ~/lost", restore):
        subprocess.run(["bash", "-ec", commands], env=environment, check=True)
    restored = sqlite3.connect(database).execute("SELECT name FROM node")
    assert restored.fetchall() == [("node-1",)]


class Trial(NamedTuple):
    """What the one command has run, the folder that it filled, and what it printed."""

    methods: Sequence[str]
    rounds: int
    folder: Path
    output: str


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    methods, rounds = FAMILIES, 2
    folder = tmp_path_factory.mktemp("deployment") / "trial"
    options = ["--methods", *methods, "--rounds", str(rounds), "--keep", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "deploy.trial", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return Trial(methods, rounds, folder, done.stdout)


@pytest.mark.slow
def test_one_command_runs_the_methods_on_the_nodes_files(trial: Trial) -> None:
    folder = trial.folder
    for method in trial.methods:
        assert f"{method}: {trial.rounds} rounds, at most" in trial.output
        (deployed,) = (folder / "records" / "deployed" / method).iterdir()
        (local,) = (folder / "records" / "local" / method).iterdir()
        model = model_of(deployed)
        assert np.abs(model).sum() > 0.1
        if method not in SECRET_DRAWS:
            np.testing.assert_allclose(model, model_of(local), rtol=0, atol=1e-9)
        # each node's name is bound to the key that was registered under one
        keys = Checkpoint(deployed / "checkpoint.npz").keys
        assert sorted(keys) == sorted(NODES)
        assert all(key.lasting for key in keys.values())
        assert len({key.digest for key in keys.values()}) == len(NODES)
    # on their own data: no node was told which part of some data set is its own
    assert "partition" not in (folder / "logs" / "node-1.log").read_text()
    # the bundle that went to the nodes has the app, and not these scripts
    (bundle,) = (folder / "flower" / "apps").iterdir()
    assert (bundle / "sim.py").is_file()
    assert not (bundle / "deploy").exists()
    # nothing but files is left
    assert not processes_of(folder / "flower")


@pytest.mark.slow
def test_nobody_else_gets_in(trial: Trial) -> None:
    # the trial has seen that they are not let in; Flower's reasons stand on the page
    logs = {path.stem: path.read_text() for path in (trial.folder / "logs").iterdir()}
    assert "[code: 2004] Failed to activate" in logs["unregistered-key"]
    assert "[code: 2001] SuperNode authentication is enabled" in logs["no-key"]
    assert "certificate verify failed" in logs["other-authority"]


def test_a_trial_knows_every_method() -> None:
    assert set(METHODS) == set(sim.app.registry.methods)
