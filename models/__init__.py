"""Private models: conversion of Keras models, layers, training (see the CHANGELOG for what exists)."""
