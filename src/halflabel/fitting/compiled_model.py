"""`--compile inductor`: a model compiled by torch.compile, with fewer and larger kernels. Compiling takes a minute."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halflabel.features.heads import Model
from halflabel.types import Output


class CompiledModel(nn.Module):
    """Compiles whole training batches, once for each dtype of autocast; other batches use the plain model."""

    def __init__(self, model: nn.Module, batch_size: int) -> None:
        super().__init__()
        self.model = model
        self.batch_size = batch_size
        self.compiled = torch.compile(self._run, dynamic=False)

    def _run(self, view: Tensor, dtype: torch.dtype | None) -> Output:
        if dtype is None:
            output: Output = self.model(view)
            return output
        # Autocast is entered again inside: torch 2.11 looks up earlier compilations, also of other processes, by the
        # code of this function, and would compute in bf16 when fp16 is asked for.
        with torch.autocast(view.device.type, dtype, cache_enabled=False):
            return self._run(view, None)

    run, take = Model.run, Model.take

    def forward(self, view: Tensor) -> Output:
        if len(view) % self.batch_size or not self.training or not torch.is_grad_enabled():
            return self._run(view, None)
        kind = view.device.type
        return self.compiled(view, torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)
