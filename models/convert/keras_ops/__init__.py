"""Conversion of operations on Keras tensors (x + y, keras.ops.*) to layers of the same kinds.

A reader is a function of a module of this package, registered under the names of the classes behind
keras.ops (`register_reader`). Importing the package registers all readers.
"""

from tfe_bench import discovery
from tfe_bench.models.layers.base import calls

for _module in discovery.import_package_modules(__name__, __path__):
    pass

is_supported_keras_op = calls.is_supported_keras_op
convert_keras_operation = calls.convert_keras_operation
