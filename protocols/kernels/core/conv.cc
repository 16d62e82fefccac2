#include "protocols/kernels/core/conv.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "protocols/kernels/core/cpu.h"

namespace tfe_bench {
namespace {

constexpr int64_t kScratchWords = int64_t{1} << 17;  // of patches: 1 MiB
constexpr int64_t kMostRows = 512;  // of a tile: its results stay in the L2 cache
constexpr int64_t kFewestRows = 128;  // of a tile: Gemm64 packs the kernel anew for each
constexpr int64_t kTiles = 16;  // to aim at, for up to 8 threads
constexpr int64_t kMacsPerCycle = 8;  // rough, for the cost estimate only

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

void Serial(int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& run) {
  run(0, total);
}

// Fresh pages cost as much as a small convolution: the thread keeps its buffer between calls. It
// is taken out while in use, because a thread that waits in ParallelFor may run another kernel.
class Patches {
 public:
  Patches() : words_(std::move(kept())) {
    if (!words_) words_.reset(new uint64_t[static_cast<size_t>(kScratchWords)]);
  }
  ~Patches() { kept() = std::move(words_); }
  Patches(const Patches&) = delete;
  Patches& operator=(const Patches&) = delete;

  uint64_t* data() const { return words_.get(); }

 private:
  static std::unique_ptr<uint64_t[]>& kept() {
    thread_local std::unique_ptr<uint64_t[]> words;
    return words;
  }
  std::unique_ptr<uint64_t[]> words_;
};

// First index i >= 0 with i * stride + offset >= bound, at most `most`.
int64_t FirstAtLeast(int64_t bound, int64_t stride, int64_t offset, int64_t most) {
  return std::clamp<int64_t>(bound <= offset ? 0 : CeilDiv(bound - offset, stride), 0, most);
}

// Output columns [inside, outside) are those whose `width` columns from column * stride + offset
// on lie in the image.
struct Inner {
  int64_t inside, outside;
  Inner(int64_t w, int64_t width, int64_t stride, int64_t offset, int64_t out_w)
      : inside(FirstAtLeast(0, stride, offset, out_w)),
        outside(std::max(inside, FirstAtLeast(w - width + 1, stride, offset, out_w))) {}
};

// `count` runs of `words` words, from and to equidistant places. kWords != 0 says how many.
template <int64_t kWords>
void CopyRuns(int64_t count, int64_t words, const uint64_t* from, int64_t from_step, uint64_t* to,
              int64_t to_step) {
  const size_t bytes = static_cast<size_t>(kWords == 0 ? words : kWords) * sizeof(uint64_t);
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, bytes);
}

void Copy(int64_t count, int64_t words, const uint64_t* from, int64_t from_step, uint64_t* to,
          int64_t to_step) {
  // The size of a small copy must be known to be cheap.
  switch (words) {
    case 1: return CopyRuns<1>(count, words, from, from_step, to, to_step);
    case 2: return CopyRuns<2>(count, words, from, from_step, to, to_step);
    case 3: return CopyRuns<3>(count, words, from, from_step, to, to_step);
    case 4: return CopyRuns<4>(count, words, from, from_step, to, to_step);
    case 5: return CopyRuns<5>(count, words, from, from_step, to, to_step);
    case 6: return CopyRuns<6>(count, words, from, from_step, to, to_step);
    case 7: return CopyRuns<7>(count, words, from, from_step, to, to_step);
    case 9: return CopyRuns<9>(count, words, from, from_step, to, to_step);
    case 21: return CopyRuns<21>(count, words, from, from_step, to, to_step);
    default: return CopyRuns<0>(count, words, from, from_step, to, to_step);
  }
}

void Zero(int64_t count, int64_t words, uint64_t* to, int64_t to_step) {
  for (int64_t i = 0; i < count; ++i) std::fill_n(to + i * to_step, words, 0);
}

// Columns [first, first + count) of output row `row` of an image: their patches' words that meet
// kernel elements [tap, end_tap), as rows of a matrix with `ld` words each.
void LayOutRow(const ConvShape& s, const uint64_t* image, int64_t row, int64_t first,
               int64_t count, int64_t tap, int64_t end_tap, uint64_t* out, int64_t ld) {
  while (tap < end_tap) {
    const int64_t i = tap / s.kernel_w, j = tap % s.kernel_w;
    // With dilation 1 the elements of a kernel row meet neighbours, which are one run.
    const int64_t together =
        s.dilation_w == 1 ? std::min(s.kernel_w - j, end_tap - tap) : int64_t{1};
    const int64_t words = together * s.channels;
    const int64_t y = row * s.stride_h + i * s.dilation_h - s.pad_top;
    const int64_t offset = j * s.dilation_w - s.pad_left;
    if (y < 0 || y >= s.h) {
      Zero(count, words, out, ld);
    } else {
      const uint64_t* line = image + y * s.w * s.channels;
      const Inner inner(s.w, together, s.stride_w, offset, s.out_w);
      const int64_t inside = std::clamp(inner.inside, first, first + count);
      const int64_t outside = std::clamp(inner.outside, inside, first + count);
      const auto edges = [&](int64_t begin, int64_t end) {
        for (int64_t column = begin; column < end; ++column) {
          const int64_t x = column * s.stride_w + offset;
          const int64_t from = std::clamp<int64_t>(-x, 0, together);
          const int64_t to = std::clamp<int64_t>(s.w - x, from, together);
          uint64_t* at = out + (column - first) * ld;
          std::fill_n(at, from * s.channels, 0);
          std::copy_n(line + (x + from) * s.channels, (to - from) * s.channels,
                      at + from * s.channels);
          std::fill_n(at + to * s.channels, (together - to) * s.channels, 0);
        }
      };
      edges(first, inside);
      Copy(outside - inside, words, line + (inside * s.stride_w + offset) * s.channels,
           s.stride_w * s.channels, out + (inside - first) * ld, ld);
      edges(outside, first + count);
    }
    out += words;
    tap += together;
  }
}

// The patches of output pixels [begin, end), counted through all images.
void LayOut(const ConvShape& s, const uint64_t* x, int64_t begin, int64_t end, int64_t tap,
            int64_t end_tap, uint64_t* out) {
  const int64_t ld = (end_tap - tap) * s.channels;
  while (begin < end) {
    const int64_t line = begin / s.out_w, first = begin % s.out_w;
    const int64_t count = std::min(s.out_w - first, end - begin);
    const uint64_t* image = x + line / s.out_h * s.h * s.w * s.channels;
    LayOutRow(s, image, line % s.out_h, first, count, tap, end_tap, out, ld);
    out += count * ld;
    begin += count;
  }
}

struct Operands {
  int pairs;
  const uint64_t* const* x;
  const uint64_t* const* w;
  uint64_t* y;
};

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
      Gemm64(rows, s.filters, depth, patches, depth, o.w[p] + tap * s.channels * s.filters,
             s.filters, o.y + begin * s.filters, s.filters, p > 0 || tap > 0, parallel);
    }
  }
}

