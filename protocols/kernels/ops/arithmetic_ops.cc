// Ring matrix products, packing of short words, fixed point.
#include <algorithm>
#include <cstring>
#include <vector>

#include "protocols/kernels/core/fixedpoint.h"
#include "protocols/kernels/core/gemm.h"
#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/kernel.h"

namespace tfe_bench {
namespace {

// Where each of the products of a batch begins: leading dimensions broadcast as TensorFlow's.
class Batches {
 public:
  // Both shapes without their last two dimensions; false if they do not broadcast, or to too many.
  bool Init(const TensorShape& a, const TensorShape& b) {
    const int rank = std::max(a.dims(), b.dims()) - 2;
    for (int i = 0; i < rank; ++i) {
      const int in_a = i - (rank + 2 - a.dims()), in_b = i - (rank + 2 - b.dims());
      const int64_t of_a = in_a < 0 ? 1 : a.dim_size(in_a), of_b = in_b < 0 ? 1 : b.dim_size(in_b);
      if (of_a != of_b && of_a != 1 && of_b != 1) return false;
      const int64_t size = of_a == 1 ? of_b : of_a;
      dims_.push_back({size, of_a == 1, of_b == 1});
      lead_.push_back(size);
      b_is_one_ = b_is_one_ && of_b == 1;
      a_is_full_ = a_is_full_ && of_a == size;
    }
    if (!SizesFit(lead_)) return false;
    for (const int64_t size : lead_) count_ *= size;
    return true;
  }
  const std::vector<int64_t>& lead() const { return lead_; }
  int64_t count() const { return count_; }
  // All products share one b, and the rows of a follow each other: one taller product.
  bool one_product() const { return b_is_one_ && a_is_full_; }

  // Which matrix of a and which of b product `s` takes.
  void Find(int64_t s, int64_t* of_a, int64_t* of_b) const {
    int64_t step_a = 1, step_b = 1;
    *of_a = *of_b = 0;
    for (size_t i = dims_.size(); i-- > 0;) {
      const Dim& d = dims_[i];
      const int64_t at = s % d.size;
      s /= d.size;
      if (!d.a_repeats) *of_a += at * step_a, step_a *= d.size;
      if (!d.b_repeats) *of_b += at * step_b, step_b *= d.size;
    }
  }

 private:
  struct Dim {
    int64_t size;
    bool a_repeats, b_repeats;
  };
  std::vector<Dim> dims_;
  std::vector<int64_t> lead_;
  int64_t count_ = 1;
  bool b_is_one_ = true, a_is_full_ = true;
};

class RingMatMulOp : public Kernel {
 public:
  explicit RingMatMulOp(OpKernelConstruction* c) : Kernel(c), bits_(WidthAttr(c, "bits")) {}

  void Work(OpKernelContext* context) override {
    OpInputList a, b;
    Require(context->input_list("a", &a));
    Require(context->input_list("b", &b));
    const int a_dims = a[0].dims(), b_dims = b[0].dims();
    Require(a_dims >= 2 && b_dims >= 2, "RingMatMul expects two tensors of rank >= 2");
    const int64_t k = a[0].dim_size(a_dims - 1), n = b[0].dim_size(b_dims - 1);
    int64_t m = a[0].dim_size(a_dims - 2);
    Batches batches;
    bool fits = b[0].dim_size(b_dims - 2) == k && batches.Init(a[0].shape(), b[0].shape());
    for (int i = 0; i < a.size(); ++i) {
      fits = fits && a[i].shape() == a[0].shape() && b[i].shape() == b[0].shape();
    }
    Require(fits, "RingMatMul: the shapes do not fit each other");
    std::vector<int64_t> dims = batches.lead();
    dims.insert(dims.end(), {m, n});
    uint64_t* c = Words(Allocate(context, 0, ShapeOf(dims)));
    int64_t count = batches.count();
    if (count == 0) return;
    if (batches.one_product()) {
      m *= count;
      count = 1;
    }
    const ParallelFor parallel = ParallelIn(context);
    const auto products = [&](int64_t begin, int64_t end, const ParallelFor& inner) {
      for (int64_t s = begin; s < end; ++s) {
        int64_t of_a, of_b;
        batches.Find(s, &of_a, &of_b);
        for (int i = 0; i < a.size(); ++i) {
          Gemm(bits_, m, n, k, Words(a[i]) + of_a * m * k, k, Words(b[i]) + of_b * k * n, n,
               c + s * m * n, n, i > 0, inner);
        }
      }
    };
    constexpr int64_t kMany = 8;  // products that keep all threads busy, each by one thread
    if (count < kMany) {
      products(0, count, parallel);
    } else {
      parallel(count, a.size() * m * n * k / 8 + 200,
               [&](int64_t begin, int64_t end) { products(begin, end, Serial); });
    }
  }

