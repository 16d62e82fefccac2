"""Conversion of Keras models to private ones."""

from __future__ import annotations

from tfe_bench.tf_encrypted.convert.convert import Converter

__all__ = ["Converter"]
