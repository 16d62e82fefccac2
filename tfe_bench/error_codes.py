"""The codes of errors: a stable name for each condition, to search for and to test.

`TfeBenchError.code` holds one of these.  docs/exit_codes.md lists them
(`python -m docs.error_codes --write` renews the list).
"""

CODES = {
    "budget-exhausted": "A privacy budget has too little left for this release.",
    "certificate-invalid": "A certificate or key is missing, unreadable or expired.",
    "column-not-found": "A table or file has no column of this name.",
    "conflicting-options": "Two options exclude each other.",
    "duplicate-name": "A name is used twice.",
    "empty-input": "An array, list or file has no elements.",
    "file-not-found": "A file or folder does not exist.",
    "file-not-readable": "A file exists but cannot be read.",
    "file-not-writable": "A file or folder cannot be written.",
    "insecure-permissions": "Others than the owner can read a file with secrets.",
    "invalid-json": "A text is not the expected JSON.",
    "invalid-name": "A name has characters or a length that is not allowed.",
    "library-not-installed": "An optional library is not installed.",
    "message-too-long": "A message exceeds the size that its receiver allows.",
    "missing-argument": "A required argument or option is missing.",
    "missing-right": "A policy does not grant a right that this use of data requires.",
    "not-a-number": "A value is not a number.",
    "not-finite": "A value is NaN or infinite.",
    "number-out-of-range": "A number lies outside the accepted interval.",
    "rank-mismatch": "An array has another number of axes than expected.",
    "shape-mismatch": "An array has another shape than expected, or shapes do not fit each other.",
    "table-not-found": "The workers store no table of this name for this client.",
    "too-large": "A size, count or cost exceeds a limit.",
    "unknown-name": "A name is not one of the known ones.",
    "unknown-option": "A key or option is not known.",
    "unsupported-argument": "An argument of a library's call is not supported here.",
    "unsupported-layer": "A Keras layer is not supported.",
    "unsupported-operation": "An operation is not supported.",
    "unsupported-type": "A value or column has a type that is not supported.",
    "wrong-type": "A value has another Python or JSON type than expected.",
}
# The codes of error classes: raised where no more specific one fits.
DEFAULT_CODES = {
    "cluster-failed": "Workers cannot be reached, cannot be started, or disagree.",
    "error": "An error without a more specific code.",
    "insecure-request": "A request would weaken the security promise.",
    "invalid-data": "A data file is malformed.",
    "invalid-file": "A file is unusable.",
    "invalid-usage": "The command line or an argument is invalid.",
    "job-cancelled": "The client cancelled the job, or its connection ended.",
    "not-permitted": "The operator of a worker does not allow the request.",
    "ops-missing": "The compiled operations are missing or cannot run here.",
    "peer-lost": "A worker or client was lost while a job was running.",
    "profile-not-met": "The measured links do not meet the network profile.",
    "protocol-violation": "Messages or graphs of the workers disagree.",
    "queue-full": "The worker has as many jobs as its operator allows.",
    "value-out-of-range": "A value cannot be represented in the fixed-point range.",
    "version-mismatch": "Two sides run different versions, programs or cluster files.",
}
