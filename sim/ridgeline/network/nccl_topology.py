"""Topology dumps of NCCL and RCCL (``NCCL_TOPO_DUMP_FILE``, XML): the inside of one node.

Processors (NUMA domains) are hosts, PCI bridges switches; GPUs, NICs and NVSwitches hang on them.
Bandwidths are NCCL's own: of NVLinks and XGMI by the GPU's generation, of PCIe by rate and lanes,
between processors by their maker (`hwconfigs/interconnects.yaml`). All NVSwitches are one crossbar,
as NCCL takes them. Files that clouds ship list PCI devices alone; those of class 0x03 and 0x12 are
taken for GPUs, and NVLinks that only the driver knows are not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from ridgeline.bounded_files import read_text
from ridgeline.errors import ConfigError
from ridgeline.network.graph import LinkRate, NetworkGraph
from ridgeline.network.interconnects import interconnects
from ridgeline.network.topology import DEVICE

_GPU_CLASSES, _NIC_CLASSES = ("0x03", "0x12"), ("0x02",)
_SWITCH_CLASS = "0x0680"
_NUMBER = re.compile(r"\s*([\d.]+)")
_GEN3 = 8.0  # GT/s
_DEEPEST = 64


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str]
    line: int
    children: list[_Element] = field(default_factory=list)

    def of(self, tag: str) -> Iterator[_Element]:
        """Yield the children of a tag."""
        yield from (child for child in self.children if child.tag == tag)


def read_nccl_topology(path: str | Path) -> NetworkGraph:
    """Read a topology dump.

    Raises
    ------
    ConfigError
        If it is not XML, no topology, or says something that cannot be, with file and line.
    """
    root = _parsed(read_text(path), str(path))
    if root.tag != "system":
        what = (
            "this is a graph file of NCCL (the rings that it chose), not a topology"
            if root.tag in {"graphs", "graph"}
            else f"a topology dump is one element <system>; found <{root.tag}>"
        )
        raise ConfigError(what, file=str(path), line=root.line)
    return _Dump(path).graph(root)


def _parsed(text: str, file: str) -> _Element:
    """Return the element tree; entities and document types are refused."""
    parser, stack = expat.ParserCreate(), [_Element("", {}, 0)]

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = _Element(tag, attributes, parser.CurrentLineNumber)
        if len(stack) > _DEEPEST:
            raise ConfigError("too deeply nested", file=file, line=element.line)
        stack[-1].children.append(element)
        stack.append(element)

    def refuse(*_: object) -> None:
        raise ConfigError(
            "document types and entities are not read", file=file, line=parser.CurrentLineNumber
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop() and None
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code)
        raise ConfigError(f"not XML: {what}", file=file, line=error.lineno) from error
    return stack[0].children[0]


class _Dump:
    def __init__(self, path: str | Path) -> None:
        self.file = str(path)
        self.out = NetworkGraph(Path(path).stem, self.file)
        self.gpus: dict[str, tuple[_Element, _Element | None]] = {}  # by PCI address
        self.at: dict[str, int] = {}

    def graph(self, root: _Element) -> NetworkGraph:
        """Draw the node: GPUs in rank order first."""
        for cpu in root.of("cpu"):
            self._find(cpu)
        order = sorted(self.gpus, key=lambda bus: self._rank(*self.gpus[bus]))
        for i, bus in enumerate(order):
            self.at[bus] = self.out.vertex(f"gpu{i}", DEVICE, 0)
        hosts: list[int] = []
        for cpu in root.of("cpu"):
            numa = cpu.attributes.get("numaid", str(len(hosts)))
            host = self.out.vertex(f"cpu{numa}", "host", 0)
            self._join_sockets(host, hosts, cpu)
            hosts.append(host)
            self._below(cpu, host)
        self._join_gpus()
        if self.gpus and not any(link.startswith(("nvlink", "xgmi")) for link in self.out.rates):
            self.out.notes.append("no NVLink or XGMI is listed: messages go over PCIe")
        return self.out

    def _find(self, parent: _Element) -> None:
        for pci in parent.of("pci"):
            gpu = next(pci.of("gpu"), None)
            kind = pci.attributes.get("class", "")
            if gpu is not None or (kind.startswith(_GPU_CLASSES) and not pci.children):
                bus = self._bus(pci)
                if bus in self.gpus:
                    raise self._error(f"two devices have the address {bus!r}", pci)
                self.gpus[bus] = pci, gpu
            self._find(pci)

    def _rank(self, pci: _Element, gpu: _Element | None) -> tuple[int, str]:
        if gpu is None:
            return 1 << 30, self._bus(pci)
        return int(self._number(gpu, "rank", self._number(gpu, "dev", 0.0))), self._bus(pci)

    def _below(self, parent: _Element, vertex: int) -> None:
        """Draw what hangs on a processor or a bridge."""
        for pci in parent.of("pci"):
            bus = self._bus(pci)
            own = self.at.get(bus)
            kind = pci.attributes.get("class", "")
            nic = next(pci.of("nic"), None)
            if own is None and (nic is not None or kind.startswith(_NIC_CLASSES)):
                own = self.out.vertex(f"nic{self._nics()}", "nic", 0)
            elif own is None and kind.startswith(_SWITCH_CLASS):
                continue  # an NVSwitch, which the links of the GPUs name
            elif own is None:
                own = self.out.vertex(f"pci-{bus}", "switch", 0)
            self.out.join(vertex, own, self._pcie(pci))
            self._below(pci, own)

    def _nics(self) -> int:
        return self.out.drawing.kinds.count("nic")

    def _pcie(self, pci: _Element) -> str:
        rate, lanes = self._number(pci, "link_speed", _GEN3), self._number(pci, "link_width", 16.0)
        rate, lanes = rate or _GEN3, lanes or 16.0
        name = f"pcie-{rate:g}gts-x{lanes:g}"
        share = rate / _GEN3 * lanes / 16
        self.out.rates[name] = LinkRate(interconnects().pcie_gen3_x16 * share)
        return name

    def _join_sockets(self, host: int, others: list[int], cpu: _Element) -> None:
        of = cpu.attributes
        rate = interconnects().socket_bytes_per_s(
            of.get("arch", ""), of.get("vendor", ""), int(self._number(cpu, "modelid", 0.0))
        )
        self.out.rates.setdefault("socket", LinkRate(rate))
        for other in others:
            self.out.join(other, host, "socket")

    def _join_gpus(self) -> None:
        """Draw NVLinks and XGMI: between two GPUs, which both name it, or to the NVSwitches."""
        switch = -1
        for bus, (_, gpu) in self.gpus.items():
            for link in gpu.children if gpu is not None else ():
                if link.tag not in {"nvlink", "xgmi"} or gpu is None:
                    continue
                count = int(self._number(link, "count", 1.0))
                if count < 1:
                    raise self._error(f"count must be at least 1, found {count}", link)
                name = self._gpu_link(link, gpu)
                target = link.attributes.get("target", "").lower()
                if link.attributes.get("tclass", "").startswith(_SWITCH_CLASS):
                    if switch < 0:
                        switch = self.out.vertex("nvswitch", "switch", 0)
                    self.out.join(self.at[bus], switch, name, count)
                elif target in self.at:
                    pair = (min(self.at[bus], self.at[target]), max(self.at[bus], self.at[target]))
                    self.out.edges[*pair, name] = count  # named from both ends, counted once
                elif link.tag == "xgmi":
                    raise self._error(f"no GPU has the address {target!r}", link)

    def _gpu_link(self, link: _Element, gpu: _Element) -> str:
        known = interconnects()
        if link.tag == "xgmi":
            rate = known.xgmi_bytes_per_s(gpu.attributes.get("gcn", ""))
        else:
            rate = known.nvlink_bytes_per_s(int(self._number(gpu, "sm", 0.0)))
        self.out.rates[link.tag] = LinkRate(rate)
        return link.tag

    def _bus(self, pci: _Element) -> str:
        found = pci.attributes.get("busid", "").lower()
        if not found:
            raise self._error("a <pci> needs its busid", pci)
        return found

    def _number(self, element: _Element, name: str, default: float) -> float:
        text = element.attributes.get(name, "")
        if not text.strip() or text.strip().lower().startswith("unknown"):
            return default
        match = _NUMBER.match(text)
        try:
            return float(match[1]) if match else float(text)
        except ValueError as error:
            raise self._error(f"{name} must be a number, found {text!r}", element) from error

    def _error(self, message: str, element: _Element) -> ConfigError:
        return ConfigError(message, file=self.file, line=element.line, field=element.tag)