bool IsMatrixProduct(const ConvShape& s) {
  return s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1 &&
         s.pad_top == 0 && s.pad_left == 0 && s.out_h == s.h && s.out_w == s.w;
}

}  // namespace

void Conv2D(const ConvShape& s, int pairs, const uint64_t* const* x, const uint64_t* const* w,
            uint64_t* y, const ParallelFor& parallel) {
  const int64_t pixels = s.images * s.out_h * s.out_w;
  const int64_t taps = s.kernel_h * s.kernel_w;
  if (pixels == 0 || s.filters == 0) return;
  if (taps == 0 || s.channels == 0) {
    std::fill_n(y, pixels * s.filters, 0);
    return;
  }
  if (IsMatrixProduct(s)) {
    for (int p = 0; p < pairs; ++p) {
      Gemm64(pixels, s.filters, s.channels, x[p], s.channels, w[p], s.filters, y, s.filters, p > 0,
             parallel);
    }
    return;
  }
  const Operands operands = {pairs, x, w, y};
  // With enough pixels the tiles are shared out; with fewer, the rows and columns of each.
  const bool by_tiles = pixels >= kTiles * kFewestRows;
  const int64_t wanted =
      by_tiles ? std::clamp(CeilDiv(CeilDiv(pixels, kTiles), 8) * 8, kFewestRows, kMostRows)
               : std::min(pixels, kMostRows);
  // One kernel element of all channels is the least depth; beyond 2^17 channels a tile is a pixel
  // with a buffer of its own size.
  const int64_t depth = taps * s.channels;
  const int64_t full = kScratchWords / depth;  // rows of whole patches that the buffer holds
  const int64_t rows = std::clamp<int64_t>(full >= kFewestRows ? std::min(full, wanted) : wanted,
                                           1, std::max<int64_t>(1, kScratchWords / s.channels));
  const int64_t together = std::clamp<int64_t>(kScratchWords / (rows * s.channels), 1, taps);
  const int64_t tiles = CeilDiv(pixels, rows);
  const auto run = [&](int64_t begin, int64_t end, const ParallelFor& inner) {
    const bool fits = rows * together * s.channels <= kScratchWords;
    const std::unique_ptr<uint64_t[]> large(
        fits ? nullptr : new uint64_t[static_cast<size_t>(rows * together * s.channels)]);
    const Patches patches;
    for (int64_t tile = begin; tile < end; ++tile) {
      ConvolveTile(s, operands, tile * rows, std::min((tile + 1) * rows, pixels), together,
                   fits ? patches.data() : large.get(), inner);
    }
  };
  if (by_tiles) {
    parallel(tiles, pairs * rows * depth * s.filters / kMacsPerCycle + rows * depth,
             [&](int64_t begin, int64_t end) { run(begin, end, Serial); });
  } else {
    run(0, tiles, parallel);
  }
}

