"""Small machines and networks for tests, written as a user would write them."""

from __future__ import annotations

from pathlib import Path

ENERGY = """
kind: energy-table
name: toy-energy
process_node: 12 nm
entries:
  flop.fp32: {value: 2 pJ/FLOP, scope: arithmetic}
  flop.fp16: {value: 1 pJ/FLOP, scope: arithmetic}
  registers: {value: 0.1 pJ/B, scope: path}
  sram: {value: 1 pJ/B, scope: path}
  dram: {value: 4 pJ/bit, scope: device}
  link: {value: 10 pJ/bit, scope: link}
"""

DEVICE = """
kind: device
name: toy
year: 2020
idle_power: 10 W
energy_table: energy.yaml
launch_latency: 2 us
engines:
  matrix:
    kind: tensor-core
    runs: [matrix]
    rates: {fp32: 10 TFLOP/s, fp16: 40 TFLOP/s}
    energy: {fp32: flop.fp32, fp16: flop.fp16}
    instruction: {m: 4, n: 4, k: 4}
  vector:
    kind: vector
    runs: [vector]
    rates: {fp32: 1 TFLOP/s}
    energy: {fp32: flop.fp32}
memory:
  registers: {kind: registers, capacity: 16 MiB, instances: 64, energy: registers}
  l2: {kind: sram, capacity: 8 MiB, bandwidth: 4 TB/s, energy: sram, keeps: false}
  hbm: {kind: dram, capacity: 16 GiB, bandwidth: 1 TB/s, energy: dram}
"""

NODE = """
kind: node
name: toy-node
device: device.yaml
count: 4
energy_table: energy.yaml
collective_latency: 5 us
link_types:
  wire: {bandwidth: 20 GB/s, latency: 1 us, energy: link}
links:
  - {between: [device0, device1], type: wire}
  - {between: [device1, device2], type: wire}
  - {between: [device2, device3], type: wire}
  - {between: [device3, device0], type: wire}
"""


def write_machine(folder: Path) -> Path:
    """Write an energy table, a device and a node of four; return the node's file."""
    (folder / "energy.yaml").write_text(ENERGY)
    (folder / "device.yaml").write_text(DEVICE)
    (folder / "node.yaml").write_text(NODE)
    return folder / "node.yaml"
