"""Rates of links that network files of other programs name without them: `hwconfigs/interconnects`.

InfraGraph documents often say only that devices are joined by "nvlink"; topology dumps of NCCL and
RCCL give a count of links and the generation of the GPU. NCCL's own constants fill that in; what
was filled in is said (`NetworkGraph.assumed`).
"""

from __future__ import annotations

from functools import cache

from pydantic import Field

from ridgeline import catalog, units
from ridgeline.config import Strict, load


class LinkFamily(Strict):
    """Links of one technology, which are recognised by words in their names."""

    name: str
    words: tuple[str, ...] = Field(strict=False)
    latency: units.Seconds
    """Of one message over one link."""
    source: str


class SocketLink(Strict):
    """The link between the processors of a node."""

    arch: str
    vendor: str = ""
    model: int = 0
    bandwidth: units.BytesPerSecond


class Interconnects(Strict):
    """What links are called, and what they amount to where a file does not say it."""

    kind: str
    description: str
    sources: dict[str, str]
    families: tuple[LinkFamily, ...] = Field(strict=False, min_length=1)
    nvlink_by_sm: dict[str, units.BytesPerSecond]
    xgmi_by_gcn: dict[str, units.BytesPerSecond]
    pcie_gen3_x16: units.BytesPerSecond
    sockets: tuple[SocketLink, ...] = Field(strict=False)

    def family(self, link: str) -> LinkFamily:
        """Return the family that a link belongs to, by its name."""
        name = link.lower()
        found = (one for one in self.families if any(word in name for word in one.words))
        return next(found, self.families[-1])

    def nvlink_bytes_per_s(self, sm: int) -> float:
        """Return what one NVLink of a GPU of that compute capability carries, one way."""
        by_sm = {int(generation): rate for generation, rate in self.nvlink_by_sm.items()}
        return by_sm[max((one for one in by_sm if one <= sm), default=min(by_sm))]

    def xgmi_bytes_per_s(self, gcn: str) -> float:
        """Return what one XGMI link of a GPU of that architecture carries, one way."""
        known = [name for name in self.xgmi_by_gcn if name <= _architecture(gcn)]
        return self.xgmi_by_gcn[max(known, default=min(self.xgmi_by_gcn))]

    def socket_bytes_per_s(self, arch: str, vendor: str, model: int) -> float:
        """Return what the processors of a node send each other, one way."""
        fits = (
            one.bandwidth
            for one in self.sockets
            if one.arch == arch and one.vendor in {"", vendor} and one.model in {0, model}
        )
        return next(fits, self.pcie_gen3_x16 / 2)


def _architecture(gcn: str) -> str:
    """Return e.g. gfx942 of what dumps write: gfx942, 942, 908 or gfx90a:sramecc+."""
    name = gcn.partition(":")[0]
    return name if name.startswith("gfx") else f"gfx{name}"


@cache
def interconnects() -> Interconnects:
    """Return the shipped rates."""
    return load(catalog.root() / "hwconfigs" / "interconnects.yaml", Interconnects)
