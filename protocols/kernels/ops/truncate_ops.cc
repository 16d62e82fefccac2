// Truncation that never fails (T3, protocols/ring/truncation.py), each party's part in one pass.
//
// With r = l1 + l2 mod 2^64 and c = m + 2^62 the value is, for |x| < 2^62,
//   x / 2^f = (c >> f) - (r >> f) + 2^(64-f) msb(r) (1 - msb(c)) - 2^(62-f), rounded.
// D's message, n elements: (r >> f) - F(K1, 0) [8n bytes], msb(r) - F(K1, 1) packed with f bits
// each.  The evaluators open (1 - msb(c)) msb(r) mod 2^f under F(K1, 2) and F(K2, 2).
#include <vector>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/dealing.h"
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("TfeBench>TruncateDeal")
    .Input("call: int64")
    .Input("l1: int64")
    .Input("l2: int64")
    .Output("message: uint8")
    .Output("first: int64")
    .Output("second: int64")
    .SITE_ATTRS.Attr("drop: int")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->input(1));
      c->set_output(2, c->input(1));
      return absl::OkStatus();
    });

// dealt: D's message at E2, empty at E1.  own: what is sent; part: this evaluator's new l1 or l2.
REGISTER_OP("TfeBench>TruncateShare")
    .Input("call: int64")
    .Input("m: int64")
    .Input("dealt: uint8")
    .Output("own: uint8")
    .Output("part: int64")
    .SITE_ATTRS.Attr("drop: int")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->input(1));
      return absl::OkStatus();
    });

REGISTER_OP("TfeBench>TruncateOpen")
    .Input("m: int64")
    .Input("own: uint8")
    .Input("got: uint8")
    .Output("opened: int64")
    .Attr("drop: int")
    .SetShapeFn(LikeInput<0>);

constexpr uint64_t kHalf = uint64_t{1} << 62;
constexpr int kFresh = 2;  // the number of the result's masks

absl::Status ReadDrop(OpKernelConstruction* c, int* drop) {
  TF_RETURN_IF_ERROR(c->GetAttr("drop", drop));
  if (*drop >= 1 && *drop <= 62) return absl::OkStatus();
  return absl::InvalidArgumentError("drop must be 1..62");
}

class TruncateOp : public FieldsOp {
 public:
  explicit TruncateOp(OpKernelConstruction* c) : FieldsOp(c) {
    OP_REQUIRES_OK(c, ReadDrop(c, &drop_));
    fields_ = {{64}, {drop_}};
  }

 protected:
  int drop_;
  std::vector<Field> fields_;  // r >> f, msb(r)
};

class TruncateDealOp : public TruncateOp {
 public:
  using TruncateOp::TruncateOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsDealer(context, &call));
    const Tensor &l1 = context->input(1), &l2 = context->input(2);
    const int64_t n = l1.NumElements();
    OP_REQUIRES(context, l2.NumElements() == n,
                absl::InvalidArgumentError("TruncateDeal: the sizes do not fit"));
    Fields message;
    Tensor *first, *second;
    OP_REQUIRES_OK(context, Write(context, call, fields_, n, &message));
    OP_REQUIRES_OK(context, Allocate(context, 1, l1.shape(), &first));
    OP_REQUIRES_OK(context, Allocate(context, 2, l1.shape(), &second));
    if (n == 0) return;
    PrfStream own1, own2;
    OP_REQUIRES_OK(context, Stream(call, kK1, kFresh, n, &own1));
    OP_REQUIRES_OK(context, Stream(call, kK2, kFresh, n, &own2));
    const uint64_t *x = Words(l1), *y = Words(l2);
    uint64_t *p = Words(first), *q = Words(second);
    const int up = 64 - drop_;
    Chunks(context, n, 8, [&](int64_t begin, int64_t count) {
      alignas(64) uint64_t c[kChunk], d[kChunk], word[kChunk], bit[kChunk];
      Fill(call, own1, begin, count, c);
      Fill(call, own2, begin, count, d);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t r = x[begin + i] + y[begin + i];
        word[i] = r >> drop_;
        bit[i] = r >> 63;
        p[begin + i] = word[i] + (c[i] << up);
      }
      message.Put(0, 0, begin, count, word);
      message.Put(1, 0, begin, count, bit);
      for (int64_t i = 0; i < count; ++i) {
        p[begin + i] -= word[i];  // what is left is E1's mask
        q[begin + i] = word[i] + (d[i] << up);
      }
    });
    message.Record();
    RecordShare(call, own1, n);
    RecordShare(call, own2, n);
  }
};

