"""Parsing of a job's header from a client: the type and size of every field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfe_bench.cluster import wire
from tfe_bench.cluster.jobs import DECLARED, OPENS
from tfe_bench.cluster.schema import (
    Header,
    Mismatch,
    Rule,
    choice_field,
    declare_field,
    flag_rule,
    header_rule,
    integer_field,
    integer_rule,
    label_rule,
    list_field,
    list_rule,
    mapping_rule,
    optional_rule,
)
from tfe_bench.errors import ProtocolError, TfeBenchError

_MOST_NAME = 200
_MOST_RANK = 32
_MOST_NUMBER = 1 << 62
_MOST_BITS = 127
# More values by name than a message has room for.
_MOST_VALUES = 1 << 20
_CODE = "malformed-submission"
_NAME = label_rule(_MOST_NAME, 1)
_COUNT = integer_rule(0, _MOST_NUMBER)


@dataclass(frozen=True)
class _SubmittedPart(
    Header, subject="A job's submission", error=ProtocolError, code=_CODE, is_only_code=True
):
    """Base of the parts of a submission; their errors quote no value, which may be a seed."""

    @classmethod
    def _mismatch_error(
        cls, name: str, value: object, mismatch: Mismatch, subject: str, error: type[TfeBenchError]
    ) -> TfeBenchError:
        return error(
            f'{subject} is malformed: "{name}" is {mismatch.expected}.',
            code=_CODE,
            operation=name,
            expected=mismatch.expected,
        )


@dataclass(frozen=True)
class SubmittedInput(_SubmittedPart):
    """An input's facts, and its seeds for one worker."""

    name: str = declare_field(_NAME)
    shape: tuple[int, ...] = list_field(_COUNT, 0, _MOST_RANK)
    fractional_bits: int = integer_field(0, _MOST_BITS)
    limbs: int = integer_field(1, 2)
    seeds: Mapping[str, str] = declare_field(mapping_rule(label_rule(_MOST_VALUES), _MOST_VALUES))
    late: bool | None = declare_field(optional_rule(flag_rule), None)


@dataclass(frozen=True)
class JobSubmission(_SubmittedPart):
    """A job's header; the job and its program check the values of the parameters."""

    job: str = declare_field(_NAME)
    program: str = declare_field(_NAME)
    parameters: Mapping[str, Any] = declare_field(
        mapping_rule(Rule(lambda value: value), _MOST_VALUES)
    )
    inputs: tuple[SubmittedInput, ...] = list_field(header_rule(SubmittedInput), 0, _MOST_VALUES)
    opens: str = choice_field(OPENS, default=DECLARED)
    shaping: tuple[int, int] | None = declare_field(optional_rule(list_rule(_COUNT, 2, 2)), None)
    warm_up_bytes: int | None = declare_field(optional_rule(_COUNT), None)


def parse_job_submission(blob: bytes) -> dict[str, Any]:
    """Parse a job's header from a client's first message.

    The job and its program check the values of the fields.

    Raises:
        ProtocolError: it is malformed; names the first invalid field.
    """
    header = wire.JobStreamReader(iter([blob])).next_event()
    if header is None or header["event"] != "submit":
        raise ProtocolError(
            "A job starts with its submission. Received: another message.",
            code="submission-missing",
        )
    # (`agreement` compares the other fields: a client of another version may have more of them)
    known = JobSubmission.field_names()
    submission = JobSubmission.from_header({k: v for k, v in header.items() if k in known})
    if len({each.name for each in submission.inputs}) != len(submission.inputs):
        raise ProtocolError(
            "A job's submission is malformed: two inputs have one name.",
            code=_CODE,
            operation="inputs",
            expected="a list of inputs of different names",
        )
    return header
