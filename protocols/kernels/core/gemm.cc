// Cache blocking after BLIS (Van Zee and van de Geijn, ACM TOMS 2015): panels of b stay in L1,
// blocks of a in L2, tiles of c in registers. The instruction sets supply the tiles (gemm_isa.h).
#include "protocols/kernels/core/gemm.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "protocols/kernels/core/cpu.h"
#include "protocols/kernels/core/gemm_isa.h"
#include "protocols/kernels/core/scratch.h"

namespace tfe_bench {
namespace internal {
namespace {

constexpr int64_t kRowsPerBlock = 128;       // of a, packed: 128 KiB with kc = 128
constexpr int64_t kSlices = 4;               // of kc rows of b, packed at a time
constexpr int64_t kUnpackedBytes = int64_t{1} << 22;  // of b filled for few rows of a
constexpr int64_t kFilledWords = int64_t{1} << 16;  // of b filled at a time: 512 KiB
constexpr int64_t kPanels = 4;               // of a piece at least: so packing a for it is cheap
constexpr int64_t kUnits = 16;               // pieces of work to aim at, for up to 8 threads
constexpr int64_t kDotDepth = 512;           // of k per dot block: ten columns of b stay in L1

// Words of packed panels of `lanes` rows or columns in all.
int64_t PackedWords(const GemmIsa& isa, int64_t lanes, int64_t k) {
  return lanes * CeilDiv(k, isa.ku) * isa.ku * isa.packed_bytes / 8;
}

int64_t CostInCycles(const GemmIsa& isa, int64_t macs) {
  return std::max<int64_t>(1, macs / isa.macs_per_cycle);
}

// Panels of mr rows, each stored column after column.
void PackA(const GemmIsa& isa, int64_t m, int64_t k, const uint64_t* a, int64_t lda,
           uint64_t* out) {
  if (isa.pack_a != nullptr) return isa.pack_a(m, k, a, lda, out);
  for (int64_t i = 0; i < m; i += isa.mr, out += isa.mr * k) {
    const int64_t rows = std::min(isa.mr, m - i);
    for (int64_t r = 0; r < rows; ++r) {
      const uint64_t* row = a + (i + r) * lda;
      for (int64_t p = 0; p < k; ++p) out[p * isa.mr + r] = row[p];
    }
  }
}

// One panel of nr columns, row after row.
void PackPanelOfB(const GemmIsa& isa, int64_t columns, int64_t k, const uint64_t* b, int64_t ldb,
                  uint64_t* out) {
  if (isa.pack_b != nullptr) return isa.pack_b(columns, k, b, ldb, out);
  const size_t bytes = static_cast<size_t>(columns) * sizeof(uint64_t);
  for (int64_t p = 0; p < k; ++p) std::memcpy(out + p * isa.nr, b + p * ldb, bytes);
}

// Rows [i, i + rows) and columns [j, j + columns) of one product; depth kc at a time.
struct Piece {
  int64_t i, rows, j, columns;
};

void MultiplyPiece(const GemmIsa& isa, const GemmArgs& g, const uint64_t* packed_b, bool pack_a,
                   const Piece& piece) {
  const auto [i, rows, j, columns] = piece;
  const int64_t panels = CeilDiv(g.n, isa.nr);
  const int64_t padded_rows = CeilDiv(rows, isa.mr) * isa.mr;
  const Scratch scratch(Scratch::kA,
                        pack_a ? PackedWords(isa, padded_rows, std::min(isa.kc, g.k)) : 0);
  for (int64_t p = 0; p < g.k; p += isa.kc) {
    const int64_t depth = std::min(isa.kc, g.k - p);
    GemmBlock block = {};
    block.m = rows;
    block.n = columns;
    block.k = depth;
    block.c = g.c + i * g.ldc + j;
    block.ldc = g.ldc;
    block.accumulate = g.accumulate || p > 0;
    const uint64_t* a = g.a + i * g.lda + p;
    if (pack_a) {
      PackA(isa, rows, depth, a, g.lda, scratch.data());
      block.a = scratch.data();
      block.a_panel = isa.mr * depth;
      block.a_row = 1;
      block.a_col = isa.mr;
    } else {
      block.a = a;
      block.a_panel = isa.mr * g.lda;
      block.a_row = g.lda;
      block.a_col = 1;
    }
    if (packed_b != nullptr) {
      block.b = packed_b + PackedWords(isa, panels * isa.nr, p) + PackedWords(isa, j, depth);
      block.b_panel = PackedWords(isa, isa.nr, depth);
      block.b_row = isa.nr;
    } else {
      block.b = g.b + p * g.ldb + j;
      block.b_panel = isa.nr;
      block.b_row = g.ldb;
    }
    isa.block(block);
  }
}

// Cuts c into pieces, several for each of a handful of threads, and multiplies them.
void MultiplyPieces(const GemmIsa& isa, const GemmArgs& g, const uint64_t* packed_b, bool pack_a,
                    const ParallelFor& parallel) {
  const int64_t panels = CeilDiv(g.n, isa.nr);
  // Rows are cut where columns give too few pieces: a panel of b is fetched for each piece.
  const int64_t row_shares = CeilDiv(kUnits, std::clamp<int64_t>(panels / kPanels, 1, kUnits));
  const int64_t share = CeilDiv(CeilDiv(g.m, row_shares), isa.mr) * isa.mr;
  // Limbs of b are fetched for each piece: a wide one uses them often enough.
  const int64_t fewest = (isa.mr > 8 ? 4 : 2) * isa.mr;
  const int64_t rows = std::clamp(share, std::min(fewest, kRowsPerBlock), kRowsPerBlock);
  const int64_t row_pieces = CeilDiv(g.m, rows);
  const int64_t panels_per_piece =
      std::max<int64_t>(kPanels, CeilDiv(panels, CeilDiv(kUnits, row_pieces)));
  const int64_t columns = panels_per_piece * isa.nr;
  const int64_t column_pieces = CeilDiv(panels, panels_per_piece);
  const int64_t macs = std::min(rows, g.m) * std::min(columns, g.n) * g.k;
  parallel(row_pieces * column_pieces, CostInCycles(isa, macs), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      // Neighbours in one row of pieces share a, which is packed once for them.
      const int64_t row = begin / column_pieces, last = std::min(end, (row + 1) * column_pieces);
      const int64_t i = row * rows, j = begin % column_pieces * columns;
      MultiplyPiece(isa, g, packed_b, pack_a,
                    {i, std::min(rows, g.m - i), j,
                     std::min((last - begin) * columns, g.n - j)});
      begin = last;
    }
  });
}

// Rows [p, p + rows) and columns [j, j + columns) of b from its source, without gaps.
void FillRows(const GemmArgs& g, int64_t p, int64_t rows, int64_t j, int64_t columns,
              uint64_t* out) {
  if (columns == g.n) return (*g.source)(p * g.n, rows * g.n, out);
  for (int64_t r = 0; r < rows; ++r) (*g.source)((p + r) * g.n + j, columns, out + r * columns);
}

// fill(p, rows) for all rows of b, on several threads; a word costs two cycles.
template <typename Fill>
void FillInBlocks(int64_t k, int64_t rows, int64_t columns, const ParallelFor& parallel, Fill fill) {
  parallel(CeilDiv(k, rows), 2 * rows * columns, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin * rows; p < std::min(end * rows, k); p += rows) {
      fill(p, std::min(rows, k - p));
    }
  });
}

