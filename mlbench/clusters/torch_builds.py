"""Check that torchvision, which Lightning and transformers import, fits the installed torch."""

from importlib import import_module, metadata

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def torchvision_fault() -> tuple[str, str] | None:
    """Return why torchvision cannot be imported, and the command that fixes it.

    None if it can be imported or is not installed. Each release is built for one torch: another release, or
    one for CUDA next to a torch for CPUs, ends in "operator torchvision::nms does not exist".
    """
    try:
        version = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return None
    try:
        import_module("torchvision")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    else:
        return None
    torch = metadata.version("torch")
    index = f" --index-url {CPU_INDEX}" if torch.endswith("+cpu") else ""
    return (
        f"{version} fails with torch {torch}: {reason}",
        f"pip install --force-reinstall torch=={torch.partition('+')[0]} torchvision{index}",
    )
