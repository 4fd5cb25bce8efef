"""Values of tensors that a trace knows: of code alone, or by a stated assumption."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

EVEN = (
    "values decide which rows are computed where (routing to experts): every choice is taken to be"
    " made equally often"
)
DISTINCT = "values that are asked for without repetitions are taken to be all different"
FULL = "packed sequences are taken to have the full length"
_PACKING = frozenset({"_pack_padded_sequence", "_pad_packed_sequence"})
_FINITE = {"isnan": False, "isinf": False, "isposinf": False, "isneginf": False, "isfinite": True}
_UNIQUE = frozenset({"_unique2", "unique_dim", "unique_consecutive"})
_CHOICES = frozenset({"topk", "argmax", "argmin"})


def masked(share: float) -> str:
    """Say what is supposed of masks."""
    return (
        f"masks that depend on values decide which rows are computed: {share:.0%} of their elements"
        " are taken to be true (mask_share of rl.trace; 1 gives an upper bound)"
    )


class Known:
    """Real values of small tensors that depend on code alone: masks, positions, flags.

    Code that looks at one of them (is this mask causal?) gets its answer; random numbers are 0.5.

    Where the largest of several numbers are chosen (the experts of a token), each is *supposed* to
    be chosen equally often, one after the other. Of a truth value for each element (a mask), a
    `share` is supposed to be true, evenly spread; numbers are finite. What follows from such a
    choice is supposed, too; where it decides how many rows are computed, that is noted.
    """

    limit = 2**23
    """Elements of the largest tensor that is computed."""

    def __init__(self, share: float = 0.5) -> None:
        self.share = share
        self._masks: set[int] = set()  # ids of what follows from a supposed mask
        self._real: dict[int, tuple[Any, Any]] = {}  # fake tensor and its values, by id
        self._supposed: set[int] = set()  # ids of fake tensors, and of real ones on their way
        self._follows = False  # whether the operator that runs reads a supposed value
        self._masked = False  # whether that comes from a mask
        self.notes: dict[str, None] = {}
        """What was assumed, in the order in which it mattered."""

    def learn(self, fake: Any, real: Any) -> None:
        """Keep the values of tensors."""
        if isinstance(fake, torch.Tensor) and isinstance(real, torch.Tensor):
            if fake.shape == real.shape and real.numel() <= self.limit:
                self._real[id(fake)] = (fake, real)
                if self._follows:
                    self._supposed.add(id(fake))
                if self._masked:
                    self._masks.add(id(fake))
        elif isinstance(fake, list | tuple) and isinstance(real, list | tuple):
            for one, other in zip(fake, real, strict=False):
                self.learn(one, other)

    def total(self, fake: Any) -> int | None:
        """Return the sum of a tensor of whole numbers; None if its values are not known."""
        if id(fake) not in self._real or id(fake) in self._supposed | self._masks:
            return None
        with _disable_current_modes():
            return int(self._real[id(fake)][1].sum())

    def run(self, func: Any, name: str, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Compute an operator whose tensors are all known; tell whether it was."""
        self._follows = self._masked = False
        self._imagine(name, args)
        leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if any(id(x) not in self._real for x in leaves) or not self._small(args, kwargs):
            self._forget(name, args)
            return False, None
        self._follows = any(id(x) in self._supposed for x in leaves)
        self._masked = any(id(x) in self._masks for x in leaves)
        args, kwargs = tree_map_only(torch.Tensor, lambda x: self._real[id(x)][1], (args, kwargs))
        with _disable_current_modes(), torch.inference_mode():
            try:
                real = func(*args, **kwargs)
                if name.strip("_") in _RANDOM and isinstance(real, torch.Tensor):
                    real.fill_(0.5)
            except (RuntimeError, NotImplementedError, IndexError, ValueError):
                return False, None  # the fake tensors will complain, or do without
        if not isinstance(real, torch.Tensor | list | tuple):
            self.decided()
        return True, real

    def decided(self) -> None:
        """Note that values decide what is computed, if they are supposed ones."""
        if self._masked:
            self.notes[masked(self.share)] = None
        elif self._follows:
            self.notes[EVEN] = None

    def suppose(self, name: str, args: Mapping[str, Any], out: Any) -> None:
        """Suppose values of a choice that depends on the mini-batch."""
        if name in _PACKING:
            self._fill(out[1], out[0].shape[0] // max(out[1].shape[0], 1) if "pack_padded" in name
                       else args["batch_sizes"].shape[0])  # fmt: skip
            return
        if isinstance(out, torch.Tensor) and out.dtype == torch.bool and out.ndim:
            self._mask(out, self.share if name not in _FINITE else float(_FINITE[name]))
            return
        chosen = out[1] if isinstance(out, list | tuple) and len(out) > 1 else out
        if name not in _CHOICES or not isinstance(chosen, torch.Tensor):
            return
        if id(chosen) in self._real or chosen.numel() > self.limit or chosen.dtype != torch.int64:
            return
        of = args["self"].shape
        axis = args.get("dim", -1)
        if axis is None or not of:
            return
        axis %= len(of)
        kept = bool(args.get("keepdim", False)) or name == "topk"
        with _disable_current_modes():
            shape = [*chosen.shape] if kept else [*chosen.shape[:axis], 1, *chosen.shape[axis:]]
            along = [*(n for i, n in enumerate(shape) if i != axis), shape[axis]]
            real = (torch.arange(chosen.numel()) % of[axis]).reshape(along).movedim(-1, axis)
            self._real[id(chosen)] = (chosen, real.reshape(chosen.shape))
        self._supposed.add(id(chosen))

    def _mask(self, tensor: Any, share: float) -> None:
        """Suppose a share of the elements of a tensor to be true, or not zero."""
        if id(tensor) in self._real or tensor.numel() > self.limit:
            return
        with _disable_current_modes():
            real = (torch.arange(tensor.numel()) * share) % 1 < share
            self._real[id(tensor)] = (tensor, real.reshape(tensor.shape).to(tensor.dtype))
        self._supposed.add(id(tensor))
        self._masks.add(id(tensor))

    def _imagine(self, name: str, args: Any) -> None:
        """Suppose values of what is asked for the places of its truths, or for what is in it."""
        if not args or not isinstance(args[0], torch.Tensor) or id(args[0]) in self._real:
            return
        x = args[0]
        if name == "nonzero":
            self._mask(x, self.share)
        elif name in _UNIQUE and x.numel() <= self.limit:
            self.notes[DISTINCT] = None
            with _disable_current_modes():
                real = torch.arange(x.numel()).reshape(x.shape).to(x.dtype)
                self._real[id(x)] = (x, real)

    def _fill(self, tensor: Any, number: int) -> None:
        """Suppose sequences of the full length: as many rows in each timestep, all timesteps."""
        self.notes[FULL] = None
        with _disable_current_modes():
            self._real[id(tensor)] = (tensor, torch.full(tensor.shape, number, dtype=tensor.dtype))

    def with_positions(self, name: str, args: Any, fake: Any) -> Any:
        """Write known masks among the indices as positions, whose number is known then."""
        if name.strip("_") not in {"index", "index_put"} or len(args) < 2:
            return args
        indices: list[Any] = []
        for mask in args[1]:
            is_mask = isinstance(mask, torch.Tensor) and mask.dtype == torch.bool
            if is_mask:
                self._mask(mask, self.share)
            if is_mask and id(mask) in self._real:
                self._follows = self._follows or id(mask) in self._supposed
                self._masked = self._masked or id(mask) in self._masks
                with _disable_current_modes():
                    places = self._real[id(mask)][1].nonzero(as_tuple=True)
                self.decided()
                with fake:
                    indices += [torch.empty(x.shape, dtype=x.dtype) for x in places]
            else:
                indices.append(mask)
        return (args[0], indices, *args[2:])

    def _forget(self, name: str, args: Any) -> None:
        """Forget a tensor that is overwritten by what nobody knows."""
        if name.endswith("_") and args and isinstance(args[0], torch.Tensor):
            self._real.pop(id(args[0]), None)

    def _small(self, args: Any, kwargs: Any) -> bool:
        """Tell whether no argument asks for a large tensor; views and sums of small ones are."""
        sizes = [x for x in tree_leaves((args, kwargs)) if isinstance(x, int)]
        return math.prod(max(abs(x), 1) for x in sizes) <= self.limit


_RANDOM = frozenset({"rand", "rand_like", "randn", "randn_like", "uniform", "bernoulli", "normal"})