 private:
  const int bits_;
};

class WideMulOp : public Kernel {
 public:
  using Kernel::Kernel;
  void Work(OpKernelContext* context) override {
    const Tensor &a = context->input(0), &b = context->input(1);
    Require(a.shape() == b.shape() && a.dims() > 0 && a.dim_size(a.dims() - 1) == 2,
            "WideMul expects two tensors [..., 2] of one shape");
    const uint64_t *p = Words(a), *q = Words(b);
    uint64_t* r = Words(Allocate(context, 0, a.shape()));
    for (int64_t i = 0; i < a.NumElements(); i += 2) {
      unsigned __int128 u, v;
      std::memcpy(&u, p + i, 16);
      std::memcpy(&v, q + i, 16);
      u *= v;
      std::memcpy(r + i, &u, 16);
    }
  }
};

class RunningSumOp : public Kernel {
 public:
  explicit RunningSumOp(OpKernelConstruction* c) : Kernel(c) {
    ReadAttrs(c, "exclusive", &exclusive_, "reverse", &reverse_);
  }

  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Require(x.dims() == 3, "RunningSum expects x [rows, n, words]");
    const int64_t n = x.dim_size(1), words = x.dim_size(2);
    const uint64_t* in = Words(x);
    uint64_t* out = Words(Allocate(context, 0, x.shape()));
    ParallelRange(context, x.dim_size(0) * words, 2 * n, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        const int64_t first = s / words * n * words + s % words;
        uint64_t sum = 0;
        for (int64_t i = 0; i < n; ++i) {
          const int64_t at = first + (reverse_ ? n - 1 - i : i) * words;
          const uint64_t before = sum;
          sum += in[at];
          out[at] = exclusive_ ? before : sum;
        }
      }
    });
  }

 private:
  bool exclusive_, reverse_;
};

class WidthOp : public Kernel {
 public:
  explicit WidthOp(OpKernelConstruction* c) : Kernel(c), width_(WidthAttr(c, "width")) {}

 protected:
  // Runs fn(begin, end) over n elements.  Groups of eight end on a byte boundary, so that they can
  // be worked on alone.
  template <typename Fn>
  static void Groups(OpKernelContext* context, int64_t n, Fn fn) {
    ParallelRange(context, (n + 7) / 8, 8,
                  [&](int64_t begin, int64_t end) { fn(8 * begin, 8 * end); });
  }
  const int width_;
};

class PackWordsOp : public WidthOp {
 public:
  using WidthOp::WidthOp;
  void Work(OpKernelContext* context) override {
    const int64_t n = context->input(0).NumElements();
    const uint64_t* x = Words(context->input(0));
    uint8_t* packed = Bytes(Allocate(context, 0, {PackedBytes(n, width_)}));
    Groups(context, n, [&](int64_t begin, int64_t end) {
      PackRange(x, n, width_, packed, begin, end);
    });
  }
};

