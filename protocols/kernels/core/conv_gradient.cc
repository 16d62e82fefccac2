#include "protocols/kernels/core/conv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "protocols/kernels/core/memory.h"
#include "protocols/kernels/core/patches.h"
#include "protocols/kernels/core/per_isa.h"

namespace tfe_bench {
namespace {

constexpr int64_t kMostRows = 256;    // of a tile
constexpr int64_t kDepthRows = 128;   // pixels summed up at a time: the depth of a block of Gemm
constexpr int64_t kParts = 8;         // of the pixels, each with sums of its own
constexpr int64_t kMacsPerCycle = 8;  // rough, for the cost estimate only

// Columns [first, first + count) of rows [0, rows) of a matrix, as rows.
void Transpose(int64_t rows, int64_t count, const uint64_t* from, int64_t from_row, uint64_t* to,
               int64_t to_row) {
  constexpr int64_t kBlock = 8;
  for (int64_t i = 0; i < rows; i += kBlock) {
    const int64_t end = std::min(i + kBlock, rows);
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t r = i; r < end; ++r) to[j * to_row + r] = from[r * from_row + j];
    }
  }
}

// Adds the contribution of output row `row`, `sent` [out_w, taps * channels], to its image.
void AddRow(const ConvShape& s, int64_t row, const uint64_t* sent, int64_t ld, uint64_t* image) {
  const int64_t together = s.dilation_w == 1 ? s.kernel_w : int64_t{1};
  for (int64_t i = 0; i < s.kernel_h; ++i) {
    const int64_t y = row * s.stride_h + i * s.dilation_h - s.pad_top;
    if (y < 0 || y >= s.h) continue;
    uint64_t* const line = image + y * s.w * s.channels;
    for (int64_t column = 0; column < s.out_w; ++column) {
      const uint64_t* from = sent + column * ld + i * s.kernel_w * s.channels;
      for (int64_t j = 0; j < s.kernel_w; j += together) {
        const int64_t x = column * s.stride_w + j * s.dilation_w - s.pad_left;
        const int64_t begin = std::clamp<int64_t>(-x, 0, together) * s.channels;
        const int64_t end = std::clamp<int64_t>(s.w - x, 0, together) * s.channels;
        uint64_t* const to = line + x * s.channels;
        const uint64_t* const back = from + j * s.channels;
        for (int64_t k = begin; k < end; ++k) to[k] += back[k];
      }
    }
  }
}

// Images [begin, end), whole rows of output pixels at a time.
void SendBack(const ConvShape& s, int pairs, const uint64_t* const* d, const uint64_t* transposed,
              uint64_t* dx, int64_t begin, int64_t end, const ParallelFor& parallel) {
  const int64_t depth = s.kernel_h * s.kernel_w * s.channels, filters = pairs * s.filters;
  const int64_t row = CheckedWords(s.out_w, depth);
  const int64_t lines =
      std::max<int64_t>(1, std::min(kPatchWords / row, kMostRows / s.out_w));
  const Scratch scratch(Scratch::kPatches, lines * row);
  uint64_t* const sent = scratch.data();
  std::vector<uint64_t> joined(pairs > 1 ? static_cast<size_t>(lines * s.out_w * filters) : 0);
  std::fill_n(dx + begin * s.h * s.w * s.channels, (end - begin) * s.h * s.w * s.channels, 0);
  for (int64_t line = begin * s.out_h; line < end * s.out_h; line += lines) {
    const int64_t count = std::min(lines, end * s.out_h - line);
    const int64_t pixels = count * s.out_w, first = line * s.out_w;
    const uint64_t* a = d[0] + first * s.filters;
    if (pairs > 1) {
      for (int p = 0; p < pairs; ++p) {
        const uint64_t* from = d[p] + first * s.filters;
        for (int64_t i = 0; i < pixels; ++i) {
          std::copy_n(from + i * s.filters, s.filters, &joined[i * filters + p * s.filters]);
        }
      }
      a = joined.data();
    }
    Gemm(64, pixels, depth, filters, a, filters, transposed, depth, sent, depth, false, parallel);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t image = (line + i) / s.out_h;
      AddRow(s, (line + i) % s.out_h, sent + i * s.out_w * depth, depth,
             dx + image * s.h * s.w * s.channels);
    }
  }
}

bool Empty(const ConvShape& s) {
  // (their product may be too large for 64 bits)
  return s.images == 0 || s.out_h == 0 || s.out_w == 0 || s.kernel_h == 0 || s.kernel_w == 0 ||
         s.channels == 0 || s.filters == 0;
}

}  // namespace

