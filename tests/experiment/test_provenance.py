import ast
import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlbench
from mlbench.experiment import provenance

SOURCES = sorted(Path(mlbench.__file__).parent.rglob("*.py"))


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Let provenance see an empty file system; return a function that fills it."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)

    def write(files):
        for path, text in files:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text + "\n")

    return write


def test_node_agrees_with_the_systems_own_tools():
    found = provenance.node()
    assert found["hostname"] == os.uname().nodename
    assert found["kernel"] == os.uname().release
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["logical_cpus"] == os.cpu_count()
    assert found["affinity_cpus"] == len(os.sched_getaffinity(0))
    assert 1 <= found["usable_cpus"] <= found["affinity_cpus"] <= found["logical_cpus"]
    assert found["memory_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert json.loads(json.dumps(found)) == found


def test_affinity_bounds_the_usable_cpus():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from mlbench.experiment import provenance; print(provenance.usable_cpus())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "1", answer.stderr


@pytest.mark.parametrize(
    ("files", "quota", "limit"),
    [
        ([], None, None),
        ([("proc/self/cgroup", "0::/a/b")], None, None),
        (  # version 2: the tightest group on the way up counts
            [
                ("proc/self/cgroup", "0::/a/b"),
                ("sys/fs/cgroup/a/b/cpu.max", "max 100000"),
                ("sys/fs/cgroup/a/cpu.max", "250000 100000"),
                ("sys/fs/cgroup/a/b/memory.max", "4096"),
                ("sys/fs/cgroup/a/memory.max", "max"),
                ("sys/fs/cgroup/memory.max", "1024"),
            ],
            2.5,
            1024,
        ),
        (  # version 2 in a container: the path is the host's, the limits lie at the mount
            [
                ("proc/self/cgroup", "0::/../kubepods/pod1"),
                ("sys/fs/cgroup/cpu.max", "50000 100000"),
                ("sys/fs/cgroup/memory.max", "2048"),
            ],
            0.5,
            2048,
        ),
        (  # version 1, with several controllers on one mount
            [
                ("proc/self/cgroup", "3:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n1:name=systemd:/"),
                ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "300000"),
                ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
                ("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "8192"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ],
            3.0,
            8192,
        ),
        (  # version 1 without limits
            [
                ("proc/self/cgroup", "3:cpu:/\n2:memory:/"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ],
            None,
            None,
        ),
    ],
    ids=["none", "unlimited", "v2", "v2-container", "v1", "v1-unlimited"],
)
def test_control_groups_bound_cpus_and_memory(root, monkeypatch, files, quota, limit):
    root(files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    found = provenance.node()
    assert (found["cpu_quota"], found["memory_limit_bytes"]) == (quota, limit)
    assert found["usable_cpus"] == {None: 8, 2.5: 2, 0.5: 1, 3.0: 3}[quota]


def test_the_processors_name_is_the_kernels(root):
    assert provenance.node()["cpu_model"] is None
    root([("proc/cpuinfo", "processor\t: 0\nmodel\t\t: 79\nmodel name\t: Xeon: E5 @ 2.20GHz")])
    assert provenance.node()["cpu_model"] == "Xeon: E5 @ 2.20GHz"


def fake_nvidia_smi(folder, monkeypatch, script):
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_gpus_are_what_nvidia_smi_lists(tmp_path, monkeypatch):
    fake_nvidia_smi(
        tmp_path,
        monkeypatch,
        'echo "$@" > "$(dirname "$0")/asked"\n'
        'echo "Tesla T4, 15360, 550.54.15"\necho "NVIDIA GH200, [N/A], 550.54.15"',
    )
    found = provenance.node()
    assert found["gpus"] == [
        {"name": "Tesla T4", "memory_bytes": 15360 * 2**20, "driver": "550.54.15"},
        {"name": "NVIDIA GH200", "memory_bytes": None, "driver": "550.54.15"},
    ]
    assert found["gpu_error"] is None
    assert "--query-gpu=name,memory.total,driver_version" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("script", ["echo the driver is not loaded; exit 9", "echo no devices"])
def test_a_tool_without_gpus_is_told_not_hidden(tmp_path, monkeypatch, script):
    fake_nvidia_smi(tmp_path, monkeypatch, script)
    found = provenance.node()
    assert found["gpus"] == []
    assert found["gpu_error"] in ("the driver is not loaded", "no devices")


@pytest.mark.gpu
def test_a_real_gpu_has_a_driver_memory_cuda_and_nccl():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = provenance.node()
    assert found["gpus"] and found["gpus"][0]["memory_bytes"] > 2**30
    assert found["gpus"][0]["driver"] and found["cuda"] == torch.version.cuda
    assert found["nccl"] is None or found["nccl"][0].isdigit()


def test_software_has_the_version_of_every_package_that_the_code_imports():
    imported = set()
    for source in SOURCES:
        for part in ast.walk(ast.parse(source.read_text())):
            if isinstance(part, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in part.names}
            elif isinstance(part, ast.ImportFrom) and part.module and not part.level:
                imported.add(part.module.split(".")[0])
    owners = packages_distributions()
    foreign = imported - set(sys.stdlib_module_names) - {"mlbench"}
    needed = {min(owners[name], key=len) for name in foreign if name in owners}  # mlflow, not mlflow-tracing
    packages = provenance.software()["packages"]
    assert needed >= {"torch", "psutil", "pydantic"}
    assert needed - {"pytest"} <= set(packages)  # the contract tests measure nothing
    assert all(packages[name] == version(name) for name in needed - {"pytest"})


def test_software_is_plain_and_has_the_command_as_it_was_typed():
    code = "import json; from mlbench.experiment import provenance; print(json.dumps(provenance.software()))"
    words = [sys.executable, "-c", code, "task=logreg", "tracking_uri=https://me:pw@host/ml", "a b"]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    typed = shlex.split(json.loads(answer.stdout)["command"])
    assert typed == [*words[:4], "tracking_uri=https://host/ml", "a b"]


def run_git(folder, *words):
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run([*command, *words], capture_output=True, text=True, check=True).stdout.strip()


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
    assert provenance.git(checkout) == {"sha": sha, "dirty": False}


@pytest.mark.parametrize("name", ["file", "new.py"])
def test_a_changed_or_untracked_file_makes_the_checkout_dirty(checkout, name):
    (checkout / name).write_text("two")
    found = provenance.git(checkout)
    assert found is not None and found["dirty"] is True


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
        "NCCL_CONF_FILE": "https://me:hidden@host/nccl.conf",
    }
    secrets = ("AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_PASSWORD", "HF_TOKEN")
    for name, value in settings.items() | {(name, "hidden") for name in secrets}:
        monkeypatch.setenv(name, value)
    found = provenance.environment()
    assert found == settings | {"NCCL_CONF_FILE": "***"}  # an address is no setting
    assert "hidden" not in json.dumps([provenance.node(), provenance.software()])


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
    ],
)
def test_credentials_are_cut_out_of_urls(given, expected):
    assert provenance.without_credentials(given) == expected


words = st.text("abcXYZ019-_.~!$*+%@", min_size=1, max_size=12)


@given(user=words, password=words, host=st.from_regex(r"[a-z]{3,9}(:\d{2,4})?", fullmatch=True))
def test_no_password_survives_whatever_it_is_made_of(user, password, host):
    cleaned = provenance.without_credentials(f"https://{user}:{password}@{host}/path")
    assert cleaned == f"https://{host}/path"


def test_a_quiet_machine_has_no_warnings(root, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.4, 9.0, 9.0))
    root(
        [
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"),
            ("sys/devices/system/cpu/intel_pstate/no_turbo", "1"),
            ("sys/devices/system/cpu/smt/active", "0"),
        ]
    )
    assert provenance.warnings(before_run=True) == []


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("cpu1/cpufreq/scaling_governor", "powersave", "powersave, not performance"),
        ("intel_pstate/no_turbo", "0", "turbo is on"),
        ("cpufreq/boost", "1", "turbo is on"),
        ("smt/active", "1", "SMT is on"),
    ],
)
def test_each_source_of_noise_is_one_sentence(root, monkeypatch, path, text, sentence):
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    root(
        [
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"),
            (f"sys/devices/system/cpu/{path}", text),
        ]
    )
    (found,) = provenance.node()["warnings"]
    assert sentence in found
    assert provenance.warnings(before_run=False) == [found]


def test_load_is_a_warning_only_before_the_run_makes_its_own(root, monkeypatch):
    cpus = provenance.usable_cpus()
    monkeypatch.setattr(os, "getloadavg", lambda: (cpus + 0.5, 0.0, 0.0))
    (found,) = provenance.warnings(before_run=True)
    assert f"{cpus + 0.5:.1f} on {cpus} CPUs" in found
    assert provenance.warnings(before_run=False) == []
