#include "protocols/kernels/core/lut.h"

#include "protocols/kernels/core/lut_kernels.inl"

const LutFunctions* LutAvx2() { return &kFunctions; }

}  // namespace tfe_bench
