"""Copies to a GPU that go on while it computes."""

import torch


class CopyStream:
    """Copies tensors from the host to a device. On a CPU it returns them as they are.

    A copy from pageable memory would hold the host until the GPU has done all that is queued. Here it is made
    from page-locked memory and on a separate stream. So it waits for no kernel, and only the next kernel
    waits for it (CUDA semantics, "Use pinned memory buffers", torch 2.13).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the device, for use on the current stream. `tensor` may change at once."""
        if self._stream is None or tensor.is_cuda:
            return tensor
        with torch.cuda.stream(self._stream):
            copy = tensor.pin_memory().to(self.device, non_blocking=True)
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        copy.record_stream(current)  # or the next copy could take its memory while kernels still read it
        return copy