// Packs rows [p, p + part.k) and columns [j, j + part.n) of g's b, of which `part` has the words
// unless a source does.
void PackB(const GemmIsa& isa, const GemmArgs& g, const GemmArgs& part, int64_t p, int64_t j,
           uint64_t* packed, const ParallelFor& parallel) {
  const int64_t panels = CeilDiv(part.n, isa.nr);
  // Where row `row` of the panel that begins with `column` is.
  const auto place = [&](int64_t row, int64_t column) {
    const int64_t slice = row / isa.kc * isa.kc, depth = std::min(isa.kc, part.k - slice);
    return packed + PackedWords(isa, panels * isa.nr, slice) + PackedWords(isa, column, depth) +
           PackedWords(isa, isa.nr, row - slice);
  };
  if (g.source == nullptr) {
    const int64_t slices = CeilDiv(part.k, isa.kc);
    // A word copied costs about half a cycle.
    parallel(slices * panels, isa.kc * isa.nr / 2, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t row = unit / panels * isa.kc;
        const int64_t column = unit % panels * isa.nr;
        PackPanelOfB(isa, std::min(isa.nr, part.n - column), std::min(isa.kc, part.k - row),
                     part.b + row * part.ldb + column, part.ldb, place(row, column));
      }
    });
    return;
  }
  int64_t rows = isa.kc;
  while (rows > isa.ku && rows * part.n > kFilledWords) rows /= 2;
  FillInBlocks(part.k, rows, part.n, parallel, [&](int64_t row, int64_t count) {
    const Scratch filled(Scratch::kA, count * part.n);
    FillRows(g, p + row, count, j, part.n, filled.data());
    for (int64_t column = 0; column < part.n; column += isa.nr) {
      PackPanelOfB(isa, std::min(isa.nr, part.n - column), count, filled.data() + column, part.n,
                   place(row, column));
    }
  });
}

