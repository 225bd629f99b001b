"""Topologies by name, and the roofline."""

import pytest

from jax_lm.planning.roofline import CHIPS, Cost, MachineLimits, Topology, peak_flops


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("v5e:2x2", 4),
        ("v5e:1x1", 1),
        ("v4:2x2x1", 8),
        ("v6e:4x4", 16),
        ("h100:8", 8),
        ("rtx4090:1", 1),
    ],
)
def test_topology_from_text(text, devices):
    topology = Topology.parse(text)
    assert (str(topology), topology.devices) == (text, devices)
    assert topology.is_tpu == text.startswith("v")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("v9:2x2", "must be one of v4, v5e"),
        ("", "must be one of v4, v5e"),
        ("v5e", "must be like v5e:1x1"),
        ("v5e:2x2x2", "must be like v5e:1x1"),
        ("v5e:0x2", "must be like v5e:1x1"),
        ("v4:2x2", "must be like v4:2x2x1"),
        ("h100:2x2", "must be like h100:1"),
        ("h100:99999999999", "must have at most 65536 chips"),
    ],
)
def test_unknown_topology_is_refused(text, named):
    with pytest.raises(ValueError, match=named):
        Topology.parse(text)


def test_families_grow():
    for family, chip in CHIPS.items():
        sizes = [
            topology.devices
            for topology in Topology.parse(f"{family}:{chip.topologies[0]}").same_family()
        ]
        assert sizes == sorted(set(sizes))


def test_the_slower_limit_counts():
    limits = MachineLimits(matmul_flops=100.0, copy_bytes=10.0)
    assert (Cost(1000, 50).seconds(limits), Cost(1000, 50).limit(limits)) == (10.0, "compute")
    assert (Cost(100, 50).seconds(limits), Cost(100, 50).limit(limits)) == (5.0, "memory")


def test_peaks_are_known_by_the_names_that_jax_uses():
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("TPU v5 lite") == 197e12
    assert peak_flops("cpu") is peak_flops("NVIDIA H100 PCIe") is None
    names = [name for chip in CHIPS.values() for name in chip.names]
    assert sorted(set(names)) == sorted(names)
