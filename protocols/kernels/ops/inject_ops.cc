// Bit times value, b * x, in one pass: what D deals for it and the evaluators' shares of it.
//
// With b = o ^ beta (o known to E1 and E2, beta to D) and x = m - Lam:
//   b x = o (m - Lam) + (1 - 2o) (m beta - beta Lam).
// Over Z_2^64 Lam = l1 + l2.  For x given mod 2^k only, but to be used over Z_2^64 (k < 64, x >= 0
// where b = 1): as an integer x = m - Lam with Lam = lam - 2^k (1 - msb m) msb(lam), lam = l1 + l2 -
// 2^k om, so that D deals om, msb(lam) and beta msb(lam) mod 2^(64-k) too.
//
// The dealer's message, n elements: beta [8n bytes], beta lam [8n], and for k < 64 om, msb(lam),
// beta msb(lam) packed with 64-k bits each.
//
// From the same five: x of Z_2^k read as signed is m - lam + 2^k c with, for b = [x < 0],
//   c = msb(lam) (1 - b) where msb(m) = 0,   c = -(1 - msb(lam)) b where msb(m) = 1.
//
// With drop = f > 0 x is of Z_2^64, |x| < 2^62 - 2^(f+1), and b x / 2^f is wanted: then all parts
// lose their f low bits first, which leaves (x + 2^62) / 2^f >= 0 (rounded) modulo 2^k, k = 64 - f, as
// above; the evaluators subtract b 2^(62-f).  They also subtract half a unit of the result before
// they drop bits, so that the rounding is 0 in the mean (protocols/ring/backward.py).
//
// n is the number of bits: one per element, or the bits were made for another shape.
#include <string>
#include <vector>

#include "protocols/kernels/ops/dealing.h"
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

#define INJECT_ATTRS TENSOR_ATTRS.Attr("bits: int").Attr("drop: int = 0")

REGISTER_OP("TfeBench>InjectDeal")
    .Input("call: int64")
    .Input("beta: int64")
    .Input("l1: int64")
    .Input("l2: int64")
    .Input("n: int64")
    .Output("message: uint8")
    .INJECT_ATTRS.SetShapeFn(Vectors);

// open: the tensor number of the mask under which the share leaves, -1 to keep it as it is.
// whole: with b = [x < 0], also the share of x itself, read as signed, over Z_2^64 (else nothing).
REGISTER_OP("TfeBench>InjectShare")
    .Input("call: int64")
    .Input("opened: int64")
    .Input("m: int64")
    .Input("part: int64")
    .Input("dealt: uint8")
    .Input("n: int64")
    .Output("share: int64")
    .Output("signed: int64")
    .Attr("open: int")
    .Attr("negate: bool")
    .Attr("whole: bool = false")
    .INJECT_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(2));
      bool whole;
      TF_RETURN_IF_ERROR(c->GetAttr("whole", &whole));
      c->set_output(1, whole ? c->input(2) : c->Vector(0));
      return absl::OkStatus();
    });

constexpr int kParts = 5;  // beta, beta lam, om, msb(lam), beta msb(lam)

class InjectOp : public FieldsOp {
 public:
  explicit InjectOp(OpKernelConstruction* c) : FieldsOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("bits", &bits_));
    OP_REQUIRES(c, bits_ >= 2 && bits_ <= 64, absl::InvalidArgumentError("bits must be 2..64"));
    OP_REQUIRES_OK(c, c->GetAttr("drop", &drop_));
    OP_REQUIRES(c, drop_ == 0 || (drop_ > 0 && bits_ == 64 - drop_),
                absl::InvalidArgumentError("what is dropped must leave `bits` bits"));
    fields_ = {{64}, {64}};
    if (bits_ < 64) fields_.resize(kParts, {64 - bits_});
    ring_ = bits_ == 64 ? ~uint64_t{0} : (uint64_t{1} << bits_) - 1;
  }

 protected:
  // Bits made for another shape may take as many words.
  static absl::Status OneBitEach(const Tensor& size, int64_t elements) {
    int64_t bits;
    TF_RETURN_IF_ERROR(SizeFrom(size, &bits));
    if (bits == elements) return absl::OkStatus();
    return absl::InvalidArgumentError("TfeBench: inject wants one bit per element. Received: " +
                                      std::to_string(bits) + " bits and " +
                                      std::to_string(elements) + " elements.");
  }

  int bits_, drop_;
  uint64_t ring_;
  std::vector<Field> fields_;
};

