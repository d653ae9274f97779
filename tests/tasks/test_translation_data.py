"""Prepared text: the cipher, and files of a user's own, through the same preparation."""

import os
import sys
from pathlib import Path
from subprocess import run
from types import SimpleNamespace

import numpy as np
import pytest

from mlbench.config.errors import UserError
from mlbench.datasets import arrow
from mlbench.tasks.translation import cipher, data, moses
from mlbench.tasks.translation.subwords import UNK


def wanting(dataset: str = "cipher", **changes: object) -> SimpleNamespace:
    values = {"source": "en", "target": "de", "train_files": None, "test_files": None}
    return SimpleNamespace(dataset=dataset, **(values | changes))


@pytest.fixture(scope="module")
def folder(data_root: Path) -> Path:
    return data.prepare_dataset(wanting(), data_root)


@pytest.fixture(scope="module")
def found(folder: Path) -> data.CorpusSplits:
    return data.open_dataset(folder)


def sentences(dataset: data.CorpusSplits, values: np.ndarray, offsets: np.ndarray) -> list[str]:
    bounds = zip(offsets[:-1], offsets[1:], strict=True)
    test = dataset.load_test()
    return [test.detokenise(values[begin:end]) for begin, end in bounds]


@pytest.mark.slow
def test_the_cipher_comes_back_as_it_was_said(found: data.CorpusSplits) -> None:
    said = cipher.corpus(15_400, seed=2016)
    test, train = said[:400], said[400:]
    assert found.references.to_pylist() == [german for _, german in test]
    assert sentences(found, found.test.targets, found.test.target_offsets) == found.references.to_pylist()
    assert sentences(found, found.train.targets, found.train.target_offsets) == [pair[1] for pair in train]
    english = sentences(found, found.train.sources, found.train.source_offsets)
    assert english == [pair[0] for pair in train]
    assert not set(english) & {pair[0] for pair in test}


@pytest.mark.slow
def test_preparing_again_elsewhere_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """In another process: neither hash seeds nor threads show."""
    code = (
        "from pathlib import Path; from types import SimpleNamespace as N; import sys\n"
        "from mlbench.tasks.translation import data\n"
        "assert 'torch' not in sys.modules and 'tokenizers' not in sys.modules\n"
        "data.prepare_dataset(N(dataset='cipher', source='en', target='de', train_files=None,"
        f" test_files=None), Path({str(tmp_path)!r}))"
    )
    run(
        [sys.executable, "-c", code],
        check=True,
        env={"PYTHONHASHSEED": "5", "PYTHONPATH": ":".join(sys.path)},
    )
    assert arrow.manifest_hash(tmp_path / "cipher") == arrow.manifest_hash(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert data.prepare_dataset(wanting(), folder.parent) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_the_list_of_data_sets_promises_what_is_prepared(folder: Path) -> None:
    info = data.DATASETS["cipher"]
    manifest = arrow.read_manifest(folder)
    assert info.prepared == sum(split["bytes"] for split in manifest["splits"].values())
    assert info.manifest.items() <= manifest.items()
    assert data.DATASETS["wmt16_en_de"].download == 657_632_379 + 918_311_367 + 75_178_032 + 38_654_961
    assert data.DATASETS["wmt17_en_de"].manifest["parameters"]["pieces"] == 33_712


# A user's own files


def own(folder: Path, *, source: str = "en", target: str = "fr", pairs: int = 40) -> SimpleNamespace:
    for split, first in (("train", 0), ("test", 1000)):
        numbers = range(first, first + (pairs if split == "train" else 3))
        for side, word in ((source, "number"), (target, "nombre été я")):
            lines = "".join(f"The {word}, {number}!\n" for number in numbers)
            (folder / f"{split}.{side}").write_text(lines)
    return wanting(source=source, target=target, train_files=folder / "train", test_files=folder / "test")


def test_own_files_are_prepared_by_the_data_sets_rules(tmp_path: Path) -> None:
    wanted = own(tmp_path)
    with (tmp_path / "train.en").open("a") as english, (tmp_path / "train.fr").open("a") as french:
        english.write("too long\nempty\n")
        french.write(f"{'long ' * 81}\n\n")
    prepared = data.prepare_dataset(wanted, tmp_path)
    dataset = data.open_dataset(prepared)
    assert len(dataset.train) == 40 and dataset.language == "fr"
    assert dataset.references.to_pylist() == [f"The nombre été я, {number}!" for number in (1000, 1001, 1002)]
    french = sentences(dataset, dataset.train.targets, dataset.train.target_offsets)
    assert french[7] == moses.detokenise(["The", "nombre", "été", "я", ",", "7", "!"], "fr")
    manifest = arrow.read_manifest(prepared)
    assert manifest["name"] == "files" and manifest["pairs_read"] == 42
    assert [each["file"] for each in manifest["inputs"]] == ["train.en", "train.fr", "test.en", "test.fr"]


IN_ASCII = """
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from mlbench.tasks.translation import data, wmt

root = Path(sys.argv[1])
files = {"train_files": root / "train", "test_files": root / "test"}
config = SimpleNamespace(dataset="cipher", source="en", target="fr", **files)
found = data.open_dataset(data.prepare_dataset(config, root))
begin, end = found.train.target_offsets[7:9]
print(ascii([found.load_test().detokenise(found.train.targets[begin:end]), *wmt.segments(root / "test.sgm")]))
"""


def test_text_is_utf_8_whatever_the_locale_says(tmp_path: Path) -> None:
    own(tmp_path)
    (tmp_path / "test.sgm").write_text("<seg id=1>Grüße я</seg>", "utf-8")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run(
        [sys.executable, "-c", IN_ASCII, tmp_path], env=environment, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ascii(["The nombre été я, 7 !", "Grüße я"])


def test_no_test_sentence_is_dropped_however_odd(tmp_path: Path) -> None:
    wanted = own(tmp_path)
    (tmp_path / "test.en").write_text("\n語\n" + "long " * 200 + "\n")
    (tmp_path / "test.fr").write_text("vide\n語\nlong\n")
    dataset = data.open_dataset(data.prepare_dataset(wanted, tmp_path))
    assert dataset.references.to_pylist() == ["vide", "語", "long"]
    lengths = np.diff(dataset.test.source_offsets)
    assert lengths[0] == 0 and lengths[2] >= 200
    assert dataset.test.sources[0] == UNK


def test_own_files_without_a_sentence_are_refused(tmp_path: Path) -> None:
    for split, sentence in (("train", "no training sentences remain"), ("test", r"test\.en is empty")):
        wanted = own(tmp_path)
        for side in ("en", "fr"):
            (tmp_path / f"{split}.{side}").write_text("\n\n" if split == "train" else "")
        with pytest.raises(UserError, match=sentence):  # without a test sentence every BLEU would be 0
            data.prepare_dataset(wanted, tmp_path)
    assert not list(tmp_path.glob("files-*"))


def test_the_data_sets_have_one_direction(tmp_path: Path) -> None:
    for name in ("cipher", "wmt16_en_de", "wmt17_en_de"):
        with pytest.raises(UserError, match=f"{name} .* de to en"):
            data.prepare_dataset(wanting(name, source="de", target="en"), tmp_path)
