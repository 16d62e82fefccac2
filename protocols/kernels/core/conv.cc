#include "protocols/kernels/core/conv.h"

#include <algorithm>
#include <memory>

#include "protocols/kernels/core/patches.h"
#include "protocols/kernels/core/per_isa.h"

namespace tfe_bench {
namespace {

constexpr int64_t kMostRows = 512;  // of a tile: its results stay in the L2 cache
constexpr int64_t kFewestRows = 128;  // of a tile: Gemm packs the kernel again for each
constexpr int64_t kTiles = 16;  // to aim at, for up to 8 threads
constexpr int64_t kMacsPerCycle = 8;  // rough, for the cost estimate only

struct Operands {
  int pairs;
  const uint64_t* const* x;
  const uint64_t* const* w;
  uint64_t* y;
  const WordSource* source = nullptr;  // of w, if w is null
};

// y (+)= a times rows [row, row + depth) of the kernels of pair p; y starts at `pixel`.
void MultiplyByKernel(const ConvShape& s, const Operands& o, int p, int64_t row, int64_t depth,
                      const uint64_t* a, int64_t pixel, int64_t rows, bool accumulate,
                      const ParallelFor& parallel) {
  uint64_t* y = o.y + pixel * s.filters;
  if (o.w != nullptr) {
    return Gemm(s.bits, rows, s.filters, depth, a, depth, o.w[p] + row * s.filters, s.filters, y,
                s.filters, accumulate, parallel);
  }
  const auto part = [&](int64_t first, int64_t count, uint64_t* out) {
    (*o.source)(row * s.filters + first, count, out);
  };
  Gemm(s.bits, rows, s.filters, depth, a, depth, part, y, s.filters, accumulate, parallel);
}

// Pixels [begin, end), `taps` kernel elements at a time.
void ConvolveTile(const ConvShape& s, const Operands& o, int64_t begin, int64_t end, int64_t taps,
                  uint64_t* patches, const ParallelFor& parallel) {
  const int64_t all_taps = s.kernel_h * s.kernel_w;
  const int64_t rows = end - begin;
  constexpr int64_t kRowsTogether = 16;
  for (int p = 0; p < o.pairs; ++p) {
    for (int64_t tap = 0; tap < all_taps; tap += taps) {
      const int64_t end_tap = std::min(tap + taps, all_taps);
      const int64_t depth = (end_tap - tap) * s.channels;
      parallel(CeilDiv(rows, kRowsTogether), kRowsTogether * depth / 2 + 1,
               [&](int64_t from, int64_t to) {
                 LayOut(s, o.x[p], begin + from * kRowsTogether,
                        std::min(begin + to * kRowsTogether, end), tap, end_tap,
                        patches + from * kRowsTogether * depth);
               });
      MultiplyByKernel(s, o, p, tap * s.channels, depth, patches, begin, rows, p > 0 || tap > 0,
                       parallel);
    }
  }
}

bool IsMatrixProduct(const ConvShape& s) {
  return s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 &&
         s.pad_top == 0 && s.pad_left == 0 && s.out_h == s.h && s.out_w == s.w;
}

// All of w from its source, in pieces that stay in the first-level cache.
std::unique_ptr<uint64_t[]> StoreKernel(const ConvShape& s, const WordSource& source,
                                        const ParallelFor& parallel) {
  constexpr int64_t kTogether = 512;
  const int64_t words = s.kernel_h * s.kernel_w * s.channels * s.filters;
  std::unique_ptr<uint64_t[]> w(new uint64_t[static_cast<size_t>(words)]);
  parallel(CeilDiv(words, kTogether), 2 * kTogether, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kTogether;
    source(first, std::min(end * kTogether, words) - first, w.get() + first);
  });
  return w;
}

void Convolve(const ConvShape& s, const Operands& o, const ParallelFor& parallel) {
  const int64_t pixels = s.images * s.out_h * s.out_w;
  const int64_t taps = s.kernel_h * s.kernel_w;
  if (pixels == 0 || s.filters == 0) return;
  if (taps == 0 || s.channels == 0) {
    std::fill_n(o.y, pixels * s.filters, 0);
    return;
  }
  if (IsMatrixProduct(s)) {
    for (int p = 0; p < o.pairs; ++p) {
      MultiplyByKernel(s, o, p, 0, s.channels, o.x[p], 0, pixels, p > 0, parallel);
    }
    return;
  }
  // With enough pixels the tiles are shared out; with fewer, the rows and columns of each.
  const bool by_tiles = pixels >= kTiles * kFewestRows;
  const int64_t wanted =
      by_tiles ? std::clamp(CeilDiv(CeilDiv(pixels, kTiles), 8) * 8, kFewestRows, kMostRows)
               : std::min(pixels, kMostRows);
  // One kernel element of all channels is the least depth; beyond 2^17 channels a tile is a pixel
  // with a buffer of its own size.
  const int64_t depth = taps * s.channels;
  const int64_t full = kPatchWords / depth;  // rows of whole patches that the buffer holds
  const int64_t rows = std::clamp<int64_t>(full >= kFewestRows ? std::min(full, wanted) : wanted,
                                           1, std::max<int64_t>(1, kPatchWords / s.channels));
  const int64_t together = std::clamp<int64_t>(kPatchWords / (rows * s.channels), 1, taps);
  const int64_t tiles = CeilDiv(pixels, rows);
  if (o.w == nullptr && tiles > 1) {  // else each tile would compute the kernel
    const std::unique_ptr<uint64_t[]> stored = StoreKernel(s, *o.source, parallel);
    const uint64_t* const w = stored.get();
    return Convolve(s, {o.pairs, o.x, &w, o.y}, parallel);
  }
  const auto run = [&](int64_t begin, int64_t end, const ParallelFor& inner) {
    const Scratch patches(Scratch::kPatches, rows * together * s.channels);
    for (int64_t tile = begin; tile < end; ++tile) {
      ConvolveTile(s, o, tile * rows, std::min((tile + 1) * rows, pixels), together,
                   patches.data(), inner);
    }
  };
  if (by_tiles) {
    parallel(tiles, o.pairs * rows * depth * s.filters / kMacsPerCycle + rows * depth,
             [&](int64_t begin, int64_t end) { run(begin, end, Serial); });
  } else {
    run(0, tiles, parallel);
  }
}

}  // namespace