class InjectDealOp : public InjectOp {
 public:
  using InjectOp::InjectOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsDealer(context, &call));
    const Tensor &beta = context->input(1), &l1 = context->input(2), &l2 = context->input(3);
    const int64_t n = l1.NumElements();
    OP_REQUIRES_OK(context, OneBitEach(context->input(4), n));
    OP_REQUIRES(context, l2.NumElements() == n && beta.NumElements() == (n + 63) / 64,
                absl::InvalidArgumentError("InjectDeal: the sizes do not fit"));
    Fields message;
    OP_REQUIRES_OK(context, Write(context, call, fields_, n, &message));
    if (n == 0) return;
    const uint64_t *b = Words(beta), *x = Words(l1), *y = Words(l2), ring = ring_;
    Chunks(context, n, 12, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t bit[kChunk], lam[kChunk], value[kChunk];
      const auto put = [&](int part, auto value_of) {
        for (int64_t i = 0; i < count; ++i) value[i] = value_of(i);
        message.Put(part, 0, first, count, value);
      };
      for (int64_t i = 0; i < count; ++i) {
        bit[i] = 0 - (b[(first + i) / 64] >> ((first + i) % 64) & 1);
        lam[i] = ((x[first + i] >> drop_) + (y[first + i] >> drop_)) & ring;
      }
      put(0, [&](int64_t i) { return bit[i] & 1; });
      put(1, [&](int64_t i) { return bit[i] & lam[i]; });
      if (bits_ == 64) return;
      put(2, [&](int64_t i) {  // (l1 mod 2^k) + (l2 mod 2^k) = lam + 2^k om
        return ((x[first + i] >> drop_ & ring) + (y[first + i] >> drop_ & ring)) >> bits_;
      });
      put(3, [&](int64_t i) { return lam[i] >> (bits_ - 1); });
      put(4, [&](int64_t i) { return bit[i] & lam[i] >> (bits_ - 1); });
    });
    message.Record();
  }
};

class InjectShareOp : public InjectOp {
 public:
  explicit InjectShareOp(OpKernelConstruction* c) : InjectOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("open", &open_));
    OP_REQUIRES_OK(c, c->GetAttr("negate", &negate_));
    OP_REQUIRES_OK(c, c->GetAttr("whole", &whole_));
    OP_REQUIRES(c, !whole_ || (bits_ < 64 && drop_ == 0),
                absl::InvalidArgumentError("only a small ring's value is read as signed"));
  }
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
    const Tensor &opened = context->input(1), &m = context->input(2), &part = context->input(3);
    const int64_t n = m.NumElements();
    OP_REQUIRES_OK(context, OneBitEach(context->input(5), n));
    OP_REQUIRES(context, part.NumElements() == n && opened.NumElements() == (n + 63) / 64,
                absl::InvalidArgumentError("InjectShare: the sizes do not fit"));
    Fields dealt;
    OP_REQUIRES_OK(context, Read(call, fields_, n, context->input(4), &dealt));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, m.shape(), &out));
    Tensor* read;
    OP_REQUIRES_OK(context, Allocate(context, 1, whole_ ? m.shape() : TensorShape({0}), &read));
    if (n == 0) return;
    PrfStream leaving;
    if (open_ >= 0) OP_REQUIRES_OK(context, OwnStream(call, open_, n, &leaving));
    const uint64_t *bits = Words(opened), *masked = Words(m), *own = Words(part), ring = ring_;
    uint64_t *y = Words(out), *x = Words(read);
    const uint64_t flip = negate_ ? ~uint64_t{0} : 0;
    const uint64_t second = call.role == kE2 ? ~uint64_t{0} : 0;
    const uint64_t lift = drop_ ? (uint64_t{1} << 62) - (uint64_t{1} << (drop_ - 1)) : 0;
    const uint64_t lowered = drop_ ? uint64_t{1} << (62 - drop_) : 0;
    Chunks(context, n, 12, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t given[kParts][kChunk], mask[kChunk];
      for (size_t p = 0; p < fields_.size(); ++p) dealt.Get(p, 0, first, count, given[p]);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t o = 0 - ((bits[(first + i) / 64] ^ flip) >> ((first + i) % 64) & 1);
        const uint64_t taken = (masked[first + i] + lift) >> drop_ & ring;
        const uint64_t v = taken - lowered;
        uint64_t lam = own[first + i] >> drop_ & ring;
        uint64_t product = v * given[0][i] - given[1][i];  // share of beta (m - Lam)
        if (bits_ < 64) {
          const uint64_t low = 1 - (taken >> (bits_ - 1));
          lam -= (given[2][i] + low * given[3][i]) << bits_;
          product += (low * given[4][i]) << bits_;
        }
        const uint64_t known = (v & second) - lam;
        // o x + (1 - 2o) beta x
        y[first + i] = (known & o) + ((product ^ o) - o);
        if (whole_) {
          const uint64_t b = bits[(first + i) / 64] >> ((first + i) % 64) & 1, odd = 0 - b;
          const uint64_t top = given[3][i], both = given[4][i], m_top = 0 - (taken >> (bits_ - 1));
          const uint64_t turned = (both ^ odd) - odd;             // (1 - 2b) beta msb(lam)
          const uint64_t kept = (top & ~odd) - turned;            // msb(lam) (1 - b)
          const uint64_t beta = (b & second) + ((given[0][i] ^ odd) - odd);
          const uint64_t lost = beta - (top & odd) - turned;      // (1 - msb(lam)) b
          const uint64_t c = (kept & ~m_top) - (lost & m_top);
          x[first + i] = (taken & second) - (own[first + i] & ring) + ((given[2][i] + c) << bits_);
        }
      }
      if (open_ < 0) return;
      Fill(call, leaving, first, count, mask);
      for (int64_t i = 0; i < count; ++i) y[first + i] += mask[i];
    });
    dealt.Record();
    if (open_ >= 0) call.session->Record(leaving, kMasked, y, n * 8);
  }

 private:
  int open_;
  bool negate_, whole_;
};

REGISTER_CPU("InjectDeal", InjectDealOp);
REGISTER_CPU("InjectShare", InjectShareOp);

}  // namespace
}  // namespace tfe_bench