void Conv2DInputGradient(const ConvShape& s, int pairs, const uint64_t* const* d,
                         const uint64_t* const* w, uint64_t* dx, const ParallelFor& parallel) {
  const int64_t depth = s.kernel_h * s.kernel_w * s.channels;
  if (Empty(s)) {
    std::fill_n(dx, s.images * s.h * s.w * s.channels, 0);
    return;
  }
  std::vector<uint64_t> transposed(static_cast<size_t>(pairs * s.filters * depth));
  for (int p = 0; p < pairs; ++p) {
    Transpose(depth, s.filters, w[p], s.filters, &transposed[p * s.filters * depth], depth);
  }
  if (s.images == 1) return SendBack(s, pairs, d, transposed.data(), dx, 0, 1, parallel);
  const int64_t macs = pairs * s.out_h * s.out_w * depth * s.filters;
  parallel(s.images, macs / kMacsPerCycle + s.out_h * s.out_w * depth,
           [&](int64_t begin, int64_t end) {
             SendBack(s, pairs, d, transposed.data(), dx, begin, end, Serial);
           });
}

void Conv2DKernelGradient(const ConvShape& s, int pairs, const uint64_t* const* x,
                          const uint64_t* const* d, uint64_t* dw, const ParallelFor& parallel) {
  const int64_t taps = s.kernel_h * s.kernel_w, depth = taps * s.channels;
  if (Empty(s)) {
    std::fill_n(dw, depth * s.filters, 0);
    return;
  }
  const int64_t pixels = s.images * s.out_h * s.out_w;
  // One kernel element of all channels is the least that is laid out at a time.
  const int64_t rows =
      std::clamp<int64_t>(kPatchWords / s.channels, 1, std::min(kDepthRows, pixels));
  const int64_t together = std::clamp<int64_t>(kPatchWords / (rows * s.channels), 1, taps);
  const int64_t laid_out = rows * together * s.channels;
  const int64_t tiles = CeilDiv(pixels, rows), parts = std::min(kParts, tiles);
  const int64_t words = s.filters * depth;
  // d^T . patches, which has long rows: the result is its transpose.
  std::vector<uint64_t> sums(static_cast<size_t>(parts * words));
  parallel(parts, CeilDiv(tiles, parts) * rows * pairs * (words / kMacsPerCycle + depth),
           [&](int64_t begin, int64_t end) {
             const Scratch scratch(Scratch::kPatches, laid_out);
             uint64_t* const patches = scratch.data();
             std::vector<uint64_t> across(static_cast<size_t>(s.filters * rows));
             for (int64_t part = begin; part < end; ++part) {
               uint64_t* const sum = &sums[part * words];
               for (int64_t tile = part * tiles / parts; tile < (part + 1) * tiles / parts;
                    ++tile) {
                 const int64_t from = tile * rows, to = std::min(from + rows, pixels);
                 for (int p = 0; p < pairs; ++p) {
                   Transpose(to - from, s.filters, d[p] + from * s.filters, s.filters,
                             across.data(), rows);
                   for (int64_t tap = 0; tap < taps; tap += together) {
                     const int64_t end_tap = std::min(tap + together, taps);
                     const int64_t width = (end_tap - tap) * s.channels;
                     LayOut(s, x[p], from, to, tap, end_tap, patches);
                     Gemm(64, s.filters, width, to - from, across.data(), rows, patches, width,
                          sum + tap * s.channels, depth, true, Serial);
                   }
                 }
               }
             }
           });
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t i = 0; i < words; ++i) sums[i] += sums[part * words + i];
  }
  Transpose(s.filters, depth, sums.data(), depth, dw, s.filters);
}