void MultiplyByTiles(const GemmIsa& isa, const GemmArgs& g, const ParallelFor& parallel) {
  // Else each element is used too few times.
  const bool pack_b = isa.pack_b != nullptr || g.m >= 3 * isa.mr;
  const bool pack_a = isa.pack_b != nullptr || g.n > 3 * isa.nr;
  if (!pack_b && g.source == nullptr) return MultiplyPieces(isa, g, nullptr, pack_a, parallel);

  // Columns of kc elements. (Few rows read long stretches of the rows of b. Where a slice is deep
  // enough, splitting a again for each group of columns costs more than another pass over c.)
  const int64_t packed = (pack_b ? isa.b_bytes : kUnpackedBytes) / isa.packed_bytes / isa.kc;
  const int64_t slices = pack_b && isa.kc < 1024 ? std::min(kSlices, CeilDiv(g.k, isa.kc)) : 1;
  const int64_t columns_at_once =
      std::min(CeilDiv(g.n, isa.nr), std::max<int64_t>(1, packed / slices / isa.nr)) * isa.nr;
  const int64_t depth_at_once = packed / columns_at_once * isa.kc;
  const Scratch scratch(Scratch::kB,
                        PackedWords(isa, columns_at_once, std::min(depth_at_once, g.k)));
  uint64_t* const words = scratch.data();
  for (int64_t j = 0; j < g.n; j += columns_at_once) {
    for (int64_t p = 0; p < g.k; p += depth_at_once) {
      GemmArgs part = g;
      part.n = std::min(columns_at_once, g.n - j);
      part.k = std::min(depth_at_once, g.k - p);
      part.a += p;
      part.c += j;
      part.accumulate = g.accumulate || p > 0;
      if (g.source == nullptr) part.b += p * g.ldb + j;
      if (pack_b) {
        PackB(isa, g, part, p, j, words, parallel);
        MultiplyPieces(isa, part, words, pack_a, parallel);
      } else {
        const int64_t rows = std::max<int64_t>(1, kFilledWords / part.n);
        FillInBlocks(part.k, rows, part.n, parallel, [&](int64_t row, int64_t count) {
          FillRows(g, p + row, count, j, part.n, words + row * part.n);
        });
        part.b = words;
        part.ldb = part.n;
        MultiplyPieces(isa, part, nullptr, pack_a, parallel);
      }
    }
  }
}

void MultiplyByDots(const GemmIsa& isa, const GemmArgs& g, const ParallelFor& parallel) {
  // Rows of the transpose start on cache lines.
  const int64_t ldbt = CeilDiv(g.k, 8) * 8;
  const Scratch scratch(Scratch::kB, g.n * ldbt);
  uint64_t* const bt = scratch.data();
  for (int64_t p = 0; p < g.k; ++p) {
    for (int64_t j = 0; j < g.n; ++j) bt[j * ldbt + p] = g.b[p * g.ldb + j];
  }
  constexpr int64_t kRows = 4;
  parallel(CeilDiv(g.m, kRows), CostInCycles(isa, kRows * g.n * g.k),
           [&](int64_t begin, int64_t end) {
             const int64_t i = begin * kRows;
             const int64_t rows = std::min(end * kRows, g.m) - i;
             for (int64_t p = 0; p < g.k; p += kDotDepth) {
               isa.dot({rows, g.n, std::min(kDotDepth, g.k - p), g.a + i * g.lda + p, g.lda,
                        bt + p, ldbt, g.c + i * g.ldc, g.ldc, g.accumulate || p > 0});
             }
           });
}

