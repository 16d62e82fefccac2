#include "protocols/kernels/core/polynomial.h"

#include <cstring>

#include "protocols/kernels/core/cpu.h"
#include "protocols/kernels/core/multiword.h"

namespace tfe_bench {
namespace {

const LaneFunctions* ChooseLanes() {
  if (Cpu().avx512) return PolynomialAvx512();
  return Cpu().avx2 && Cpu().bmi2 ? PolynomialAvx2() : nullptr;
}

}  // namespace

std::string MaskedPolynomial::Prepare(bool with_coefficients) {
  const int r = factors();
  if (r < 1 || r > kMaxFactors || static_cast<int>(degrees.size()) != r) {
    return "a polynomial has 1 to 3 factors";
  }
  terms_ = 1;
  for (int i = r - 1; i >= 0; --i) {
    if (bits[i] < 3 || bits[i] > 62) return "a factor has 3 to 62 bits";
    if (degrees[i] < 1 || degrees[i] > kMaxDegree) return "a degree is out of range";
    stride_[i] = terms_;
    terms_ *= degrees[i] + 1;
    if (terms_ > kMaxTerms) return "a polynomial has too many terms";
  }
  if (modulus_bits < 1 || modulus_bits > 64 * kMaxLimbs) return "the modulus is out of range";
  if (drop < 0 || drop >= modulus_bits) return "more bits dropped than there are";
  if (static_cast<int>(widths.size()) != terms_ || widths[0] != 0) return "wrong field widths";
  if (with_coefficients && static_cast<int>(coefficients.size()) != terms_ * limbs()) {
    return "wrong number of coefficients";
  }
  term_.assign(terms_, Term());
  int offset = 0;
  for (int t = 0; t < terms_; ++t) {
    Term& term = term_[t];
    if (widths[t] < 0 || widths[t] > modulus_bits) return "wrong field widths";
    term.offset = offset;
    term.variants = 1;
    for (int i = 0; i < r; ++i) {
      term.exponent[i] = t / stride_[i] % (degrees[i] + 1);
      if (term.exponent[i]) term.variants *= 2;
    }
    offset += term.variants * widths[t];
  }
  record_words_ = (offset + 63) / 64;
  if (record_words_ == 0) return "a polynomial without terms";
  static const LaneFunctions* const lanes = ChooseLanes();
  lane_functions_ = r == 1 && limbs() == 1 ? lanes : nullptr;
  if (lane_functions_ != nullptr) {
    lanes_ = {bits[0], degrees[0], modulus_bits, drop, record_words_, {}, {}};
    for (int t = 1; t < terms_; ++t) {
      lanes_.width[t] = widths[t];
      lanes_.offset[t] = term_[t].offset;
    }
  }
  return "";
}

template <int n>
void MaskedPolynomial::DealWords(const uint64_t* const* lam, int64_t begin, int64_t end,
                                 uint64_t* records) const {
  const int r = factors();
  Multiword<n> power[kMaxFactors][2][kMaxDegree + 1];
  for (int64_t e = begin; e < end; ++e, records += record_words_) {
    for (int i = 0; i < r; ++i) {
      for (int b = 0; b < 2; ++b) {
        const int up = 64 - bits[i];
        const uint64_t moved = lam[i][e] + (static_cast<uint64_t>(b) << (bits[i] - 1));
        const int64_t negated = -(static_cast<int64_t>(moved << up) >> up);
        power[i][b][1] = Multiword<n>::Of(negated);
        for (int j = 2; j <= degrees[i]; ++j) power[i][b][j] = power[i][b][j - 1] * negated;
      }
    }
    for (int t = 1; t < terms_; ++t) {
      const int width = widths[t], dropped = modulus_bits - width;
      if (width == 0) continue;
      for (int v = 0; v < term_[t].variants; ++v) {
        Multiword<n> value{};
        bool any = false;
        for (int i = 0, rest = v; i < r; ++i) {
          const int j = term_[t].exponent[i];
          if (j == 0) continue;
          const Multiword<n>& factor = power[i][rest & 1][j];
          value = any ? value * factor : factor;
          any = true;
          rest >>= 1;
        }
        if (dropped) {
          value += Multiword<n>::Of(1) << (dropped - 1);
          value = value >> dropped;
        }
        const int offset = term_[t].offset + v * width;
        value -= ReadField<n>(records, offset, width);
        WriteField<n>(records, offset, width, value);
      }
    }
  }
}

template <int n>
void MaskedPolynomial::ShareWords(bool first, const uint64_t* const* m, int64_t begin,
                                  int64_t end, const uint64_t* records, uint64_t* y) const {
  const int r = factors();
  Multiword<n> given[kMaxTerms], moved[kMaxTerms];
  for (int t = 0; t < terms_; ++t) {
    for (int w = 0; w < n; ++w) given[t].word[w] = coefficients[t * n + w];
  }
  Multiword<n> below = Multiword<n>::Of(1) << drop;  // 2^drop - 1
  below -= Multiword<n>::Of(1);
  for (int64_t e = begin; e < end; ++e, records += record_words_) {
    uint64_t top[kMaxFactors];
    std::memcpy(moved, given, sizeof(Multiword<n>) * terms_);
    for (int i = 0; i < r; ++i) {
      const uint64_t quarter = uint64_t{1} << (bits[i] - 2);
      const uint64_t shifted = m[i][e] + quarter;
      top[i] = shifted >> (bits[i] - 1) & 1;
      const int64_t M = static_cast<int64_t>(shifted & (2 * quarter - 1)) -
                        static_cast<int64_t>(quarter);
      // Taylor's shift along this factor: coefficients of p(M + N) in N.
      const int s = stride_[i], d = degrees[i];
      for (int base = 0; base < terms_; ++base) {
        if (base / s % (d + 1)) continue;
        for (int a = 0; a < d; ++a) {
          for (int j = d - 1; j >= a; --j) moved[base + j * s] += moved[base + (j + 1) * s] * M;
        }
      }
    }
    Multiword<n> z{};
    if (first) z = moved[0];
    for (int t = 1; t < terms_; ++t) {
      const int width = widths[t];
      if (width == 0) continue;
      uint64_t chosen = 0;
      for (int i = 0, place = 0; i < r; ++i) {
        if (term_[t].exponent[i]) chosen |= top[i] << place++;
      }
      Multiword<n> field{};
      for (int v = 0; v < term_[t].variants; ++v) {
        const uint64_t other = chosen ^ static_cast<uint64_t>(v);
        const uint64_t mask = static_cast<uint64_t>(static_cast<int64_t>(other - 1) >> 63);
        const Multiword<n> read = ReadField<n>(records, term_[t].offset + v * width, width);
        for (int w = 0; w < n; ++w) field.word[w] |= read.word[w] & mask;
      }
      z += (field * moved[t]) << (modulus_bits - width);
    }
    if (!first) z += below;  // the ceiling
    y[e] = (z >> drop).word[0];
  }
}

void MaskedPolynomial::Deal(const uint64_t* const* lam, int64_t begin, int64_t end,
                            uint64_t* records) const {
  if (lane_functions_ != nullptr) {
    const int64_t done = lane_functions_->deal(lanes_, lam[0] + begin, end - begin, records);
    begin += done;
    records += done * record_words_;
  }
  switch (limbs()) {
    case 1: return DealWords<1>(lam, begin, end, records);
    case 2: return DealWords<2>(lam, begin, end, records);
    case 3: return DealWords<3>(lam, begin, end, records);
    default: return DealWords<4>(lam, begin, end, records);
  }
}

void MaskedPolynomial::Share(bool first, const uint64_t* const* m, int64_t begin, int64_t end,
                             const uint64_t* records, uint64_t* y) const {
  if (lane_functions_ != nullptr) {
    const int64_t done = lane_functions_->share(lanes_, coefficients.data(), first, m[0] + begin,
                                                end - begin, records, y + begin);
    begin += done;
    records += done * record_words_;
  }
  switch (limbs()) {
    case 1: return ShareWords<1>(first, m, begin, end, records, y);
    case 2: return ShareWords<2>(first, m, begin, end, records, y);
    case 3: return ShareWords<3>(first, m, begin, end, records, y);
    default: return ShareWords<4>(first, m, begin, end, records, y);
  }
}

}  // namespace tfe_bench
