#include "protocols/kernels/core/lut.h"
#include "protocols/kernels/core/polynomial_lanes.h"

#include "protocols/kernels/core/lut_kernels.inl"
#include "protocols/kernels/core/polynomial_lanes.inl"

namespace tfe_bench {

const LutFunctions* LutAvx512() { return &kLutFunctions; }
const LaneFunctions* PolynomialAvx512() { return &kLaneFunctions; }

}  // namespace tfe_bench
