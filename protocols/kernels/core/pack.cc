#include "protocols/kernels/core/pack.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "protocols/kernels/core/cpu.h"

namespace tfe_bench {
namespace {

constexpr int kGroup = 8;  // words of any width end on a whole byte

// Code for each width: its shifts and offsets are constants.
template <int kWidth>
void PackGroups(const uint64_t* x, int64_t groups, uint8_t* out) {
  constexpr uint64_t kMask = (uint64_t{1} << kWidth) - 1;
  for (; groups > 0; --groups, x += kGroup) {
    uint64_t pending = 0;
    int held = 0;  // bits of it, fewer than 64
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; ++i) {
      const uint64_t value = x[i] & kMask;
      pending |= value << held;
      held += kWidth;
      if (held < 64) continue;
      std::memcpy(out, &pending, 8);
      out += 8;
      held -= 64;
      // (of the value's bits, width - held are stored, fewer than 64)
      pending = value >> (kWidth - held);
    }
    std::memcpy(out, &pending, held / 8);
    out += held / 8;
  }
}

template <int kWidth>
void UnpackGroups(const uint8_t* packed, int64_t groups, uint64_t* out) {
  constexpr uint64_t kMask = (uint64_t{1} << kWidth) - 1;
  constexpr int kLoad = std::min(kWidth, 8);  // bytes at a time, within the group
  for (; groups > 0; --groups, packed += kWidth, out += kGroup) {
    uint64_t loaded = 0;
    int at = -1;  // where these bytes begin
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; ++i) {
      const int begin = std::min(i * kWidth / 8, kWidth - kLoad);
      if (begin != at) {
        at = begin;
        loaded = 0;
#pragma GCC unroll 8
        for (int k = 0; k < kLoad; ++k) loaded |= uint64_t{packed[at + k]} << (8 * k);
      }
      const int shift = i * kWidth - 8 * at;
      uint64_t word = loaded >> shift;
      if (shift + kWidth > 64) word |= uint64_t{packed[at + 8]} << (64 - shift);
      out[i] = word & kMask;
    }
  }
}

struct WidthCode {
  void (*pack)(const uint64_t* x, int64_t groups, uint8_t* out);
  void (*unpack)(const uint8_t* packed, int64_t groups, uint64_t* out);
};

template <int... kWidths>
const WidthCode& FindCode(int width, std::integer_sequence<int, kWidths...>) {
  static constexpr WidthCode kAll[] = {{PackGroups<kWidths + 1>, UnpackGroups<kWidths + 1>}...};
  return kAll[width - 1];
}

const WidthCode& FindCode(int width) {
  return FindCode(width, std::make_integer_sequence<int, 63>());
}

}  // namespace

namespace internal {

void PackPortable(const uint64_t* x, int64_t n, int width, uint8_t* out) {
  const auto pack = FindCode(width).pack;
  const int64_t groups = n / kGroup, rest = n % kGroup;
  pack(x, groups, out);
  if (rest == 0) return;
  uint64_t words[kGroup] = {};
  uint8_t bytes[8 * kGroup];
  std::copy_n(x + groups * kGroup, rest, words);
  pack(words, 1, bytes);
  std::copy_n(bytes, PackedBytes(rest, width), out + groups * width);
}

void UnpackPortable(const uint8_t* packed, int64_t n, int width, uint64_t* out) {
  const auto unpack = FindCode(width).unpack;
  const int64_t groups = n / kGroup, rest = n % kGroup;
  unpack(packed, groups, out);
  if (rest == 0) return;
  uint8_t bytes[8 * kGroup] = {};
  uint64_t words[kGroup];
  std::copy_n(packed + groups * width, PackedBytes(rest, width), bytes);
  unpack(bytes, 1, words);
  std::copy_n(words, rest, out + groups * kGroup);
}

}  // namespace internal

void PackRange(const uint64_t* x, int64_t n, int width, uint8_t* out, int64_t begin, int64_t end) {
  static const auto pack = Cpu().avx512 ? internal::PackAvx512 : internal::PackPortable;
  end = std::min(end, n);
  if (begin >= end) return;
  uint8_t* const to = out + begin * width / 8;
  if (width == 64) {
    std::memcpy(to, x + begin, static_cast<size_t>(end - begin) * 8);
  } else {
    pack(x + begin, end - begin, width, to);
  }
}

void UnpackRange(const uint8_t* packed, int64_t n, int width, uint64_t* out, int64_t begin,
                 int64_t end) {
  static const auto unpack = Cpu().avx512 ? internal::UnpackAvx512
                             : Cpu().avx2 ? internal::UnpackAvx2
                                          : internal::UnpackPortable;
  end = std::min(end, n);
  if (begin >= end) return;
  const uint8_t* const from = packed + begin * width / 8;
  if (width == 64) {
    std::memcpy(out + begin, from, static_cast<size_t>(end - begin) * 8);
  } else {
    unpack(from, end - begin, width, out + begin);
  }
}

}  // namespace tfe_bench