class TruncateShareOp : public TruncateOp {
 public:
  using TruncateOp::TruncateOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
    const Tensor& m = context->input(1);
    const int64_t n = m.NumElements();
    Fields dealt;
    OP_REQUIRES_OK(context, Read(call, fields_, n, context->input(2), &dealt));
    Tensor *own, *part;
    OP_REQUIRES_OK(context, Allocate(context, 0, {PackedBytes(n, drop_)}, &own));
    OP_REQUIRES_OK(context, Allocate(context, 1, m.shape(), &part));
    if (n == 0) return;
    PrfStream leaving;
    OP_REQUIRES_OK(context, OwnStream(call, kFresh, n, &leaving));
    const uint64_t* masked = Words(m);
    uint64_t* y = Words(part);
    uint8_t* to = own->flat<uint8_t>().data();
    const int up = 64 - drop_;
    Chunks(context, n, 8, [&](int64_t begin, int64_t count) {
      alignas(64) uint64_t u[kChunk], b[kChunk], pad[kChunk];
      dealt.Get(0, 0, begin, count, u);
      dealt.Get(1, 0, begin, count, b);
      Fill(call, leaving, begin, count, pad);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t low = 1 - ((masked[begin + i] + kHalf) >> 63);
        y[begin + i] = u[i] + (pad[i] << up);
        pad[i] += low * b[i];
      }
      PackRange(pad, count, drop_, to + begin * drop_ / 8, 0, count);
    });
    dealt.Record();
    call.session->Record(leaving, kMasked, to, PackedBytes(n, drop_));
  }
};

class TruncateOpenOp : public Kernel {
 public:
  explicit TruncateOpenOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, ReadDrop(c, &drop_));
  }
  void Work(OpKernelContext* context) override {
    const Tensor &m = context->input(0), &own = context->input(1), &got = context->input(2);
    const int64_t n = m.NumElements();
    OP_REQUIRES(context,
                own.NumElements() == PackedBytes(n, drop_) && got.NumElements() == own.NumElements(),
                absl::InvalidArgumentError("TruncateOpen: the sizes do not fit"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, m.shape(), &out));
    if (n == 0) return;
    const uint64_t* masked = Words(m);
    const uint8_t *mine = own.flat<uint8_t>().data(), *theirs = got.flat<uint8_t>().data();
    uint64_t* y = Words(out);
    const int up = 64 - drop_;
    Chunks(context, n, 8, [&](int64_t begin, int64_t count) {
      alignas(64) uint64_t a[kChunk], b[kChunk];
      UnpackRange(mine + begin * drop_ / 8, count, drop_, a, 0, count);
      UnpackRange(theirs + begin * drop_ / 8, count, drop_, b, 0, count);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t c = masked[begin + i] + kHalf;
        y[begin + i] = (c >> drop_) + ((a[i] + b[i]) << up) - (kHalf >> drop_);
      }
    });
  }

 private:
  int drop_;
};

REGISTER_CPU("TruncateDeal", TruncateDealOp);
REGISTER_CPU("TruncateShare", TruncateShareOp);
REGISTER_CPU("TruncateOpen", TruncateOpenOp);

}  // namespace
}  // namespace tfe_bench
