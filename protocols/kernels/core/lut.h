// LUT-msb: the most significant bit of a masked value x = m - lam mod 2^k, by dealt one-hot tables
// over small chunks and a tree of multi-input ANDs.  Bit-sliced: 64 elements share a word, and a
// superblock of up to 8 words (512 elements) is worked on at once.
//
// msb(x) = m_{k-1} ^ lam_{k-1} ^ borrow,  borrow = [m_low < lam_low] on the k-1 low bits.
//
// Layout of every array here ("planes"): for each superblock, plane after plane, each `width`
// words, where width is 8 but for the last superblock, which has what is left.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_LUT_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_LUT_H_

#include <cstdint>

namespace tfe_bench {

constexpr int kMaxChunks = 64, kMaxLevels = 6, kMaxRadix = 8, kMaxChunkWidth = 6;
constexpr int kSuperWords = 8;

// Products of two or more masks that one node needs; see lut_kernels.inl for their order.
int MonomialsOf(int radix, bool last);

struct LutRecipe {
  int bits = 0;                       // k
  int chunks = 0;                     // of the k-1 low bits, most significant first
  int width[kMaxChunks] = {};
  int levels = 0;
  int groups[kMaxLevels] = {};
  int group[kMaxLevels][kMaxChunks] = {};  // sizes, most significant first
  bool absorb = true;                 // deal lam's top bit too: E1 and E2 then hold all of msb(x)

  // Planes that E1 and E2 each exchange at a level.
  int ExchangePlanes(int level) const;
  int TablePlanes() const;
  int MonomialPlanes(int level) const;
  int DealtPlanes() const;
  // nullptr if it is consistent, else what is wrong.
  const char* Check() const;
};

inline int64_t SuperblocksFor(int64_t words) { return (words + kSuperWords - 1) / kSuperWords; }

// Fills `blocks` blocks of two words of mask stream `stream` from block `first`.
struct MaskSource {
  void (*fill)(const void* env, int stream, uint64_t first, uint64_t blocks, uint64_t* out);
  const void* env;
};
// Streams, and the tensor numbers of the masks behind them.
constexpr int kDealtStream = 0;           // K1
inline int LevelMask(int level, bool first) { return 2 * level + (first ? 1 : 2); }  // K1, else K2

// Words of scratch that the range functions below want.
int64_t LutScratchWords(const LutRecipe& recipe);

struct LutFunctions {
  // out planes [bits] of x (n elements of `limbs` words each); or, with a and b, of x[a] - x[b].
  void (*planes)(const uint64_t* x, int limbs, const int32_t* a, const int32_t* b, int64_t n,
                 int bits, uint64_t* out, int64_t begin, int64_t end);
  // D: the message to E2 (DealtPlanes) and lam's top bit (1 plane).
  void (*deal)(const LutRecipe& r, int64_t words, const uint64_t* lam, const MaskSource& mask,
               uint64_t* message, uint64_t* top, uint64_t* scratch, int64_t begin, int64_t end);
  // E1 (dealt == nullptr: from the PRF) or E2: level-0 shares under this evaluator's mask.
  void (*exchange)(const LutRecipe& r, int64_t words, const uint64_t* m, const uint64_t* dealt,
               const MaskSource& mask, uint64_t* message, uint64_t* scratch, int64_t begin,
               int64_t end);
  // Both messages of `level` -> the message of level + 1, or at the end this evaluator's XOR share
  // of msb(x) (1 plane).
  void (*node)(const LutRecipe& r, int level, int64_t words, const uint64_t* m,
               const uint64_t* own, const uint64_t* other, const uint64_t* dealt,
               const MaskSource& mask, uint64_t* out, uint64_t* scratch, int64_t begin,
               int64_t end);
};

const LutFunctions& Lut();
// The two builds of the same source.
const LutFunctions* LutAvx2();
const LutFunctions* LutAvx512();

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_LUT_H_
