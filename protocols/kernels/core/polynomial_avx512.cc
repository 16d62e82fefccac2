#include "protocols/kernels/core/polynomial_lanes.h"

#include "protocols/kernels/core/polynomial_lanes.inl"

const LaneFunctions* PolynomialAvx512() { return &kFunctions; }

}  // namespace tfe_bench
