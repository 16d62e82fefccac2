#include "benchmarks/technologies/functional/kernels/products.h"

#include <algorithm>
#include <cstring>

namespace tfe_bench {
namespace curve {
namespace {

constexpr int kScalarBits = 254;  // and a sign
constexpr int kMultiples = 8, kDigitBits = 4;

// Digits of a number in base 2^width, each from -2^(width - 1) to 2^(width - 1), lowest first.
class SignedDigits {
 public:
  SignedDigits(int64_t value, int width)
      : rest_(std::abs(value)), sign_(value < 0 ? -1 : 1), width_(width) {}
  int64_t Next() {
    const int64_t base = int64_t{1} << width_;
    int64_t digit = rest_ & (base - 1);
    if (digit > base / 2) digit -= base;
    rest_ = (rest_ - digit) >> width_;
    return sign_ * digit;
  }

 private:
  int64_t rest_, sign_;
  int width_;
};

int DigitsFor(int bits, int width) { return bits / width + 1; }

// Additions for a row by buckets of this many bits; the final cost of a bucket counts twice.
int64_t BucketCost(int64_t entries, int bits, int width) {
  return DigitsFor(bits, width) * (entries + (int64_t{2} << (width - 1)) + width);
}

int BestBuckets(int64_t entries, int bits) {
  int best = 2;
  for (int width = 3; width <= 12; ++width) {
    if (BucketCost(entries, bits, width) < BucketCost(entries, bits, best)) best = width;
  }
  return best;
}

}  // namespace

WindowTable::WindowTable(const Point& p, int width) : width_(width) {
  const int64_t half = int64_t{1} << (width - 1);
  std::vector<Point> points;
  Point unit = p;
  for (int w = 0; w * width <= kScalarBits; ++w) {
    Point multiple = unit;
    for (int64_t j = 0; j < half; ++j) {
      points.push_back(multiple);
      multiple = Add(multiple, unit);
    }
    unit = Double(points.back());
  }
  entry_ = Normalize(points.data(), points.size());
}

Point WindowTable::SubtractMultiple(Point accumulated, const uint8_t k[32]) const {
  const int64_t half = int64_t{1} << (width_ - 1), base = 2 * half;
  uint8_t padded[40] = {};
  std::memcpy(padded, k, 32);
  Term terms[kScalarBits];
  int64_t carry = 0, count = 0;
  for (int w = 0; w * width_ <= kScalarBits; ++w) {
    const int bit = w * width_;
    uint32_t word;
    std::memcpy(&word, padded + bit / 8, sizeof(word));
    int64_t digit = (word >> (bit % 8) & (base - 1)) + carry;
    carry = digit > half;
    digit -= carry * base;
    if (digit != 0) terms[count++] = {&entry_[w * half + std::abs(digit) - 1], digit > 0};
  }
  SumsHere().add(&accumulated, terms, count);
  return accumulated;
}

int WindowTable::BestWidth(int64_t numbers) {
  // An entry costs about two additions; tables beyond the first caches cost more.
  int best = 2;
  int64_t least = INT64_MAX;
  for (int width = 2; width <= 10; ++width) {
    const int64_t cost = (kScalarBits / width + 1) * (numbers + (int64_t{2} << (width - 1)));
    if (cost < least) best = width, least = cost;
  }
  return best;
}

Products::Products(const Affine* points, int64_t count, const Rows& rows, int64_t begin,
                   int64_t end)
    : points_(points), rows_(rows) {
  int64_t by_buckets = 0, by_digits = 2 * kMultiples * count;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t entries = rows.start[row + 1] - rows.start[row];
    const int bits = BitsOf(row), digits = DigitsFor(bits, kDigitBits);
    by_buckets += BucketCost(entries, bits, BestBuckets(entries, bits));
    by_digits += digits * (entries + kDigitBits);
  }
  if (by_digits >= by_buckets) return;
  // In parts, so that what is normalized stays in the caches.
  multiple_.resize(static_cast<size_t>(count * kMultiples));
  constexpr int64_t kPart = 64;
  std::vector<Point> part;
  for (int64_t first = 0; first < count; first += kPart) {
    part.clear();
    for (int64_t i = first; i < std::min(first + kPart, count); ++i) {
      part.push_back(Add(kIdentity, points[i]));
      for (int j = 1; j < kMultiples; ++j) part.push_back(Add(part.back(), points[i]));
    }
    const std::vector<Affine> done = Normalize(part.data(), part.size());
    std::copy(done.begin(), done.end(), multiple_.begin() + first * kMultiples);
  }
}

int Products::BitsOf(int64_t row) const {
  uint64_t any = 0;
  for (int64_t j = rows_.start[row]; j < rows_.start[row + 1]; ++j) {
    any |= static_cast<uint64_t>(std::abs(rows_.value[j]));
  }
  return any == 0 ? 0 : 64 - __builtin_clzll(any);
}

Point Products::Row(int64_t row) {
  const int bits = BitsOf(row);
  return multiple_.empty() ? Buckets(row, bits) : Digits(row, bits);
}

Point Products::Buckets(int64_t row, int bits) {
  const int64_t begin = rows_.start[row], end = rows_.start[row + 1];
  const int width = BestBuckets(end - begin, bits);
  const int64_t half = int64_t{1} << (width - 1);
  const int64_t windows = DigitsFor(bits, width);
  digit_.resize(static_cast<size_t>((end - begin) * windows));
  for (int64_t j = 0; j < end - begin; ++j) {
    SignedDigits digits(rows_.value[begin + j], width);
    for (int64_t w = 0; w < windows; ++w) {
      digit_[w * (end - begin) + j] = static_cast<int32_t>(digits.Next());
    }
  }
  bucket_.resize(static_cast<size_t>(half + 1));
  used_.resize(static_cast<size_t>(half + 1));
  Point out = kIdentity;
  for (int64_t w = windows - 1; w >= 0; --w) {
    for (int i = 0; i < width && w < windows - 1; ++i) out = Double(out);
    SumsHere().buckets(&out, points_, rows_.index + begin, &digit_[w * (end - begin)], end - begin,
                       bucket_.data(), used_.data(), half);
  }
  return out;
}

Point Products::Digits(int64_t row, int bits) {
  const int64_t begin = rows_.start[row], end = rows_.start[row + 1];
  const int digits = DigitsFor(bits, kDigitBits);
  Point out = kIdentity;
  for (int w = digits - 1; w >= 0; --w) {
    for (int i = 0; i < kDigitBits && w < digits - 1; ++i) out = Double(out);
    terms_.clear();
    for (int64_t j = begin; j < end; ++j) {
      SignedDigits next(rows_.value[j], kDigitBits);
      int64_t digit = next.Next();
      for (int skipped = 0; skipped < w; ++skipped) digit = next.Next();
      if (digit == 0) continue;
      const Affine* multiples = &multiple_[static_cast<size_t>(rows_.index[j]) * kMultiples];
      terms_.push_back({multiples + std::abs(digit) - 1, digit < 0});
    }
    SumsHere().add(&out, terms_.data(), terms_.size());
  }
  return out;
}

}  // namespace curve
}  // namespace tfe_bench