// Whether vectors along k waste fewer lanes than vectors along n; four operations is what adding
// up the lanes of a sum and storing one word costs.
bool DotsAreCheaper(const GemmIsa& isa, const GemmArgs& g) {
  if (isa.dot == nullptr || g.n > 2 * isa.lanes || g.m < 4) return false;
  return g.n * (CeilDiv(g.k, isa.lanes) + 4) < CeilDiv(g.n, isa.lanes) * g.k;
}

void Multiply(const GemmIsa& isa, const GemmArgs& g, const ParallelFor& parallel) {
  if (DotsAreCheaper(isa, g)) {
    MultiplyByDots(isa, g, parallel);
  } else {
    MultiplyByTiles(isa, g, parallel);
  }
}

// A small c with a deep k, as in a gradient, leaves no rows to share out: share out k.
bool WorthSplittingDepth(const GemmArgs& g) {
  return CeilDiv(g.m, 16) * CeilDiv(g.n, 96) < 4 && g.k >= 4096 && g.k >= 16 * g.m &&
         g.m * g.n * g.k >= int64_t{1} << 20;
}

void MultiplySplittingDepth(const GemmIsa& isa, const GemmArgs& g, const ParallelFor& parallel) {
  const int64_t parts = 8;
  const int64_t depth = CeilDiv(CeilDiv(g.k, parts), isa.kc) * isa.kc;
  const int64_t words = g.m * g.n;
  const std::unique_ptr<uint64_t[]> sums(new uint64_t[static_cast<size_t>(parts * words)]);
  parallel(CeilDiv(g.k, depth), CostInCycles(isa, words * depth), [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      GemmArgs h = g;
      h.k = std::min(depth, g.k - part * depth);
      h.a += part * depth;
      h.b += part * depth * g.ldb;
      h.c = sums.get() + part * words;
      h.ldc = g.n;
      h.accumulate = false;
      Multiply(isa, h, Serial);
    }
  });
  for (int64_t part = 0; part < CeilDiv(g.k, depth); ++part) {
    const uint64_t* sum = sums.get() + part * words;
    const bool add = g.accumulate || part > 0;
    for (int64_t i = 0; i < g.m; ++i) {
      uint64_t* c = g.c + i * g.ldc;
      for (int64_t j = 0; j < g.n; ++j) c[j] = (add ? c[j] : 0) + sum[i * g.n + j];
    }
  }
}

// Below these sizes, splitting words in limbs and joining sums cost more than AMX saves (measured on
// Sapphire Rapids).
bool IsWorthSplittingWords(int bits, const GemmArgs& g) {
  const int64_t side = std::min(g.m, g.n);
  if (bits > kGemmIfma.bits) return side >= 12 && g.k >= 32;
  return side >= 32 && g.k >= (bits <= 48 ? 64 : 256);
}

const GemmIsa& ChooseIsa(int bits, const GemmArgs& g) {
  if (Cpu().amx && IsWorthSplittingWords(bits, g)) return kGemmAmx[CeilDiv(bits, 8) - 1];
  if (Cpu().ifma && bits <= kGemmIfma.bits) return kGemmIfma;
  if (Cpu().ifma && Cpu().slow_mullq && g.m >= 2 * kGemmFullIfma.mr) return kGemmFullIfma;
  if (Cpu().avx512) return kGemmAvx512;
  return Cpu().avx2 && Cpu().bmi2 ? kGemmAvx2 : kGemmPortable;
}

}  // namespace