namespace {

// f(output row's first word, image row's first word, kernel row) for the rows that meet.
template <typename F>
TFE_BENCH_INLINE inline void MeetingRows(const ConvShape& s, int64_t image,
                                                       const F& f) {
  for (int64_t row = 0; row < s.out_h; ++row) {
    for (int64_t i = 0; i < s.kernel_h; ++i) {
      const int64_t y = row * s.stride_h + i * s.dilation_h - s.pad_top;
      if (y < 0 || y >= s.h) continue;
      f((image * s.out_h + row) * s.out_w, (image * s.h + y) * s.w, i);
    }
  }
}

TFE_BENCH_INLINE inline void DepthwiseBack(const ConvShape& s, int pairs,
                                                         const uint64_t* const* d,
                                                         const uint64_t* const* w, uint64_t* dx,
                                                         int64_t image) {
  const int64_t c_count = s.channels, q_count = s.filters;
  std::fill_n(dx + image * s.h * s.w * c_count, s.h * s.w * c_count, 0);
  for (int p = 0; p < pairs; ++p) {
    MeetingRows(s, image, [&](int64_t out, int64_t in, int64_t i)
                              TFE_BENCH_INLINE {
      for (int64_t column = 0; column < s.out_w; ++column) {
        for (int64_t j = 0; j < s.kernel_w; ++j) {
          const int64_t x = column * s.stride_w + j * s.dilation_w - s.pad_left;
          if (x < 0 || x >= s.w) continue;
          const uint64_t* a = d[p] + (out + column) * c_count * q_count;
          const uint64_t* b = w[p] + (i * s.kernel_w + j) * c_count * q_count;
          uint64_t* to = dx + (in + x) * c_count;
          if (q_count == 1) {
            for (int64_t c = 0; c < c_count; ++c) to[c] += a[c] * b[c];
          } else {
            for (int64_t c = 0; c < c_count; ++c) {
              for (int64_t q = 0; q < q_count; ++q) to[c] += a[c * q_count + q] * b[c * q_count + q];
            }
          }
        }
      }
    });
  }
}

TFE_BENCH_INLINE inline void DepthwiseKernel(const ConvShape& s, int pairs,
                                                           const uint64_t* const* x,
                                                           const uint64_t* const* d, uint64_t* sum,
                                                           int64_t image) {
  const int64_t c_count = s.channels, q_count = s.filters;
  for (int p = 0; p < pairs; ++p) {
    MeetingRows(s, image, [&](int64_t out, int64_t in, int64_t i)
                              TFE_BENCH_INLINE {
      for (int64_t j = 0; j < s.kernel_w; ++j) {
        uint64_t* to = sum + (i * s.kernel_w + j) * c_count * q_count;
        for (int64_t column = 0; column < s.out_w; ++column) {
          const int64_t at = column * s.stride_w + j * s.dilation_w - s.pad_left;
          if (at < 0 || at >= s.w) continue;
          const uint64_t* a = x[p] + (in + at) * c_count;
          const uint64_t* b = d[p] + (out + column) * c_count * q_count;
          if (q_count == 1) {
            for (int64_t c = 0; c < c_count; ++c) to[c] += a[c] * b[c];
          } else {
            for (int64_t c = 0; c < c_count; ++c) {
              for (int64_t q = 0; q < q_count; ++q) to[c * q_count + q] += a[c] * b[c * q_count + q];
            }
          }
        }
      }
    });
  }
}

TFE_BENCH_PER_ISA(DepthwiseBack,
                  (const ConvShape& s, int pairs, const uint64_t* const* a, const uint64_t* const* b,
                   uint64_t* to, int64_t image),
                  (s, pairs, a, b, to, image))
TFE_BENCH_PER_ISA(DepthwiseKernel,
                  (const ConvShape& s, int pairs, const uint64_t* const* a, const uint64_t* const* b,
                   uint64_t* to, int64_t image),
                  (s, pairs, a, b, to, image))

int64_t DepthwiseCost(const ConvShape& s, int pairs) {
  return pairs * s.out_h * s.out_w * s.kernel_h * s.kernel_w * s.channels * s.filters / 2 +
         s.h * s.w * s.channels + 1;
}

}  // namespace

void DepthwiseConv2DInputGradient(const ConvShape& s, int pairs, const uint64_t* const* d,
                                  const uint64_t* const* w, uint64_t* dx,
                                  const ParallelFor& parallel) {
  const auto back = ChooseDepthwiseBack();
  parallel(s.images, DepthwiseCost(s, pairs), [&](int64_t begin, int64_t end) {
    for (int64_t image = begin; image < end; ++image) back(s, pairs, d, w, dx, image);
  });
}

void DepthwiseConv2DKernelGradient(const ConvShape& s, int pairs, const uint64_t* const* x,
                                   const uint64_t* const* d, uint64_t* dw,
                                   const ParallelFor& parallel) {
  const int64_t words = s.kernel_h * s.kernel_w * s.channels * s.filters;
  std::fill_n(dw, words, 0);
  if (Empty(s)) return;
  const auto kernel = ChooseDepthwiseKernel();
  const int64_t parts = std::min(kParts, s.images);
  std::vector<uint64_t> sums(static_cast<size_t>(parts * words));
  parallel(parts, CeilDiv(s.images, parts) * DepthwiseCost(s, pairs),
           [&](int64_t begin, int64_t end) {
             for (int64_t part = begin; part < end; ++part) {
               for (int64_t image = part * s.images / parts;
                    image < (part + 1) * s.images / parts; ++image) {
                 kernel(s, pairs, x, d, &sums[part * words], image);
               }
             }
           });
  for (int64_t i = 0; i < parts * words; ++i) dw[i % words] += sums[i];
}

}  // namespace tfe_bench
