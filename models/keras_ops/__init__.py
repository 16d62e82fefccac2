"""What operations on Keras' tensors (x + y, keras.ops.*) become: layers of the same kinds.

A reader is a function under the names of the classes behind keras.ops, found by being here
(models/from_keras.py loads them).
"""