class UnpackWordsOp : public WidthOp {
 public:
  using WidthOp::WidthOp;
  void Work(OpKernelContext* context) override {
    const Tensor& packed = context->input(0);
    const int64_t n = SizeFrom(context->input(1));
    Require(PackedBytes(n, width_) == packed.NumElements(),
            "UnpackWords: n does not fit the bytes");
    uint64_t* x = Words(Allocate(context, 0, {n}));
    Groups(context, n, [&](int64_t begin, int64_t end) {
      UnpackRange(Bytes(packed), n, width_, x, begin, end);
    });
  }
};

template <bool kEncode>
class FixedOp : public Kernel {
 public:
  explicit FixedOp(OpKernelConstruction* c)
      : Kernel(c), fractional_bits_(Attr<int>(c, "fractional_bits")) {}
  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const int64_t n = x.NumElements();
    Tensor* out = Allocate(context, 0, x.shape());
    if (!kEncode) {
      return DecodeFixed(Words(x), n, fractional_bits_, out->flat<double>().data());
    }
    const int64_t bad = EncodeFixed(x.flat<double>().data(), n, fractional_bits_, Words(out));
    if (bad >= 0) {
      Require(absl::OutOfRangeError("TfeBench: element " + std::to_string(bad) +
                                    " is NaN, Inf or outside the fixed-point range"));
    }
  }

 private:
  const int fractional_bits_;
};

void MatMulShape(InferenceContext* c) {
  ShapeHandle a, b;
  Require(c->WithRankAtLeast(c->input(0), 2, &a));
  Require(c->WithRankAtLeast(c->input(Attr<int>(c, "N")), 2, &b));
  if (!c->RankKnown(a) || !c->RankKnown(b)) return c->set_output(0, c->UnknownShape());
  DimensionHandle unused;
  Require(c->Merge(c->Dim(a, -1), c->Dim(b, -2), &unused));
  ShapeHandle left, right, lead, out;
  Require(c->Subshape(a, 0, -2, &left));
  Require(c->Subshape(b, 0, -2, &right));
  Require(tensorflow::shape_inference::BroadcastBinaryOpOutputShapeFnHelper(
      c, left, right, /*incompatible_shape_error=*/true, &lead));
  Require(c->Concatenate(lead, c->Matrix(c->Dim(a, -2), c->Dim(b, -1)), &out));
  c->set_output(0, out);
}

// Sum over i of a_i @ b_i, of which the low `bits` bits are right; leading dimensions are batches,
// which broadcast.
TFE_BENCH_OP("RingMatMul", RingMatMulOp,
    "a b: N * int64 -> c: int64", "N: int >= 1; bits: int = 64", Infer<MatMulShape>);

// Sums of x over its second dimension, up to each place, modulo 2^64.
TFE_BENCH_OP("RunningSum", RunningSumOp,
    "x: int64 -> y: int64", "exclusive: bool; reverse: bool", Outputs<0>);

// a * b mod 2^128 on pairs of words [..., 2], low word first.
TFE_BENCH_OP("WideMul", WideMulOp,
    "a b: int64 -> c: int64", "", Outputs<0>);

void PackWordsShape(InferenceContext* c) {
  const DimensionHandle n = c->NumElements(c->input(0));
  const int64_t width = Attr<int>(c, "width");
  c->set_output(0, c->Vector(c->ValueKnown(n) ? c->MakeDim(PackedBytes(c->Value(n), width))
                                              : c->UnknownDim()));
}

// The low `width` bits of each word, back to back, little endian.
TFE_BENCH_OP("PackWords", PackWordsOp,
    "x: int64 -> packed: uint8", "width: int", Infer<PackWordsShape>);
TFE_BENCH_OP("UnpackWords", UnpackWordsOp,
    "packed: uint8, n: int64 -> x: int64", "width: int", Outputs<kVector>);

TFE_BENCH_OP("EncodeFixed", FixedOp<true>,
    "x: float64 -> ring: int64", "fractional_bits: int", Outputs<0>);
TFE_BENCH_OP("DecodeFixed", FixedOp<false>,
    "ring: int64 -> x: float64", "fractional_bits: int", Outputs<0>);

}  // namespace
}  // namespace tfe_bench
