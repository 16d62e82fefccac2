// Choices between two values of a small ring.
//
// A choice even + b (odd - even) over Z_2^k, b = o ^ beta (o known to E1 and E2, beta to D), needs
// shares of beta and beta lam of the difference mod 2^k: k bits each.
#include <vector>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/dealing.h"

namespace tfe_bench {
namespace {

class SmallSelectOp : public FieldsOp {
 public:
  explicit SmallSelectOp(OpKernelConstruction* c)
      : FieldsOp(c), bits_(WidthAttr(c, "bits")), fields_(2, {bits_}) {}

  void Deal(OpKernelContext* context, const Call& call) const {
    const int64_t n = context->input(2).NumElements();
    const auto in = Operands(context, n);
    const Fields message = Write(context, call, fields_, n);
    const uint64_t *beta = in[0], *e1 = in[1], *e2 = in[2], *o1 = in[3], *o2 = in[4];
    Chunks(context, n, 8, [&](int64_t first, int64_t count) {
      message.PutEach(0, 0, first, count, [&](int64_t i) { return Spread(beta, first + i) & 1; });
      message.PutEach(1, 0, first, count, [&](int64_t i) {
        const int64_t at = first + i;
        return Spread(beta, at) & ((o1[at] + o2[at]) - (e1[at] + e2[at]));
      });
    });
    message.Record();
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const int64_t n = context->input(2).NumElements();
    const auto in = Operands(context, n);
    const Fields dealt = Read(call, fields_, n, context->input(6));
    Tensor* out = Allocate(context, 0, {PackedBytes(n, bits_)});
    const PrfStream leaving = OwnStream(call, attrs_.tensor + 2, n);
    const uint64_t *masked_bits = in[0], *even_m = in[1], *even_l = in[2], *odd_m = in[3],
                   *odd_l = in[4], second = call.second();
    uint8_t* to = Bytes(out);
    Chunks(context, n, 12, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t given[2][kChunk], mask[kChunk];
      dealt.GetEach(first, count, given);
      Fill(call, leaving, first, count, mask);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i;
        const uint64_t o = Spread(masked_bits, at);
        const uint64_t m = odd_m[at] - even_m[at], l = odd_l[at] - even_l[at];
        const uint64_t flipped = m * given[0][i] - given[1][i];  // share of beta (odd - even)
        mask[i] += ((even_m[at] & second) - even_l[at]) + (((m & second) - l) & o) +
                   ((flipped ^ o) - o);
      }
      PackRange(mask, count, bits_, to + first * bits_ / 8, 0, count);
    });
    dealt.Record();
    RecordMasked(call, leaving, *out);
  }

 protected:
  // Packed bits and four values of n elements each.
  static std::vector<const uint64_t*> Operands(OpKernelContext* context, int64_t n) {
    auto operands = InputWords(context, 1, 1, PackedWords(n));
    for (const uint64_t* words : InputWords(context, 2, 4, n)) operands.push_back(words);
    return operands;
  }

  const int bits_;
  const std::vector<Field> fields_;  // beta, beta lam
};

class AddPackedOp : public Kernel {
 public:
  explicit AddPackedOp(OpKernelConstruction* c) : Kernel(c), width_(WidthAttr(c, "width")) {}
  void Work(OpKernelContext* context) override {
    const TensorShape shape = ShapeFrom(context->input(2));
    const int64_t n = shape.num_elements();
    const Tensor &own = context->input(0), &other = context->input(1);
    Require(own.NumElements() == PackedBytes(n, width_) &&
                other.NumElements() == own.NumElements(),
            "AddPacked: the shape does not fit the bytes");
    const uint8_t *a = Bytes(own), *b = Bytes(other);
    const uint64_t ring = LowBits(width_);
    uint64_t* to = Words(Allocate(context, 0, shape));
    Chunks(context, n, 6, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t x[kChunk], y[kChunk];
      UnpackRange(a + first * width_ / 8, count, width_, x, 0, count);
      UnpackRange(b + first * width_ / 8, count, width_, y, 0, count);
      for (int64_t i = 0; i < count; ++i) to[first + i] = (x[i] + y[i]) & ring;
    });
  }

 private:
  const int width_;
};

#define SMALL_ATTRS TENSOR_ATTRS "; bits: int"

TFE_BENCH_CALL_OP("SmallSelectDeal", Dealer<SmallSelectOp>,
    "beta even_l1 even_l2 odd_l1 odd_l2: int64 -> message: uint8", SMALL_ATTRS, Outputs<kVector>);

// This evaluator's share under the mask `tensor` + 2, k bits per element.
TFE_BENCH_CALL_OP("SmallSelectShare", Evaluator<SmallSelectOp>,
    "masked_bits even_m even_part odd_m odd_part: int64, dealt: uint8 -> message: uint8",
    SMALL_ATTRS, Outputs<kVector>);

// The sums mod 2^width of packed words.
TFE_BENCH_OP("AddPacked", AddPackedOp,
    "own other: uint8, shape: int64 -> sum: int64", "width: int", ShapeFromInput<2>);

}  // namespace
}  // namespace tfe_bench
