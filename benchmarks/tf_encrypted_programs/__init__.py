"""Tests and example programs of a checkout of tf-encrypted, run on tfe_bench.tf_encrypted."""
