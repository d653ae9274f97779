import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import packages_distributions, version

import grimp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbench.config.credentials import without_credentials
from mlbench.record import provenance
from mlbench.record.record import Git


@pytest.mark.slow
def test_software_has_the_version_of_every_package_that_the_code_imports():
    graph = grimp.build_graph("mlbench", include_external_packages=True)
    imported = {name.partition(".")[0] for name in graph.modules}
    owners = packages_distributions()
    foreign = imported - set(sys.stdlib_module_names) - {"mlbench"}
    needed = {min(owners[name], key=len) for name in foreign if name in owners}  # mlflow, not mlflow-tracing
    packages = provenance.software().packages
    assert needed >= {"torch", "psutil", "pydantic"}
    elsewhere = {"pytest", "kubernetes", "urllib3", "pathspec", "packaging"}
    elsewhere |= {"safetensors", "transformers", "lightning", "backports.tarfile"}
    assert needed - elsewhere <= set(packages)  # what tests, submits, scores or adapts measures nothing
    assert all(packages[name] == version(name) for name in needed - elsewhere)


def test_software_is_plain_and_has_the_command_as_it_was_typed():
    code = "from mlbench.record import provenance; print(provenance.software().model_dump_json())"
    command = [sys.executable, "-c", code, "task=logreg", "tracking_uri=https://me:pw@host/ml", "a b"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    typed = shlex.split(json.loads(answer.stdout)["command"])
    assert typed == [*command[:4], "tracking_uri=https://host/ml", "a b"]


def run_git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    run_git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one")
    (tmp_path / ".gitignore").write_text("runs/\n")
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "--quiet", "--message", "one")
    return tmp_path


def test_a_clean_checkout_is_its_commit_and_ignored_files_leave_it_clean(checkout):
    (checkout / "runs").mkdir()
    (checkout / "runs" / "result").write_text("x")
    sha = run_git(checkout, "rev-parse", "HEAD")
    assert len(sha) == 40
    assert provenance.git(checkout) == Git(sha=sha, dirty=False)


@pytest.mark.parametrize("name", ["file", "new.py"])
def test_a_changed_or_untracked_file_makes_the_checkout_dirty(checkout, name):
    (checkout / name).write_text("two")
    result = provenance.git(checkout)
    assert result is not None and result.dirty is True


def test_a_script_s_checkout_is_found_below_its_top_and_its_results_leave_it_clean(checkout):
    below = checkout / "new"
    below.mkdir()
    (below / "result").write_text("x")
    sha = run_git(checkout, "rev-parse", "HEAD")
    assert provenance.git(below) is None
    assert provenance.git(below, within=True) == Git(sha=sha, dirty=False)
    (below / "train.py").write_text("new code of no commit")
    assert provenance.git(below, within=True) == Git(sha=sha, dirty=True)
    (below / "train.py").unlink()
    (checkout / "file").write_text("two")
    assert provenance.git(below, within=True) == Git(sha=sha, dirty=True)


def test_a_hooks_variables_do_not_lead_to_another_repository(checkout, tmp_path_factory, monkeypatch):
    other = tmp_path_factory.mktemp("other")
    run_git(other, "init", "--quiet")
    expected = provenance.git(checkout)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert provenance.git(checkout) == expected


def test_asking_takes_no_lock_from_a_commit_that_runs(checkout):
    (checkout / ".git" / "index.lock").write_text("")
    assert provenance.git(checkout) is not None


def test_outside_a_checkout_there_is_no_commit(checkout, tmp_path_factory, monkeypatch):
    assert provenance.git(tmp_path_factory.mktemp("plain")) is None
    package = checkout / "site-packages"  # installed somewhere below another project's repository
    package.mkdir()
    assert provenance.git(package) is None
    empty = tmp_path_factory.mktemp("empty")
    run_git(empty, "init", "--quiet")
    assert provenance.git(empty) is None
    monkeypatch.setenv("PATH", str(empty))
    assert provenance.git(checkout) is None


def test_only_settings_on_the_list_are_recorded(monkeypatch):
    for name in list(os.environ):
        monkeypatch.delenv(name)
    settings = {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=true",
        "JAX_DEFAULT_MATMUL_PRECISION": "bfloat16",
        "NCCL_CONF_FILE": "https://me:hidden@host/nccl.conf",
    }
    secrets = ("AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_PASSWORD", "HF_TOKEN")
    for name, value in settings.items() | {(name, "hidden") for name in secrets}:
        monkeypatch.setenv(name, value)
    variables = provenance.environment()
    assert variables == settings | {"NCCL_CONF_FILE": "***"}  # an address is no setting
    assert "hidden" not in provenance.software().model_dump_json()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql://me:secret@db:5432/ml", "postgresql://db:5432/ml"),
        ("https://token@host/ml", "https://host/ml"),
        ("https://me:12345@host:443", "https://host:443"),
        ("https://me:p@ss@host/x", "https://host/x"),
        ("https://me:p/w@host/x", "https://host/x"),
        ("a=https://me:pw@one b=https://me:pw@two", "a=https://one b=https://two"),
        ("https://host/x?a=1&access_token=abc&b=2", "https://host/x?a=1&access_token=***&b=2"),
        ("s3://bucket/k?X-Amz-Signature=abc", "s3://bucket/k?X-Amz-Signature=***"),
        ("https://host:8080/name@v1", "https://host:8080/name@v1"),
        ("https://host/name@v1", "https://host/name@v1"),
        ("task=logreg workers=2 me@host", "task=logreg workers=2 me@host"),
        ("sqlite:///runs/mlflow.db", "sqlite:///runs/mlflow.db"),
        ("t.py --wandb-api-key abc --lr 0.1", "t.py --wandb-api-key *** --lr 0.1"),
        ("t.py --hub_token 'a b' --push", "t.py --hub_token *** --push"),
        (f"t.py --token hf_{17 * 'aB'} --lr 1", "t.py --token *** --lr 1"),
        ("t.py --token=abc --x", "t.py --token=*** --x"),
        (f"GH=ghp_{18 * 'a1'} AKIA{16 * 'A'} sk-proj-{20 * 'a1'}", "GH=*** *** ***"),
        (["t.py", "--password", "a b", "--secret=x"], ["t.py", "--password", "***", "--secret=***"]),
        (
            "--tokenizer gpt2 --pad-token <pad> --max-tokens 512",
            "--tokenizer gpt2 --pad-token <pad> --max-tokens 512",
        ),
        ("--api-key --lr 0.1 --password-file /a", "--api-key --lr 0.1 --password-file /a"),
        ("task-secret sk-learn hf_model A9", "task-secret sk-learn hf_model A9"),
    ],
)
def test_credentials_are_cut_out_of_addresses_and_commands(given, expected):
    assert without_credentials(given) == expected


texts = st.text("abcXYZ019-_.~!$*+%@", min_size=1, max_size=12)


@given(user=texts, password=texts, host=st.from_regex(r"[a-z]{3,9}(:\d{2,4})?", fullmatch=True))
def test_no_password_survives_whatever_it_is_made_of(user, password, host):
    cleaned = without_credentials(f"https://{user}:{password}@{host}/path")
    assert cleaned == f"https://{host}/path"


@pytest.mark.parametrize("part", ["://x:/y", "+a", "?token", " --password", "--a"])
def test_a_text_that_was_made_to_take_hours_takes_a_moment(part: str) -> None:
    text = part * (500_000 // len(part))  # characters; six minutes and more without bounds
    assert without_credentials(text) == text
