"""Mixtures of experts in place of the feed-forward networks of transformers."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ridgeline.config import Strict
from ridgeline.workload import ops
from ridgeline.workload.builder import Attrs, GraphBuilder
from ridgeline.workload.expert_load import expected_experts
from ridgeline.workload.families.base import Channels
from ridgeline.workload.families.blocks import FeedForward
from ridgeline.workload.graph import LIBRARY, WITHIN, Gemm
from ridgeline.workload.ops.elementwise import Activation, Gate


class Mixture(Strict):
    """A mixture of gated feed-forward networks, of which a router chooses a few for each token.

    Auxiliary losses that balance the load are left out; experts are evenly loaded.
    """

    experts: Channels
    top_k: Channels
    """Experts that compute each token."""
    width: Channels
    """Features inside an expert."""
    shared: Annotated[int, Field(ge=0, le=1024)] = 0
    """Experts that compute all tokens, as one wider network."""
    shared_width: Channels | None = None
    """Features inside each of these; by default as inside the others."""
    activation: Activation | Gate = "swiglu"
    """Function of an expert; "swiglu" and "geglu" multiply two halves."""
    latent: Channels | None = None
    """Features that the chosen experts compute with, between two linear layers that all tokens
    pass (LatentMoE); by default those of the network."""
    scores: Literal["softmax-of-chosen", "softmax", "shared-sigmoid", "sigmoid"] = (
        "softmax-of-chosen"
    )
    """Weights of the chosen experts: a softmax over their scores (Mixtral), their part of a softmax
    over all (DeepSeek-V2), sigmoids divided by their sum (DeepSeek-V3), or sigmoids (Llama 4)."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """What the weights are multiplied by."""
    capacity_factor: Annotated[float, Field(ge=1, le=1024)] = 1.0
    """Rows that an expert computes, over those of an even load."""
    router_bias: bool = False
    """Whether the router adds a bias."""
    score_bias: bool = False
    """Whether experts are chosen by their scores and a bias, which no gradient reaches."""
    expert_bias: bool = False
    """Whether the products of an expert add biases."""
    shared_gate: bool = False
    """Whether a sigmoid of a linear layer scales what the shared experts make of a token."""
    input_scale: bool = False
    """Whether the router reads normalised tokens, scaled feature by feature (Gemma 4)."""
    expert_scale: bool = False
    """Whether the weights of each expert have a trained factor (Gemma 4)."""
    first_dense: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Blocks at the beginning that have the plain feed-forward network instead."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than {self.experts} experts")
        return self

    def build(self, b: GraphBuilder, name: str, x: str) -> str:
        """Write the router, the experts and the sum of what they make."""
        weights, chosen = self._route(b, f"{name}.router", x)
        y = x
        if self.latent:
            y = ops.linear(b, f"{name}.latent-down", x, self.latent, bias=False)
        rows, places = ops.dispatch(
            b, f"{name}.dispatch", y, chosen, self.experts, self.capacity_factor
        )
        first = len(b.ops) - 1
        rows = self._expert(b, name, rows)
        y = ops.combine(b, f"{name}.combine", rows, weights, places)
        if b.generation:
            self._as_one_kernel(b, first, math.prod(b.shape(places)))
        if self.latent:
            y = ops.linear(b, f"{name}.latent-up", y, b.shape(x)[-1], bias=False)
        if self.shared:
            width = self.shared * (self.shared_width or self.width)
            always = FeedForward(width=width, activation=self.activation, bias=False)
            z = always.build(b, f"{name}.shared", x)
            if self.shared_gate:
                gate = ops.linear(b, f"{name}.shared-gate", x, 1, bias=False)
                gate = ops.activation(b, f"{name}.shared-gate.sigmoid", gate, "sigmoid")
                layer = f"{name}.shared-gate.multiply"
                (z,) = ops.function(b, layer, "broadcast-multiply", (z, gate), b.shape(z))
            y = ops.add(b, f"{name}.add-shared", y, z)
        return y

    def _as_one_kernel(self, b: GraphBuilder, first: int, rows: int) -> None:
        """Note that libraries do dispatch, experts and combination of generation in one call.

        The first product stands for it; `rows`: pairs of a token and an expert. Weights of experts
        that no token of all ranks that share them has chosen are not read.
        """
        assert b.generation is not None
        tokens = rows // self.top_k * b.generation.expert_ranks
        chosen = expected_experts(self.experts, self.top_k, tokens)
        call: Attrs = (
            (LIBRARY, b.generation.library), ("rows", rows), ("top-k", self.top_k),
            ("chosen", chosen / self.experts),
        )  # fmt: skip
        seen = False
        for i in range(first, len(b.ops)):
            op = b.ops[i]
            passes = op.input_passes
            more: Attrs = ((WITHIN, 1),)
            if isinstance(op.loops, Gemm):
                read = Fraction(chosen / self.experts).limit_denominator(10**6)
                passes = (1, read, *passes[2:])
                more = more if seen else call
                seen = True
            b.ops[i] = replace(op, input_passes=passes, attrs=(*op.attrs, *more))

    def _expert(self, b: GraphBuilder, name: str, rows: str) -> str:
        """Write what every expert does with its rows."""
        features = b.shape(rows)[-1]
        match self.activation:
            case "swiglu" | "geglu" as gate:
                widths = (self.width, self.width)
                half, up = self._products(b, f"{name}.gate-up", rows, widths)
                rows = ops.gated(b, f"{name}.{gate}", half, up, gate)
            case function:
                (rows,) = self._products(b, f"{name}.up", rows, (self.width,))
                rows = ops.activation(b, f"{name}.{function}", rows, function)
        return self._products(b, f"{name}.down", rows, (features,))[0]

    def _products(
        self, b: GraphBuilder, layer: str, rows: str, widths: tuple[int, ...]
    ) -> tuple[str, ...]:
        """Write products of the rows of all experts, each with weights and biases of its own."""
        ys = ops.expert_linears(b, layer, rows, widths)
        if not self.expert_bias:
            return ys
        return tuple(self._biased(b, f"{layer}.bias{i}", y) for i, y in enumerate(ys))

    def _biased(self, b: GraphBuilder, layer: str, y: str) -> str:
        bias = b.weight(f"{layer}.weight", (self.experts, 1, b.shape(y)[-1]))
        bias = b.cast(bias, b.format(y), layer)
        return ops.function(b, layer, "broadcast-add", (y, bias), b.shape(y))[0]

    def _route(self, b: GraphBuilder, name: str, x: str) -> tuple[str, str]:
        """Return the weights of the chosen experts, and which they are."""
        if self.input_scale:
            x = ops.rms_norm(b, f"{name}.norm", x)
        weights = ops.linear(b, name, x, self.experts, bias=self.router_bias)
        if self.scores == "softmax":
            weights = ops.softmax(b, f"{name}.softmax", weights)
        elif self.scores in {"shared-sigmoid", "sigmoid"}:
            weights = ops.activation(b, f"{name}.sigmoid", weights, "sigmoid")
        if self.score_bias:
            bias = b.cast(
                b.weight(f"{name}.score-bias.weight", (self.experts,)), b.format(weights), name
            )
            layer = f"{name}.score-bias"
            (weights,) = ops.function(b, layer, "broadcast-add", (weights, bias), b.shape(weights))
            b.freeze(f"{name}.score-bias")
        weights, chosen = ops.top_k(b, f"{name}.top-k", weights, self.top_k)
        if self.scores == "softmax-of-chosen":
            weights = ops.softmax(b, f"{name}.softmax", weights)
        elif self.scores == "shared-sigmoid":
            weights = ops.share(b, f"{name}.share", weights)
        if self.expert_scale:
            factors = b.weight(f"{name}.expert-scale.weight", (self.experts,))
            factors = b.cast(factors, b.format(weights), f"{name}.expert-scale")
            layer = f"{name}.expert-scale"
            inputs = (weights, chosen, factors)
            (weights,) = ops.function(b, layer, "broadcast-multiply", inputs, b.shape(weights))
        if self.scale != 1:
            weights = ops.scale(b, f"{name}.scale", weights, self.scale)
        return weights, chosen
