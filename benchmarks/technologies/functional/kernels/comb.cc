#include "benchmarks/technologies/functional/kernels/comb.h"

#include <cstring>
#include <vector>

namespace tfe_bench {
namespace curve {
namespace {

// Half of the base point modulo l.
Point HalfBase() {
  const uint8_t half[32] = {0xf7, 0xe9, 0x7a, 0x2e, 0x8d, 0x31, 0x09, 0x2c, 0x6b, 0xce, 0x7b,
                            0x51, 0xef, 0x7c, 0x6f, 0x0a, 0,    0,    0,    0,    0,    0,
                            0,    0,    0,    0,    0,    0,    0,    0,    0,    0x08};
  return MultiplyPublic(half, kBase);
}

// Windows of 4 bits: entry j of window w is (j + 1) 16^w times half of the base point.
struct SmallTable {
  Affine entry[kWindows][kTable];

  SmallTable() {
    std::vector<Point> points;
    Point unit = HalfBase();
    for (int w = 0; w < kWindows; ++w) {
      Point multiple = unit;
      for (int j = 0; j < kTable; ++j) {
        points.push_back(multiple);
        multiple = Add(multiple, unit);
      }
      for (int i = 0; i < 4; ++i) unit = Double(unit);
    }
    const std::vector<Affine> all = Normalize(points.data(), points.size());
    std::memcpy(entry, all.data(), sizeof(entry));
  }
};

}  // namespace

Comb MakeComb(const Point& p) {
  std::vector<Point> points;
  points.reserve(kCombs * kEntries);
  Point power = p;
  for (int c = 0; c < kCombs; ++c) {
    Point tooth[kTeeth];
    for (int i = 0; i < kTeeth; ++i) {
      tooth[i] = power;
      for (int j = 0; j < kSpacing; ++j) power = Double(power);
    }
    // All lower teeth with -1, then each entry from the one without its lowest set bit.
    Point entry[kEntries] = {tooth[kTeeth - 1]};
    for (int i = 0; i < kTeeth - 1; ++i) entry[0] = Add(entry[0], Negate(tooth[i]));
    for (int j = 1; j < kEntries; ++j) {
      entry[j] = Add(entry[j & (j - 1)], Double(tooth[__builtin_ctz(j)]));
    }
    points.insert(points.end(), entry, entry + kEntries);
  }
  const std::vector<Affine> all = Normalize(points.data(), points.size());
  Comb out;
  std::memcpy(out.entry, all.data(), sizeof(out.entry));
  return out;
}

Digits DigitsOf(const Scalar& k) {
  const Scalar bits = SignedBits(k);
  Digits out;
  for (int u = kSpacing - 1, step = 0; u >= 0; --u) {
    for (int c = 0; c < kCombs; ++c, ++step) {
      uint64_t value = 0;
      for (int i = 0; i < kTeeth; ++i) {
        const int at = (c * kTeeth + i) * kSpacing + u;
        value |= (bits.word[at / 64] >> (at % 64) & 1) << i;
      }
      const uint64_t minus = Mask(1 ^ (value >> (kTeeth - 1)));
      out.entry[step] = (value ^ minus) & (kEntries - 1);
      out.negative[step] = minus;
    }
  }
  return out;
}

Point Multiply(const Comb& comb, const Digits& digits) {
  static_assert(kEntries == kTable, "a step reads a whole table");
  Step steps[kSteps];
  for (int i = 0; i < kSteps; ++i) {
    const int c = i % kCombs;
    steps[i] = {comb.entry[c], digits.entry[i], digits.negative[i], c == 0 && i > 0};
  }
  Point out = kIdentity;
  SumsHere().run(&out, steps, kSteps);
  return out;
}

const Comb& HalfBaseComb() {
  static const Comb comb = MakeComb(HalfBase());
  return comb;
}

Point AddSmall(const Point& p, int64_t m, int windows) {
  static const SmallTable table;
  // Digits from -8 to 7: of m + 0x88...8, less 8 each.
  uint64_t offset = 0;
  for (int w = 0; w < windows; ++w) offset |= uint64_t{8} << (4 * w);
  const uint64_t shifted = static_cast<uint64_t>(m) + offset;
  Step steps[kWindows];
  for (int w = 0; w < windows; ++w) {
    // The highest one may be 8: what is carried beyond it.
    const uint64_t rest = shifted >> (4 * w), digit = (w + 1 < windows ? rest & 15 : rest) - 8;
    const uint64_t minus = Mask(digit >> 63);
    // |digit| - 1 is not an entry for digit 0; its multiple is the neutral element.
    steps[w] = {table.entry[w], ((digit ^ minus) - minus) - 1, minus, 0};
  }
  Point out = p;
  SumsHere().run(&out, steps, windows);
  return out;
}

}  // namespace curve
}  // namespace tfe_bench
