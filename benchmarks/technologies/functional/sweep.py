"""Sizes of a measurement of functional encryption, which are options of its command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tfe_bench.benchmarks.technologies.job_options import check_job_options, option_field
from tfe_bench.errors import UsageError, check_range

MOST_LENGTH: Final = 1 << 14
MOST_ELEMENTS: Final = 1 << 25


@dataclass(frozen=True, kw_only=True)
class SweepCell:
    """One cell of the sweep: sizes, scheme and threads of a measurement.

    Attributes:
        length: values in a message.
        result_bits: results are from -2^(result_bits - 1) to 2^(result_bits - 1).
        batch: number of messages.
        outputs: number of keys, that is of results for each message.
        scheme: "selective" or "adaptive".
        threads: threads at work.
        table_bits: base-2 logarithm of the number of steps of the table of logarithms.

    Raises:
        UsageError: a size is outside its limits, or the results are too small for the length.
    """

    length: int = option_field("length of the vectors", "L", 1, MOST_LENGTH)
    result_bits: int = option_field("size of the results in bits", "B", 4, 40)
    batch: int = option_field("number of messages in a batch", "N", 1, 1024, default=1)
    outputs: int = option_field("number of results of each message", "N", 1, 4096, default=16)
    scheme: str = option_field(
        "security: selective, or adaptive with twice as many numbers",
        "{selective,adaptive}",
        default="selective",
    )
    threads: int = option_field("number of threads", "N", 1, default=1)
    table_bits: int = option_field(
        "binary logarithm of the number of baby steps", "B", 4, 28, default=20
    )

    def __post_init__(self) -> None:
        check_job_options(self)
        # Checked before any of it is in memory.
        for name, rows in (("batch", self.batch), ("outputs", self.outputs)):
            most = MOST_ELEMENTS // (self.length + 2)
            check_range(f"Of length {self.length}, --{name}", rows, 1, most)
        if self.free_bits < 2:
            raise UsageError(
                f"Results of {self.result_bits} bits hold no vectors of length {self.length}. "
                "Received: both. Take more bits or a shorter vector.",
                code="result-bits-too-few",
                received=self.result_bits,
            )

    @property
    def free_bits(self) -> int:
        """Bits that remain for a value and a weight together."""
        return self.result_bits - 1 - (self.length - 1).bit_length()

    @property
    def input_bits(self) -> int:
        """Bits of a message's values, which are 0 or more."""
        return min((self.free_bits + 1) // 2, 16)

    @property
    def weight_most(self) -> int:
        """The largest weight."""
        return (1 << min(self.free_bits // 2, 16)) - 1

    @property
    def bound(self) -> int:
        """Largest magnitude of results."""
        return 1 << (self.result_bits - 1)
