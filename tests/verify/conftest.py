"""The two forms of every rule: numpy float64, and batched torch in float64 and float32. One suite runs on all."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import specplan.verify as reference
from specplan.verify import Outcome


@dataclass(frozen=True)
class NumpyForm:
    name: str = "numpy"
    edge: float = 1e-13  # how near to a breakpoint the suite tries
    exact: float = 1e-12  # how far a float64 result may be off

    def __call__(self, rule: str, *inputs: Any, **options: Any) -> Outcome:
        return getattr(reference, rule)(*inputs, **options)

    def probabilities(self, logits: Any, sampling: Any) -> np.ndarray:
        return reference.probabilities(logits, sampling)


@dataclass(frozen=True)
class TorchForm:
    name: str
    dtype: str
    edge: float
    exact: float

    def tensor(self, array: Any) -> Any:
        import torch

        if array is None:
            return None
        a = torch.from_numpy(np.array(array))
        return a.long() if not a.is_floating_point() else a

    def __call__(self, rule: str, *inputs: Any, **options: Any) -> Outcome:
        import torch

        import specplan.harness.verifiers as verifiers

        dtype = getattr(torch, self.dtype)
        tensors = [self.tensor(a) for a in inputs]
        # Distributions (three dimensions) come in the form's type; uniforms stay float64, as the harness draws them.
        tensors = [t.to(dtype) if t is not None and t.dim() == 3 else t for t in tensors]
        return getattr(verifiers, rule)(*tensors, **options).to_host()

    def probabilities(self, logits: Any, sampling: Any) -> np.ndarray:
        import torch

        import specplan.harness.verifiers as verifiers

        z = self.tensor(np.asarray(logits, dtype=np.float64)).to(getattr(torch, self.dtype))
        return verifiers.probabilities(z, sampling).double().numpy()


FORMS = (
    NumpyForm(),
    TorchForm("torch-float64", "float64", 1e-13, 1e-12),
    TorchForm("torch-float32", "float32", 1e-5, 1e-6),
)


@pytest.fixture(params=FORMS, ids=lambda form: form.name)
def form(request: pytest.FixtureRequest) -> NumpyForm | TorchForm:
    if request.param.name != "numpy":
        pytest.importorskip("torch")
    return request.param
