"""Transfer learning on the features of a whole network, on a local cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.models.tiny import BATCH, assert_close, plain_twin
from tfe_bench.clusters import LocalCluster
from tfe_bench.models.datasets import owners
from tfe_bench.models.datasets.readers import Rows
from tfe_bench.models.inference.private import convert
from tfe_bench.models.training.trainable import trainable

keras: Any = pytest.importorskip("keras")


@pytest.mark.slow
def test_a_head_is_trained_behind_a_resnet50(rng: np.random.Generator) -> None:
    """Pass 64 pictures of 32 pixels through it once; train a head on its features and predict."""
    keras.utils.set_random_seed(5)
    layers, pixels = keras.layers, (32, 32, 3)
    y = rng.integers(0, 2, 64)
    x = rng.normal(0, 0.6, (2, *pixels))[y] + rng.normal(0, 0.6, (64, *pixels))
    x = x.clip(-3, 3).astype(np.float32)
    backbone = keras.applications.ResNet50(weights=None, input_shape=pixels, classes=10)
    for layer in backbone.layers:
        layer.momentum = 0.0  # the statistics of one batch, as if it were trained
    backbone(x, training=True)
    pooled = keras.Model(backbone.inputs[0], backbone.get_layer("avg_pool").output)
    model = trainable(
        keras.Sequential([layers.Input((2048,)), layers.Dense(1, activation="sigmoid")])
    )
    model.compile(keras.optimizers.SGD(5e-4, momentum=0.9), "binary_crossentropy")
    with LocalCluster() as cluster:
        rows = Rows(x, y, "binary", 2, (), "test")
        features = convert(backbone, samples=x, margin=4).until("avg_pool")
        owners.provide(cluster, "pictures", rows, through=features)
        history = model.fit(cluster, rows_of=["pictures"], batch_size=BATCH, epochs=8)
        assert_close(history.model, plain_twin(model, pooled.predict(x, verbose=0), y, 16))
        whole = keras.Sequential([pooled, history.model])
        predictions = cluster.predict(convert(whole, samples=x, margin=4), x[:8])
    want = whole.predict(x, verbose=0)
    # untrained weights amplify rounding errors from layer to layer
    np.testing.assert_allclose(predictions, want[:8], atol=3e-2)
    assert ((want[:, 0] > 0.5) == y).mean() > 0.6