namespace {

// kChannels channels of one output pixel, filters = 1: their sums stay in registers.
template <int64_t kChannels>
__attribute__((always_inline)) inline void DepthwisePixel(const ConvShape& s, const Operands& o,
                                                          int64_t line, int64_t column,
                                                          int64_t channel) {
  uint64_t sum[kChannels] = {};
  const int64_t image = line / s.out_h, row = line % s.out_h;
  for (int p = 0; p < o.pairs; ++p) {
    for (int64_t i = 0; i < s.kernel_h; ++i) {
      const int64_t y = row * s.stride_h + i * s.dilation_h - s.pad_top;
      if (y < 0 || y >= s.h) continue;
      for (int64_t j = 0; j < s.kernel_w; ++j) {
        const int64_t x = column * s.stride_w + j * s.dilation_w - s.pad_left;
        if (x < 0 || x >= s.w) continue;
        const uint64_t* a = o.x[p] + ((image * s.h + y) * s.w + x) * s.channels + channel;
        const uint64_t* b = o.w[p] + (i * s.kernel_w + j) * s.channels + channel;
        for (int64_t c = 0; c < kChannels; ++c) sum[c] += a[c] * b[c];
      }
    }
  }
  uint64_t* out = o.y + (line * s.out_w + column) * s.channels + channel;
  for (int64_t c = 0; c < kChannels; ++c) out[c] = sum[c];
}

// As above for any number of filters: one channel's outputs at a time.
__attribute__((always_inline)) inline void DepthwiseFilters(const ConvShape& s, const Operands& o,
                                                            int64_t line, int64_t column,
                                                            int64_t channel) {
  uint64_t* out = o.y + ((line * s.out_w + column) * s.channels + channel) * s.filters;
  for (int64_t q = 0; q < s.filters; ++q) out[q] = 0;
  const int64_t image = line / s.out_h, row = line % s.out_h;
  for (int p = 0; p < o.pairs; ++p) {
    for (int64_t i = 0; i < s.kernel_h; ++i) {
      const int64_t y = row * s.stride_h + i * s.dilation_h - s.pad_top;
      if (y < 0 || y >= s.h) continue;
      for (int64_t j = 0; j < s.kernel_w; ++j) {
        const int64_t x = column * s.stride_w + j * s.dilation_w - s.pad_left;
        if (x < 0 || x >= s.w) continue;
        const uint64_t a = o.x[p][((image * s.h + y) * s.w + x) * s.channels + channel];
        const uint64_t* b =
            o.w[p] + ((i * s.kernel_w + j) * s.channels + channel) * s.filters;
        for (int64_t q = 0; q < s.filters; ++q) out[q] += a * b[q];
      }
    }
  }
}

__attribute__((always_inline)) inline void DepthwiseLines(const ConvShape& s, const Operands& o,
                                                          int64_t begin, int64_t end) {
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

// One source for all instruction sets: the compiler has a vector form of these loops for each.
void DepthwisePortable(const ConvShape& s, const Operands& o, int64_t begin, int64_t end) {
  DepthwiseLines(s, o, begin, end);
}

#define TFE_BENCH_VECTORISED(isa) __attribute__((target(isa), optimize("O3")))

TFE_BENCH_VECTORISED("avx2")
void DepthwiseAvx2(const ConvShape& s, const Operands& o, int64_t begin, int64_t end) {
  DepthwiseLines(s, o, begin, end);
}

TFE_BENCH_VECTORISED("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")
void DepthwiseAvx512(const ConvShape& s, const Operands& o, int64_t begin, int64_t end) {
  DepthwiseLines(s, o, begin, end);
}

}  // namespace

void DepthwiseConv2D(const ConvShape& s, int pairs, const uint64_t* const* x,
                     const uint64_t* const* w, uint64_t* y, const ParallelFor& parallel) {
  if (s.images * s.out_h * s.out_w * s.channels * s.filters == 0) return;
  const Operands operands = {pairs, x, w, y};
  const auto lines = Cpu().avx512 ? DepthwiseAvx512 : Cpu().avx2 ? DepthwiseAvx2 : DepthwisePortable;
  const int64_t macs =
      pairs * s.out_w * s.kernel_h * s.kernel_w * s.channels * s.filters + s.out_w * s.channels;
  parallel(s.images * s.out_h, macs / 2 + 1,
           [&](int64_t begin, int64_t end) { lines(s, operands, begin, end); });
}

}  // namespace tfe_bench
