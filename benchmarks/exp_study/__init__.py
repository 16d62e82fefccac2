"""The study of the private exponential: four forms, two rings, six dimensions.

After SecretFlow's exp benchmark (published/): bytes, rounds, memory, effective range, error and
time, for n from 10 to 10^7 and four network levels, compared with the published figures.
"""
