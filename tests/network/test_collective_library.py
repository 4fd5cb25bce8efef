"""Libraries by property of the link, names of nccl-tests, and frameworks' own all-reduces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import RidgelineError
from ridgeline.hardware import load_cluster
from ridgeline.network import collective, from_cluster, nccl

NODES = Path(__file__).parents[2] / "hwconfigs" / "nodes"


@pytest.mark.parametrize(("node", "link"), [("dgx-h100", "nvlink4"), ("dgx-a100", "nvlink3")])
@pytest.mark.parametrize("stated", [True, False])
def test_a_links_name_does_not_matter(node: str, link: str, stated: bool, tmp_path: Path) -> None:
    text = (NODES / f"{node}.yaml").read_text(encoding="utf-8").replace(f"link.{link}", "0 J/B")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace(link, "mylink"), encoding="utf-8")
    fields = {} if stated else {"node.link_types.mylink.library": None}
    for size in (1e3, 1e6, 8e6, 1e8):
        for op in ("all-reduce", "all-gather", "all-to-all"):
            own = collective(op, size, load_cluster(str(mine), fields))
            if stated:
                named = collective(op, size, node)
                assert own.algorithm == named.algorithm
                assert own.time_s == pytest.approx(named.time_s)
            elif op == "all-reduce":  # from the vendor and the year of the devices
                assert own.algorithm in nccl.NAMES


def test_a_bus_and_other_vendors_devices_have_no_library_unless_they_say_so() -> None:
    assert not nccl.has_library(from_cluster(load_cluster("pcie3-8gpu"), 8))
    assert not nccl.has_library(from_cluster(load_cluster("tpu-v4-pod"), 8))
    amd = from_cluster(load_cluster("mi300x-8"), 8)
    assert {of.name for of in amd.library.values()} == {"rccl"}
    small = collective("all-reduce", 1e4, amd)
    assert small.algorithm == "ring-ll"
    assert not any(
        s.algorithm.startswith("nvls") for s in nccl.candidates("all-reduce", amd, range(8), 1e8)
    )


@pytest.mark.parametrize(
    ("name", "own"),
    [("all_reduce_perf", "all-reduce"), ("alltoall", "all-to-all"), ("sendrecv", "send-recv"),
     ("ReduceScatter", "reduce-scatter"), ("ncclAllGather", "all-gather"), ("bcast", "broadcast")],
)  # fmt: skip
def test_names_of_nccl_tests(name: str, own: str) -> None:
    assert collective(name, 1e6, "dgx-a100") == collective(own, 1e6, "dgx-a100")


def test_an_unknown_operation_names_the_nearest() -> None:
    with pytest.raises(RidgelineError, match="no collective is called 'all_redcue'"):
        collective("all_redcue", 1e6, "dgx-a100")


def test_switches_do_not_add_up_bytes() -> None:
    assert collective("all-reduce", 1e9, "dgx-h100").algorithm == "nvls"
    bytes_ = collective("all-reduce", 1e9, "dgx-h100", number_format="int8")
    assert bytes_.algorithm == "ring-simple"


def test_frameworks_read_their_peers_in_one_shot_or_two() -> None:
    def priced(size: float, n: int, **how: str) -> tuple[str, float]:
        found = collective("all-reduce", size, "dgx-h100", ranks=n, **how)  # type: ignore[arg-type]
        return found.algorithm, found.time_s

    assert priced(2.0**18, 4, library="vllm")[0] == "one-shot"
    assert priced(2.0**19, 4, library="vllm")[0] == "two-shot"
    assert priced(2.0**24, 4, library="vllm") == priced(2.0**24, 4)
    # start 4.3 us, a device reads three buffers at 0.63 of 450 GB/s
    assert priced(2.0**18, 4, library="vllm")[1] == pytest.approx(
        4.3e-6 + 3 * 2**18 / (0.63 * 450e9)
    )
    assert priced(1e3, 4, library="vllm", launch="eager")[1] == pytest.approx(20.7e-6)
    for size in (1e5, 1e6, 4e6):
        assert priced(size, 8, library="trtllm")[1] <= priced(size, 8)[1]
    with pytest.raises(RidgelineError, match=r"no library of collectives is called 'vlm'.*vllm"):
        collective("all-reduce", 1e6, "dgx-h100", library="vlm")
    with pytest.raises(RidgelineError, match="all-reduces of its own alone"):
        collective("all-gather", 1e6, "dgx-h100", library="vllm")


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["dgx-h100", "dgx-a100", "hgx-b200"]),
    st.sampled_from(["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]),
    st.floats(1, 1e9),
)
def test_no_collective_beats_the_links_of_a_device(node: str, op: str, size: float) -> None:
    topology = from_cluster(load_cluster(node), 8)
    found = collective(op, size, topology)
    passes = 1.0 if found.algorithm == "nvls" else {"all-reduce": 2 * 7 / 8}.get(op, 7 / 8)
    out = topology.bandwidth_bytes_per_s[
        (topology.source == topology.devices[0]) & topology.of_class(next(iter(topology.library)))
    ].sum()
    assert found.time_s >= passes * size / out * (1 - 1e-9)


def test_ranks_of_a_node_may_be_few() -> None:
    # nccl-tests on ten nodes of H100 with one rank each: 321 ms for 16 GiB
    found = collective("all_gather", 2.0**34, "superpod-h100", ranks=10, ranks_per_node=1)
    assert found.time_s == pytest.approx(0.321, rel=0.05)
    with pytest.raises(RidgelineError, match="ranks_per_node needs a number of ranks"):
        collective("all_gather", 1e6, "superpod-h100", ranks=10, ranks_per_node=3)
    with pytest.raises(RidgelineError, match="has no 2 nodes with 9 devices"):
        collective("all_gather", 1e6, "superpod-h100", ranks=18, ranks_per_node=9)