void GemmBlockPortable(const GemmBlock& g) {
  constexpr int64_t kMr = kGemmPortable.mr;
  constexpr int64_t kNr = kGemmPortable.nr;
  for (int64_t i = 0; i < g.m; ++i) {
    const uint64_t* a = g.a + i / kMr * g.a_panel + i % kMr * g.a_row;
    uint64_t* c = g.c + i * g.ldc;
    for (int64_t j = 0; j < g.n; j += kNr) {
      const int64_t columns = std::min(kNr, g.n - j);
      const uint64_t* b = g.b + j / kNr * g.b_panel;
      uint64_t sum[kNr] = {};
      for (int64_t p = 0; p < g.k; ++p) {
        for (int64_t q = 0; q < columns; ++q) sum[q] += a[p * g.a_col] * b[p * g.b_row + q];
      }
      for (int64_t q = 0; q < columns; ++q) c[j + q] = (g.accumulate ? c[j + q] : 0) + sum[q];
    }
  }
}

void GemmWith(const GemmIsa& isa, const GemmArgs& g, const ParallelFor& parallel) {
  if (g.m <= 0 || g.n <= 0) return;
  if (g.k <= 0) {
    for (int64_t i = 0; i < g.m && !g.accumulate; ++i) std::fill_n(g.c + i * g.ldc, g.n, 0);
    return;
  }
  if (g.source != nullptr && (WorthSplittingDepth(g) || DotsAreCheaper(isa, g))) {
    // Few columns: all of b is computed first.
    const std::unique_ptr<uint64_t[]> b(new uint64_t[static_cast<size_t>(g.k * g.n)]);
    FillRows(g, 0, g.k, 0, g.n, b.get());
    GemmArgs h = g;
    h.b = b.get();
    h.ldb = g.n;
    h.source = nullptr;
    GemmWith(isa, h, parallel);
  } else if (WorthSplittingDepth(g)) {
    MultiplySplittingDepth(isa, g, parallel);
  } else {
    Multiply(isa, g, parallel);
  }
}

bool IsRight(const GemmIsa& isa) {
  constexpr int64_t m = 37, n = 35, k = 130;  // (with partial tiles)
  std::mt19937_64 random(k);
  std::vector<uint64_t> a(m * k), b(k * n), right(m * n), c(m * n);
  for (uint64_t& word : a) word = random();
  for (uint64_t& word : b) word = random();
  GemmWith(kGemmPortable, {m, n, k, a.data(), k, b.data(), n, right.data(), n, false}, Serial);
  GemmWith(isa, {m, n, k, a.data(), k, b.data(), n, c.data(), n, false}, Serial);
  return std::equal(c.begin(), c.end(), right.begin(), [&isa](uint64_t x, uint64_t y) {
    return (x ^ y) << (64 - isa.bits) == 0;
  });
}

}  // namespace internal

const char* FindWrongIsa() {
  std::vector<const internal::GemmIsa*> isas;
  if (Cpu().avx2 && Cpu().bmi2) isas.push_back(&internal::kGemmAvx2);
  if (Cpu().avx512) isas.push_back(&internal::kGemmAvx512);
  if (Cpu().ifma) isas.push_back(&internal::kGemmIfma);
  if (Cpu().ifma) isas.push_back(&internal::kGemmFullIfma);
  for (const internal::GemmIsa& isa : internal::kGemmAmx) {
    if (Cpu().amx) isas.push_back(&isa);
  }
  for (const internal::GemmIsa* isa : isas) {
    if (!internal::IsRight(*isa)) return isa->name;
  }
  return nullptr;
}

void Gemm(int bits, int64_t m, int64_t n, int64_t k, const uint64_t* a, int64_t lda,
          const uint64_t* b, int64_t ldb, uint64_t* c, int64_t ldc, bool accumulate,
          const ParallelFor& parallel) {
  const internal::GemmArgs g = {m, n, k, a, lda, b, ldb, c, ldc, accumulate};
  internal::GemmWith(internal::ChooseIsa(bits, g), g, parallel);
}

void Gemm(int bits, int64_t m, int64_t n, int64_t k, const uint64_t* a, int64_t lda,
          const WordSource& b, uint64_t* c, int64_t ldc, bool accumulate,
          const ParallelFor& parallel) {
  const internal::GemmArgs g = {m, n, k, a, lda, nullptr, n, c, ldc, accumulate, &b};
  internal::GemmWith(internal::ChooseIsa(bits, g), g, parallel);
}

}  // namespace tfe_bench
