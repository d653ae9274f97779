"""What docs/your-own-script.md leaves out around its strategy."""

import torch


class Net(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 2)


def validate(model: torch.nn.Module) -> float:
    return (model(rows).argmax(1) == kinds).float().mean().item()


device, epochs, loss_of = torch.device("cpu"), 3, torch.nn.functional.cross_entropy
rows = torch.randn(256, 8)
kinds = (rows.sum(1) > 0).long()
loader = [(rows[i : i + 32], kinds[i : i + 32]) for i in range(0, 256, 32)]
# the block
print(f"accuracy {accuracy}")  # noqa: F821
