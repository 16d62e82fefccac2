"""Energy costs of one year of computing: nodes without accelerators, or one node with them.

The defaults are the published sheet of a benchmark of functional encryption on GPUs: a GPU speeds
up the application 2.2 times, and a node has 8 GPUs, so it replaces 17.6 nodes.  All inputs have
names, and none was measured here.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Final

from tfe_bench.benchmarks.technologies.job_options import format_flag, option_field
from tfe_bench.errors import UsageError

HOURS: Final = 24 * 365
KG_CO2_PER_KWH: Final = 0.706
"""The figure of the published sheet (the US EPA's, for saved energy)."""


@dataclass(frozen=True)
class EnergyInputs:
    """Inputs of the sheet; all are numbers above 0.

    Raises:
        UsageError: an input is not finite, not above 0, or above 10^12.
    """

    speed_up: float = option_field("of the application by one accelerator", "X", default=2.2)
    accelerators: float = option_field("in a node", "X", default=8)
    node_watts: float = option_field("of a node without accelerators, computing", "X", default=1100)
    node_network_watts: float = option_field("its part of the network", "X", default=46.4)
    accelerated_watts: float = option_field(
        "of a node with accelerators, computing", "X", default=6500
    )
    accelerated_network_watts: float = option_field("its part of the network", "X", default=93)
    dollars_per_kwh: float = option_field("price of energy", "X", default=0.34)
    kg_co2_per_kwh: float = option_field("carbon dioxide", "X", default=KG_CO2_PER_KWH)

    def __post_init__(self) -> None:
        for input_field in dataclasses.fields(self):
            value = getattr(self, input_field.name)
            if not (math.isfinite(value) and 0 < value <= 1e12):
                name = format_flag(input_field.name)
                raise UsageError(
                    f"{name} is a number above 0, at most 10^12. Received: {value}.",
                    code="number-out-of-range",
                    operation=name,
                    received=value,
                )


@dataclass(frozen=True)
class EnergySheet:
    """Results of `Inputs`: watts, and kWh and dollars of one year at full load."""

    nodes_replaced: float
    nodes_compute_watts: float
    nodes_network_watts: float
    nodes_watts: float
    accelerated_watts: float
    saved_watts: float
    efficiency: float
    nodes_kwh_year: float
    accelerated_kwh_year: float
    saved_kwh_year: float
    saved_dollars_year: float
    saved_dollars_three_years: float
    saved_tons_co2_year: float


def compute_energy_sheet(inputs: EnergyInputs) -> EnergySheet:
    """Compute the sheet from the inputs."""
    nodes = inputs.speed_up * inputs.accelerators
    compute, network = nodes * inputs.node_watts, nodes * inputs.node_network_watts
    before, after = compute + network, inputs.accelerated_watts + inputs.accelerated_network_watts
    saved = before - after
    kwh = saved * HOURS / 1000
    return EnergySheet(
        nodes_replaced=nodes,
        nodes_compute_watts=compute,
        nodes_network_watts=network,
        nodes_watts=before,
        accelerated_watts=after,
        saved_watts=saved,
        efficiency=before / after,
        nodes_kwh_year=before * HOURS / 1000,
        accelerated_kwh_year=after * HOURS / 1000,
        saved_kwh_year=kwh,
        saved_dollars_year=kwh * inputs.dollars_per_kwh,
        saved_dollars_three_years=3 * kwh * inputs.dollars_per_kwh,
        saved_tons_co2_year=kwh * inputs.kg_co2_per_kwh / 1000,
    )
