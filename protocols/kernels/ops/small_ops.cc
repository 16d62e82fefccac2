// Choices between two values of a small ring, and sums of the values that bits choose.
//
// A choice even + b (odd - even) over Z_2^k, b = o ^ beta (o known to E1 and E2, beta to D), needs
// shares of beta and beta lam of the difference mod 2^k: k bits each.
#include <algorithm>
#include <vector>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/dealing.h"
#include "protocols/kernels/ops/exchange.h"

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
        return Spread(beta, at) & ((o1 ? o1[at] + o2[at] : 0) - (e1[at] + e2[at]));
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
        const uint64_t m = (odd_m ? odd_m[at] : 0) - even_m[at];
        const uint64_t l = (odd_m ? odd_l[at] : 0) - even_l[at];
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
  // Packed bits and four values of n elements each, the last two null if they are zero.
  static std::vector<const uint64_t*> Operands(OpKernelContext* context, int64_t n) {
    const bool zero = n > 0 && context->input(4).NumElements() == 0;
    auto operands = InputWords(context, 1, 1, PackedWords(n));
    for (const uint64_t* words : InputWords(context, 2, 2, n)) operands.push_back(words);
    for (const uint64_t* words : InputWords(context, 4, 2, zero ? 0 : n)) {
      operands.push_back(zero ? nullptr : words);
    }
    return operands;
  }

  const int bits_;
  const std::vector<Field> fields_;  // beta, beta lam
};

// sum_r b_r x_r over Z_2^k, b_r = o_r ^ beta_r: D deals beta and beta lam of each row.
class SmallPickOp : public FieldsOp {
 public:
  explicit SmallPickOp(OpKernelConstruction* c)
      : FieldsOp(c), bits_(WidthAttr(c, "bits")), rows_(Attr<int>(c, "rows")),
        fields_(2, {bits_, rows_}) {
    Require(rows_ >= 1 && SizesFit({rows_}), "rows must be 1 or more");
  }
  void ReadEvaluator(OpKernelConstruction* c) { ReadAttrs(c, "output_mask", &output_mask_); }

  void Deal(OpKernelContext* context, const Call& call) const {
    const int64_t n = Columns(context);
    const auto l = InputWords(context, 2, 2, rows_ * n);
    const Fields message = Write(context, call, fields_, n);
    const uint64_t *beta = Words(context->input(1)), *x = l[0], *y = l[1];
    Chunks(context, n, 8 * rows_, [&](int64_t first, int64_t count) {
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t at = r * n + first;
        message.PutEach(0, r, first, count, [&](int64_t i) { return Spread(beta, at + i) & 1; });
        message.PutEach(1, r, first, count, [&](int64_t i) {
          return Spread(beta, at + i) & (x[at + i] + y[at + i]);
        });
      }
    });
    message.Record();
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const int64_t n = Columns(context);
    const auto in = InputWords(context, 2, 2, rows_ * n);
    const Fields dealt = Read(call, fields_, n, context->input(4));
    Tensor* out = Allocate(context, 0, {PackedBytes(n, bits_)});
    const PrfStream leaving = OwnStream(call, output_mask_, n);
    const uint64_t *bits = Words(context->input(1)), *m = in[0], *l = in[1];
    const uint64_t second = call.second();
    uint8_t* to = Bytes(out);
    Chunks(context, n, 10 * rows_, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t beta[kChunk], product[kChunk], sum[kChunk];
      Fill(call, leaving, first, count, sum);
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t at = r * n + first;
        dealt.Get(0, r, first, count, beta);
        dealt.Get(1, r, first, count, product);
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t o = Spread(bits, at + i), x = m[at + i];
          const uint64_t flipped = x * beta[i] - product[i];  // share of beta_r x_r
          sum[i] += (((x & second) - l[at + i]) & o) + ((flipped ^ o) - o);
        }
      }
      PackRange(sum, count, bits_, to + first * bits_ / 8, 0, count);
    });
    dealt.Record();
    RecordMasked(call, leaving, *out);
  }

 private:
  // The number of results; the bits must be those of all rows.
  int64_t Columns(OpKernelContext* context) const {
    const int64_t elements = context->input(2).NumElements();
    Require(elements % rows_ == 0 && context->input(1).NumElements() == PackedWords(elements),
            "SmallPick: the sizes do not fit");
    return elements / rows_;
  }

  const int bits_;
  const int64_t rows_;
  const std::vector<Field> fields_;  // beta, beta lam
  int output_mask_ = 0;
};

class AddPackedOp : public Kernel {
 public:
  explicit AddPackedOp(OpKernelConstruction* c) : Kernel(c), width_(WidthAttr(c, "width")) {}
  void Work(OpKernelContext* context) override {
    const TensorShape shape = ShapeFrom(context->input(2));
    const PackedSums sums(context->input(0), context->input(1), shape.num_elements(), width_);
    uint64_t* to = Words(Allocate(context, 0, shape));
    sums.ForEachChunk(context, [&](int64_t first, const uint64_t* words, int64_t count) {
      std::copy(words, words + count, to + first);
    });
  }

 private:
  const int width_;
};

#define SMALL_ATTRS TENSOR_ATTRS "; bits: int"

// The odd values are empty if they are zero.
TFE_BENCH_CALL_OP("SmallSelectDeal", Dealer<SmallSelectOp>,
    "beta even_l1 even_l2 odd_l1 odd_l2: int64 -> message: uint8", SMALL_ATTRS, Outputs<kVector>);

// This evaluator's share under the mask `tensor` + 2, k bits per element.
TFE_BENCH_CALL_OP("SmallSelectShare", Evaluator<SmallSelectOp>,
    "masked_bits even_m even_part odd_m odd_part: int64, dealt: uint8 -> message: uint8",
    SMALL_ATTRS, Outputs<kVector>);

#define PICK_ATTRS SMALL_ATTRS "; rows: int"

// beta: the bits of all rows, packed.
TFE_BENCH_CALL_OP("SmallPickDeal", Dealer<SmallPickOp>,
    "beta l1 l2: int64 -> message: uint8", PICK_ATTRS, Outputs<kVector>);

// This evaluator's share of the sum over the rows under the mask `output_mask`.
TFE_BENCH_CALL_OP("SmallPickShare", Evaluator<SmallPickOp>,
    "masked_bits m part: int64, dealt: uint8 -> message: uint8", PICK_ATTRS "; output_mask: int",
    Outputs<kVector>);

// The sums mod 2^width of packed words.
TFE_BENCH_OP("AddPacked", AddPackedOp,
    "own other: uint8, shape: int64 -> sum: int64", "width: int", ShapeFromInput<2>);

}  // namespace
}  // namespace tfe_bench
