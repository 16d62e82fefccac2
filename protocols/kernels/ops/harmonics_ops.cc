// A periodic function of a masked value in one exchange.
//
// cos(w (m - lam)) = cos(w m) cos(w lam) + sin(w m) sin(w lam), and in the same way the sine: D deals additive
// shares mod 2^L of the cosines and sines of lam, and the evaluators weigh them by those of m.
#include <vector>

#include "protocols/kernels/core/harmonics.h"
#include "protocols/kernels/ops/dealing.h"

namespace tfe_bench {
namespace {

class HarmonicsOp : public FieldsOp {
 public:
  explicit HarmonicsOp(OpKernelConstruction* c) : FieldsOp(c) {
    ReadAttrs(c, "count", &count_, "odd", &odd_, "phase_bits", &phase_bits_, "scale", &scale_,
              "modulus_bits", &modulus_bits_);
    Require(count_ >= 1 && count_ <= kMostHarmonics && odd_ >= 1 && odd_ % 2 == 1 &&
                phase_bits_ >= 1 && phase_bits_ <= 32 && scale_ >= 1 && scale_ < kUnitBits &&
                modulus_bits_ >= 1 && modulus_bits_ <= 62,
            "the parameters of a series do not fit each other");
    fields_ = {{modulus_bits_, 2 * count_}};
  }
  void ReadEvaluator(OpKernelConstruction* c) {
    weights_ = Attr<std::vector<int64_t>>(c, "weights");
    ReadAttrs(c, "drop", &drop_);
    Require(static_cast<int64_t>(weights_.size()) == 2 * count_ + 1 && drop_ >= 1 &&
                drop_ < modulus_bits_,
            "a series expects a constant and two weights for each harmonic");
    for (const int64_t w : weights_) {
      Require(w > -(int64_t{1} << 31) && w < int64_t{1} << 31, "a weight of a series is too large");
    }
  }

  void Deal(OpKernelContext* context, const Call& call) const {
    const int64_t n = context->input(1).NumElements();
    const auto in = InputWords(context, 1, 2, n);
    const Fields message = Write(context, call, fields_, n);
    const int down = kUnitBits - scale_;
    const int64_t half = int64_t{1} << (down - 1);
    Chunks(context, n, kCycles * count_, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t lam[kChunk];
      for (int64_t i = 0; i < count; ++i) lam[i] = in[0][first + i] + in[1][first + i];
      Waves waves(lam, count, odd_, phase_bits_);
      for (int64_t j = 0; j < count_; ++j) {
        if (j > 0) waves.Next();
        const int64_t *cos = waves.cos(), *sin = waves.sin();
        message.PutEach(0, 2 * j, first, count, [&](int64_t i) {
          return static_cast<uint64_t>((cos[i] + half) >> down);
        });
        message.PutEach(0, 2 * j + 1, first, count, [&](int64_t i) {
          return static_cast<uint64_t>((sin[i] + half) >> down);
        });
      }
    });
    message.Record();
  }

  void Share(OpKernelContext* context, const Call& call) const {
    const int64_t n = context->input(1).NumElements();
    const uint64_t* m = InputWords(context, 1, 1, n)[0];
    const Fields dealt = Read(call, fields_, n, context->input(2));
    uint64_t* y = Words(Allocate(context, 0, context->input(1).shape()));
    const bool second = call.role == kE2;
    const int up = 64 - modulus_bits_, down = up + drop_;
    constexpr int64_t half = int64_t{1} << (kUnitBits - 1);
    Chunks(context, n, kCycles * count_, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t cosines[kChunk], sines[kChunk], sum[kChunk];
      const uint64_t constant = second ? static_cast<uint64_t>(weights_[0]) << scale_ : 0;
      std::fill(sum, sum + count, constant);
      Waves waves(m + first, count, odd_, phase_bits_);
      for (int64_t j = 0; j < count_; ++j) {
        if (j > 0) waves.Next();
        dealt.Get(0, 2 * j, first, count, cosines);
        dealt.Get(0, 2 * j + 1, first, count, sines);
        const int64_t a = weights_[2 * j + 1], b = weights_[2 * j + 2];
        const int64_t *cos = waves.cos(), *sin = waves.sin();
        // the same integers at both evaluators, whatever they run on
        for (int64_t i = 0; i < count; ++i) {
          const int64_t even = (a * cos[i] + b * sin[i] + half) >> kUnitBits;
          const int64_t odd = (a * sin[i] - b * cos[i] + half) >> kUnitBits;
          sum[i] += static_cast<uint64_t>(even) * cosines[i] +
                    static_cast<uint64_t>(odd) * sines[i];
        }
      }
      // floor at E1, ceil at E2
      for (int64_t i = 0; i < count; ++i) {
        const int64_t own = static_cast<int64_t>((second ? -sum[i] : sum[i]) << up) >> down;
        y[first + i] = static_cast<uint64_t>(second ? -own : own);
      }
    });
    dealt.Record();
  }

 protected:
  static constexpr int64_t kCycles = 60;

  int count_ = 0, odd_ = 0, phase_bits_ = 0, scale_ = 0, modulus_bits_ = 0, drop_ = 0;
  std::vector<int64_t> weights_;
  std::vector<Field> fields_;
};

#define HARMONICS_ATTRS                                                    \
  TENSOR_ATTRS                                                             \
  "; count: int; odd: int; phase_bits: int; scale: int; modulus_bits: int"

// D: masked cosines and sines of the harmonics of lam, in turn.
TFE_BENCH_CALL_OP("HarmonicsDeal", Dealer<HarmonicsOp>,
    "l1 l2: int64 -> message: uint8", HARMONICS_ATTRS, Outputs<kVector>);

// E1 (dealt is empty) and E2: additive shares of the series / 2^drop, right mod 2^(modulus - drop).
TFE_BENCH_CALL_OP("HarmonicsShare", Evaluator<HarmonicsOp>,
    "m: int64, dealt: uint8 -> share: int64", HARMONICS_ATTRS "; weights: list(int); drop: int",
    Outputs<1>);

}  // namespace
}  // namespace tfe_bench
