// What a convolution over Z_2^64 (core/conv.h) gives back: gradients of its images and kernels.
//
// Both are bilinear, as the convolution itself, and sums over pairs of operands in one pass.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_CONV_GRADIENT_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_CONV_GRADIENT_H_

#include <cstdint>

#include "protocols/kernels/core/conv.h"

namespace tfe_bench {

// dx [images, h, w, channels] = sum over p of the transposed convolution of d[p] [images, out_h,
// out_w, filters] with w[p] [kernel_h, kernel_w, channels, filters] mod 2^64: what each output pixel
// sends back along its patch, d . w^T as one product per tile, is added up in the image.  So the
// number of multiplications is that of the convolution, whatever padding or strides.
// The running time does not depend on the values.
void Conv2DInputGradient(const ConvShape& shape, int pairs, const uint64_t* const* d,
                         const uint64_t* const* w, uint64_t* dx, const ParallelFor& parallel);

// dw [kernel_h, kernel_w, channels, filters] = sum over p of patches(x[p])^T . d[p]: the patches
// are laid out a tile at a time, as in the convolution.
void Conv2DKernelGradient(const ConvShape& shape, int pairs, const uint64_t* const* x,
                          const uint64_t* const* d, uint64_t* dw, const ParallelFor& parallel);

// As above with each channel apart: d [images, out_h, out_w, channels * filters].
void DepthwiseConv2DInputGradient(const ConvShape& shape, int pairs, const uint64_t* const* d,
                                  const uint64_t* const* w, uint64_t* dx,
                                  const ParallelFor& parallel);
void DepthwiseConv2DKernelGradient(const ConvShape& shape, int pairs, const uint64_t* const* x,
                                   const uint64_t* const* d, uint64_t* dw,
                                   const ParallelFor& parallel);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_CONV_GRADIENT_H_