void Conv2D(const ConvShape& s, int pairs, const uint64_t* const* x, const uint64_t* const* w,
            uint64_t* y, const ParallelFor& parallel) {
  Convolve(s, {pairs, x, w, y}, parallel);
}

void Conv2DFromSource(const ConvShape& s, const uint64_t* x, const WordSource& w, uint64_t* y,
                      const ParallelFor& parallel) {
  Convolve(s, {1, &x, nullptr, y, &w}, parallel);
}

namespace {

// f(x's word, w's first word) for each kernel element that one channel of an output pixel meets.
template <typename F>
TFE_BENCH_INLINE inline void MeetingTaps(const ConvShape& s, const Operands& o, int64_t line,
                                         int64_t column, int64_t channel, const F& f) {
  const int64_t image = line / s.out_h, row = line % s.out_h;
  for (int p = 0; p < o.pairs; ++p) {
    for (int64_t i = 0; i < s.kernel_h; ++i) {
      const int64_t y = row * s.stride_h + i * s.dilation_h - s.pad_top;
      if (y < 0 || y >= s.h) continue;
      for (int64_t j = 0; j < s.kernel_w; ++j) {
        const int64_t x = column * s.stride_w + j * s.dilation_w - s.pad_left;
        if (x < 0 || x >= s.w) continue;
        f(o.x[p] + ((image * s.h + y) * s.w + x) * s.channels + channel,
          o.w[p] + ((i * s.kernel_w + j) * s.channels + channel) * s.filters);
      }
    }
  }
}

// kChannels channels of one output pixel, filters = 1: their sums stay in registers.
template <int64_t kChannels>
TFE_BENCH_INLINE inline void DepthwisePixel(const ConvShape& s, const Operands& o, int64_t line,
                                            int64_t column, int64_t channel) {
  uint64_t sum[kChannels] = {};
  MeetingTaps(s, o, line, column, channel, [&](const uint64_t* a, const uint64_t* b)
                                               TFE_BENCH_INLINE {
    for (int64_t c = 0; c < kChannels; ++c) sum[c] += a[c] * b[c];
  });
  uint64_t* out = o.y + (line * s.out_w + column) * s.channels + channel;
  for (int64_t c = 0; c < kChannels; ++c) out[c] = sum[c];
}

// As above for any number of filters: one channel's outputs at a time.
TFE_BENCH_INLINE inline void DepthwiseFilters(const ConvShape& s, const Operands& o, int64_t line,
                                              int64_t column, int64_t channel) {
  uint64_t* out = o.y + ((line * s.out_w + column) * s.channels + channel) * s.filters;
  for (int64_t q = 0; q < s.filters; ++q) out[q] = 0;
  MeetingTaps(s, o, line, column, channel, [&](const uint64_t* a, const uint64_t* b)
                                               TFE_BENCH_INLINE {
    for (int64_t q = 0; q < s.filters; ++q) out[q] += *a * b[q];
  });
}

TFE_BENCH_INLINE inline void DepthwiseLines(const ConvShape& s, const Operands& o, int64_t begin,
                                            int64_t end) {
  for (int64_t line = begin; line < end; ++line) {
    for (int64_t column = 0; column < s.out_w; ++column) {
      int64_t c = 0;
      if (s.filters == 1) {
        for (; c + 32 <= s.channels; c += 32) DepthwisePixel<32>(s, o, line, column, c);
        for (; c + 8 <= s.channels; c += 8) DepthwisePixel<8>(s, o, line, column, c);
      }
      for (; c < s.channels; ++c) DepthwiseFilters(s, o, line, column, c);
    }
  }
}

TFE_BENCH_PER_ISA(DepthwiseLines,
                  (const ConvShape& s, const Operands& o, int64_t begin, int64_t end),
                  (s, o, begin, end))

}  // namespace

void DepthwiseConv2D(const ConvShape& s, int pairs, const uint64_t* const* x,
                     const uint64_t* const* w, uint64_t* y, const ParallelFor& parallel) {
  if (s.images * s.out_h * s.out_w * s.channels * s.filters == 0) return;
  const Operands operands = {pairs, x, w, y};
  const auto lines = ChooseDepthwiseLines();
  const int64_t macs =
      pairs * s.out_w * s.kernel_h * s.kernel_w * s.channels * s.filters + s.out_w * s.channels;
  parallel(s.images * s.out_h, macs / 2 + 1,
           [&](int64_t begin, int64_t end) { lines(s, operands, begin, end); });
}

}  // namespace tfe_bench
