"""Scaling laws: tokens that a language model of some size needs to reach a loss.

L(N, D) = E + A / N^alpha + B / D^beta, with N parameters and D tokens. A law holds where it was
fitted: outside of its range of parameters and tokens it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import RidgelineError
from ridgeline.registry import Registry


@dataclass(frozen=True)
class ScalingLaw:
    """Loss of a language model by its parameters and tokens.

    Attributes
    ----------
    irreducible, parameters_coefficient, parameters_exponent, tokens_coefficient, tokens_exponent
        E, A, alpha, B and beta; losses in nats a token.
    parameters, tokens
        Least and most that it was fitted to.
    source
        Where it was published.
    """

    name: str
    irreducible: float
    parameters_coefficient: float
    parameters_exponent: float
    tokens_coefficient: float
    tokens_exponent: float
    parameters: tuple[float, float]
    tokens: tuple[float, float]
    source: str

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss of a model after so many tokens, in nats a token.

        Raises
        ------
        RidgelineError
            Outside of the range that the law was fitted to.
        """
        self._check("parameters", parameters, self.parameters)
        self._check("tokens", tokens, self.tokens)
        of_size = self.parameters_coefficient / parameters**self.parameters_exponent
        of_data = self.tokens_coefficient / tokens**self.tokens_exponent
        return float(self.irreducible + of_size + of_data)

    def tokens_to(self, loss: float, parameters: float) -> float:
        """Return the tokens after which a model reaches a loss.

        Raises
        ------
        RidgelineError
            If it never does, or outside of the range that the law was fitted to.
        """
        self._check("parameters", parameters, self.parameters)
        floor = (
            self.irreducible + self.parameters_coefficient / parameters**self.parameters_exponent
        )
        if loss <= floor:
            raise RidgelineError(
                f"by the law of {self.name}, {parameters:.4g} parameters never reach a loss of "
                f"{loss:g}: their least is {floor:.4g}"
            )
        tokens = (self.tokens_coefficient / (loss - floor)) ** (1.0 / self.tokens_exponent)
        self._check("tokens", tokens, self.tokens)
        return float(tokens)

    def _check(self, what: str, value: float, span: tuple[float, float]) -> None:
        if not span[0] <= value <= span[1]:
            raise RidgelineError(
                f"the law of {self.name} was fitted to {span[0]:.3g} to {span[1]:.3g} {what}; "
                f"{value:.4g} is outside: state the tokens yourself (target.tokens)"
            )


SCALING_LAWS: Registry[str, ScalingLaw] = Registry("scaling law", __name__, ScalingLaw)
"""All laws by name."""

SCALING_LAWS.register("chinchilla")(
    ScalingLaw(
        "chinchilla", 1.69, 406.4, 0.34, 410.7, 0.28, (70e6, 16e9), (5e9, 500e9),
        "J. Hoffmann et al., 'Training compute-optimal large language models', "
        "arXiv:2203.15556, approach 3 (appendix D.3); over 400 models of 70 million to 16 "
        "billion parameters on 5 to 500 billion tokens",
    )
)  # fmt: skip
