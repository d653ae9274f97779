"""The archives of the WMT shared tasks: their contents, addresses and formats."""

import html
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mlbench.config.errors import UserError
from mlbench.datasets.arrow import DatasetWriter
from mlbench.datasets.download import Archive
from mlbench.datasets.tar import tarfile
from mlbench.tasks.translation import lines


class Bitext(NamedTuple):
    """A corpus of translated lines: the files <stem>.en and <stem>.de somewhere in an archive."""

    archive: Archive
    stem: str


STATMT = ("http://www.statmt.org", "http://data.statmt.org")
MIRROR = "https://gluonnlp-numpy-data.s3-us-west-2.amazonaws.com/datasets/third_party_mirror"


def _bitext(stem: str, url: str, *, sha256: str, size: int, mirrored: str | None = None) -> Bitext:
    """Return the corpus that lies at `url`, and in the mirror under its name with the hash `mirrored`."""
    file = url.rpartition("/")[2]
    urls = (url,) if mirrored is None else (url, f"{MIRROR}/{file.removesuffix('.tgz')}-{mirrored}.tgz")
    return Bitext(Archive(urls, file, sha256=sha256, size=size), stem)


# statmt.org publishes no checksums. Sizes (bytes) and SHA-256 are those that TensorFlow Datasets pins, and
# the mirror is GluonNLP's (both read 2026-11-21).
EUROPARL = _bitext(
    "europarl-v7.de-en",
    f"{STATMT[0]}/wmt13/training-parallel-europarl-v7.tgz",
    sha256="0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
    size=657_632_379,
)
COMMONCRAWL = _bitext(
    "commoncrawl.de-en",
    f"{STATMT[0]}/wmt13/training-parallel-commoncrawl.tgz",
    sha256="c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
    size=918_311_367,
    mirrored="1c0ad85f0ebaf1d543acb009607205f5dae6627d",
)
NEWS_11 = _bitext(
    "news-commentary-v11.de-en",
    f"{STATMT[1]}/wmt16/translation-task/training-parallel-nc-v11.tgz",
    sha256="cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a",
    size=75_178_032,
    mirrored="f51a1f03908e790d23d10001e92e09ce9555a790",
)
NEWS_12 = _bitext(
    "news-commentary-v12.de-en",
    f"{STATMT[1]}/wmt17/translation-task/training-parallel-nc-v12.tgz",
    sha256="2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
    size=168_591_139,
    mirrored="d98afc59e1d753485530b377ff65f1f891d3bced",
)
DEV = Archive(  # WMT19's collection of the test sets of earlier years
    urls=(
        f"{STATMT[1]}/wmt19/translation-task/dev.tgz",
        f"{MIRROR}/dev-451ce2cae815c8392212ccb3f54f5dcddb9b2b9e.tgz",
    ),
    file="wmt19-dev.tgz",
    sha256="7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
    size=38_654_961,
)
# The set was made for both directions. Its German side is the "source" in these files' names.
NEWSTEST_2014 = ("newstest2014-deen-ref.en.sgm", "newstest2014-deen-src.de.sgm")
TRAINED_ON = {
    "wmt16_en_de": (EUROPARL, COMMONCRAWL, NEWS_11),
    "wmt17_en_de": (EUROPARL, COMMONCRAWL, NEWS_12),
}
SIDES = ("en", "de")


def text(name: str, writer: DatasetWriter, work: Path) -> tuple[Iterator[lines.Pair], list[lines.Pair]]:
    """Return the training pairs of data set `name`, as a stream, and its test pairs.

    The archives are fetched, and the files needed unpacked into the folder `work`.
    """
    parts = TRAINED_ON[name]
    wanted = [(part.archive, [f"{part.stem}.{side}" for side in SIDES]) for part in parts]
    wanted.append((DEV, list(NEWSTEST_2014)))
    fetched = [writer.fetch(archive) for archive, _ in wanted]
    for number, (path, (_, names)) in enumerate(zip(fetched, wanted, strict=True)):
        writer.progress("unpack", number, len(wanted), "rows")
        unpack(path, names, work)
    train = (
        lines.pairs(*(work / f"{part.stem}.{side}" for side in SIDES), errors="replace") for part in parts
    )
    test = lines.paired(*(segments(work / name) for name in NEWSTEST_2014), names=NEWSTEST_2014)
    return chain.from_iterable(train), list(test)


def unpack(archive: Path, names: Sequence[str], folder: Path) -> None:
    """Write the files of these names, wherever they lie in a .tgz, into `folder`. Nothing else is unpacked.

    Raises UserError if the archive is damaged, truncated, or lacks one of them.
    """
    missing = set(names)
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                name = Path(member.name).name
                if name in missing and member.isfile():
                    tar.extract(member.replace(name=name), folder, filter="data")
                    missing.remove(name)
                if not missing:
                    return
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(
            f"{archive} is damaged or truncated: {error}", hint="remove it to download it again"
        ) from error
    raise UserError(
        f"{archive} has no file {', '.join(sorted(missing))}", hint="remove it to download it again"
    )


SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)


def segments(path: Path) -> list[str]:
    """Return the sentences of a test set in WMT's SGML. Raises UserError if there is none."""
    sentences = [
        " ".join(html.unescape(each).split())
        for each in SEGMENT.findall(path.read_text("utf-8", errors="replace"))
    ]
    if not sentences:
        raise UserError(
            f"{path.name} in the archive has no <seg>", hint="remove the archive and download it again"
        )
    return sentences
