"""Estimators of scikit-learn that three workers train."""
