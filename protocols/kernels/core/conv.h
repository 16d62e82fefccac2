// Convolutions over the ring Z_2^64, images [n, h, w, channels].
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_CONV_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_CONV_H_

#include <cstdint>

#include "protocols/kernels/core/gemm.h"

namespace tfe_bench {

// Sizes of one convolution; kernel element (i, j) meets image row
// out_row * stride_h + i * dilation_h - pad_top, and columns in the same way; outside the image are zeros.
struct ConvShape {
  int64_t images, h, w, channels;
  int64_t kernel_h, kernel_w;
  int64_t filters;  // output channels; per channel in a depthwise convolution
  int64_t out_h, out_w;
  int64_t stride_h, stride_w, dilation_h, dilation_w;
  int64_t pad_top, pad_left;
  int bits = 64;  // low bits of a convolution that are right, as Gemm; others give all 64
};

// y = sum over p < pairs of conv(x[p], w[p]) mod 2^shape.bits; any size, zeros included.
// x[p] [images, h, w, channels], w[p] [kernel_h, kernel_w, channels, filters], y [images, out_h,
// out_w, filters], all dense. Patches are laid out as rows of a matrix a tile at a time, 1 MiB per
// thread; a 1 x 1 kernel with stride 1 multiplies the image where it lies.
// Time and values: as Gemm.
void Conv2D(const ConvShape& shape, int pairs, const uint64_t* const* x, const uint64_t* const* w,
            uint64_t* y, const ParallelFor& parallel);

// As above for one pair whose w a source computes, where it is multiplied. Each word is computed once.
void Conv2DFromSource(const ConvShape& shape, const uint64_t* x, const WordSource& w, uint64_t* y,
                      const ParallelFor& parallel);

// As Conv2D for each channel separately: w[p] [kernel_h, kernel_w, channels, filters], y [images,
// out_h, out_w, channels * filters], channel c giving the outputs from c * filters on.
void DepthwiseConv2D(const ConvShape& shape, int pairs, const uint64_t* const* x,
                     const uint64_t* const* w, uint64_t* y, const ParallelFor& parallel);

// ---- gradients of a convolution by its images and kernels; bilinear like the convolution

// dx [images, h, w, channels] = sum over p of the transposed convolution of d[p] [images, out_h,
// out_w, filters] with w[p] [kernel_h, kernel_w, channels, filters] mod 2^64: the contribution of each
// output pixel to its patch, d . w^T as one product per tile, is added up in the image.  So the
// number of multiplications is that of the convolution, whatever padding or strides.
// Time and values: as Gemm.
void Conv2DInputGradient(const ConvShape& shape, int pairs, const uint64_t* const* d,
                         const uint64_t* const* w, uint64_t* dx, const ParallelFor& parallel);

// dw [kernel_h, kernel_w, channels, filters] = sum over p of patches(x[p])^T . d[p]: the patches
// are laid out a tile at a time, as in the convolution.
void Conv2DKernelGradient(const ConvShape& shape, int pairs, const uint64_t* const* x,
                          const uint64_t* const* d, uint64_t* dw, const ParallelFor& parallel);

// As above for each channel separately: d [images, out_h, out_w, channels * filters].
void DepthwiseConv2DInputGradient(const ConvShape& shape, int pairs, const uint64_t* const* d,
                                  const uint64_t* const* w, uint64_t* dx,
                                  const ParallelFor& parallel);
void DepthwiseConv2DKernelGradient(const ConvShape& shape, int pairs, const uint64_t* const* x,
                                   const uint64_t* const* d, uint64_t* dw,
                                   const ParallelFor& parallel);

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_CONV_H_
