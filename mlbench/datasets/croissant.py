"""A data set described in Croissant, MLCommons' JSON-LD vocabulary (http://mlcommons.org/croissant/1.0)."""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

NAME = "croissant.json"
ADDRESS = re.compile(r"https?://[^\s(),;]+")
PROJECT = "https://mlbench.github.io"  # of data that are generated
ARROW = "application/vnd.apache.arrow.file"  # IANA's media type of Arrow IPC files
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "conformsTo": "dct:conformsTo",
    **{
        name: f"cr:{name}"
        for name in (
            "citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject",
            "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path",
            "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator", "source",
            "subField", "transform",
        )
    },
}  # fmt: skip


def describe(manifest: Mapping[str, Any], schemas: Mapping[str, pa.Schema]) -> dict[str, Any]:
    """Return the description of a prepared data set: its files with their hashes, and each split's columns.

    - manifest: of the data set: name, source, licence, splits.
    - schemas: Arrow's schema by split.
    """
    splits = manifest["splits"]
    source = str(manifest.get("source", ""))
    rows = ", ".join(f"{split['rows']:,} rows of {name}" for name, split in splits.items())
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": str(manifest.get("name", "data set")),
        "description": f"{source}; as prepared by mlbench {manifest['mlbench']}: {rows}.",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "license": str(manifest.get("licence", "")),
        "url": address.group() if (address := ADDRESS.search(source)) else PROJECT,
        "isBasedOn": source,
        **({"creditText": manifest["attribution"]} if "attribution" in manifest else {}),
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": split["file"],
                "name": split["file"],
                "contentUrl": split["file"],
                "contentSize": f"{split['bytes']} B",
                "encodingFormat": ARROW,
                "sha256": split["sha256"],
            }
            for split in splits.values()
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": name,
                "name": name,
                "field": [_field(name, splits[name]["file"], column) for column in schemas[name]],
            }
            for name in splits
        ],
    }


def _field(split: str, file: str, column: pa.Field) -> dict[str, Any]:
    kind, many = column.type, False
    while (inner := _values(kind)) is not None:
        kind, many = inner, True
    field = {
        "@type": "cr:Field",
        "@id": f"{split}/{column.name}",
        "name": column.name,
        "description": str(column.type),
        "dataType": _data_type(kind),
        "source": {"fileObject": {"@id": file}, "extract": {"column": column.name}},
    }
    return field | ({"repeated": True} if many else {})


def _values(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the values of a list or tensor, and None of anything else."""
    lists = (pa.FixedShapeTensorType, pa.ListType, pa.LargeListType, pa.FixedSizeListType)
    return kind.value_type if isinstance(kind, lists) else None


def _data_type(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(kind) else "sc:Text"
