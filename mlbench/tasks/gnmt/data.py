"""What this task trains on. Both translation tasks prepare their text alike."""

from mlbench.tasks.translation import data

DATASETS = {name: data.DATASETS[name] for name in ("wmt16_en_de", "cipher", "libreoffice_help")}
