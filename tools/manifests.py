"""Write the golden manifests of tests/plugins/kuberay; read the difference before it is committed."""

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "plugins" / "kuberay")]

import test_manifest as cases  # noqa: E402  # pyright: ignore[reportMissingImports]

for name, overrides in cases.MANIFESTS.items():
    (cases.GOLDEN / f"{name}.yaml").write_text(yaml.safe_dump_all(cases.objects(overrides), sort_keys=False))
