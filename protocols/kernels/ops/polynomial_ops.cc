// Kernels around core/polynomial.h: polynomials of masked values in one exchange.
#include <algorithm>
#include <vector>

#include "protocols/kernels/core/polynomial.h"
#include "protocols/kernels/ops/session_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfe_bench {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// Elements that one thread works on at a time: their mask starts on a whole block.
constexpr int64_t kChunk = 64;

class PolynomialOp : public Kernel {
 public:
  PolynomialOp(OpKernelConstruction* c, bool with_coefficients) : Kernel(c), attrs_(c) {
    OP_REQUIRES_OK(c, c->GetAttr("bits", &polynomial_.bits));
    OP_REQUIRES_OK(c, c->GetAttr("degrees", &polynomial_.degrees));
    OP_REQUIRES_OK(c, c->GetAttr("widths", &polynomial_.widths));
    OP_REQUIRES_OK(c, c->GetAttr("modulus_bits", &polynomial_.modulus_bits));
    if (with_coefficients) {
      std::vector<int64_t> words;
      OP_REQUIRES_OK(c, c->GetAttr("coefficients", &words));
      polynomial_.coefficients.assign(words.begin(), words.end());
      OP_REQUIRES_OK(c, c->GetAttr("drop", &polynomial_.drop));
    }
    const std::string wrong = polynomial_.Prepare(with_coefficients);
    OP_REQUIRES(c, wrong.empty(), absl::InvalidArgumentError(wrong));
  }

 protected:
  // The factors' words and their number of elements.
  absl::Status Factors(OpKernelContext* context, const char* input,
                       const uint64_t* words[kMaxFactors], TensorShape* shape) {
    OpInputList list;
    TF_RETURN_IF_ERROR(context->input_list(input, &list));
    if (list.size() != polynomial_.factors()) {
      return absl::InvalidArgumentError("a polynomial wants one tensor for each factor");
    }
    for (int i = 0; i < list.size(); ++i) {
      if (list[i].shape() != list[0].shape()) {
        return absl::InvalidArgumentError("the factors want one shape");
      }
      words[i] = Words(list[i]);
    }
    *shape = list[0].shape();
    return absl::OkStatus();
  }

  int64_t CyclesEach() const {
    return 20 * static_cast<int64_t>(polynomial_.terms()) * polynomial_.terms() +
           40 * polynomial_.record_words();
  }

  // fn(begin, end, mask words of these elements)
  template <typename Fn>
  void WithMasks(OpKernelContext* context, const Call& call, const PrfStream& stream, int64_t n,
                 Fn fn) {
    const int64_t words = polynomial_.record_words();
    ParallelRange(context, (n + kChunk - 1) / kChunk, kChunk * CyclesEach(),
                  [&](int64_t begin, int64_t end) {
                    std::vector<uint64_t> mask(kChunk * words + 1);
                    for (int64_t c = begin; c < end; ++c) {
                      const int64_t first = c * kChunk, last = std::min(n, first + kChunk);
                      FillMask(*call.session, stream, first * words / 2,
                               ((last - first) * words + 1) / 2,
                               reinterpret_cast<uint8_t*>(mask.data()));
                      fn(first, last, mask.data());
                    }
                  });
  }

  MaskAttrs attrs_;
  MaskedPolynomial polynomial_;
};

class PolynomialDealOp : public PolynomialOp {
 public:
  explicit PolynomialDealOp(OpKernelConstruction* c) : PolynomialOp(c, false) {}

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const uint64_t* lam[kMaxFactors];
    TensorShape shape;
    OP_REQUIRES_OK(context, Factors(context, "lam", lam, &shape));
    const int64_t n = shape.num_elements(), words = polynomial_.record_words();
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {n, words}, &out));
    if (n == 0) return;
    PrfStream stream;
    OP_REQUIRES_OK(context, attrs_.Stream(call, n * words * 8, &stream));
    uint64_t* message = Words(out);
    WithMasks(context, call, stream, n, [&](int64_t begin, int64_t end, uint64_t* mask) {
      polynomial_.Deal(lam, begin, end, mask);
      std::copy(mask, mask + (end - begin) * words, message + begin * words);
    });
    call.session->Record(stream, kMasked, message, n * words * 8);
  }
};

class PolynomialShareOp : public PolynomialOp {
 public:
  explicit PolynomialShareOp(OpKernelConstruction* c) : PolynomialOp(c, true) {
    OP_REQUIRES_OK(c, c->GetAttr("first", &first_));
  }

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const uint64_t* m[kMaxFactors];
    TensorShape shape;
    OP_REQUIRES_OK(context, Factors(context, "m", m, &shape));
    const Tensor& dealt = context->input(1);
    const int64_t n = shape.num_elements(), words = polynomial_.record_words();
    OP_REQUIRES(context, first_ || dealt.NumElements() == n * words,
                absl::InvalidArgumentError("a dealt message has the wrong size"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, shape, &out));
    if (n == 0) return;
    uint64_t* y = Words(out);
    if (!first_) {
      const uint64_t* records = Words(dealt);
      ParallelRange(context, n, CyclesEach(), [&](int64_t begin, int64_t end) {
        polynomial_.Share(false, m, begin, end, records + begin * words, y);
      });
      return;
    }
    PrfStream stream;
    OP_REQUIRES_OK(context, attrs_.Stream(call, n * words * 8, &stream));
    WithMasks(context, call, stream, n, [&](int64_t begin, int64_t end, const uint64_t* mask) {
      polynomial_.Share(true, m, begin, end, mask, y);
    });
    if (call.session->recording()) {
      std::vector<uint64_t> mask(n * words + 1);
      FillMask(*call.session, stream, 0, (n * words + 1) / 2,
               reinterpret_cast<uint8_t*>(mask.data()));
      call.session->Record(stream, kShare, mask.data(), n * words * 8);
    }
  }

 private:
  bool first_;
};

#define POLYNOMIAL_ATTRS()     \
      .Attr("factors: int >= 1") \
      .Attr("site: int")         \
      .Attr("tensor: int")       \
      .Attr("dealer: int")       \
      .Attr("key: int")          \
      .Attr("bits: list(int)")   \
      .Attr("degrees: list(int)") \
      .Attr("widths: list(int)") \
      .Attr("modulus_bits: int")

// D: the masked powers of the factors' masks, a record of words for each element.
REGISTER_OP("TfeBench>PolynomialDeal")
    .Input("call: int64")
    .Input("lam: factors * int64")
    .Output("message: int64")
    POLYNOMIAL_ATTRS()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Matrix(c->UnknownDim(), c->UnknownDim()));
      return absl::OkStatus();
    });

// E1 (first; dealt is empty) and E2: unopened shares of the polynomial / 2^drop.
REGISTER_OP("TfeBench>PolynomialShare")
    .Input("call: int64")
    .Input("dealt: int64")
    .Input("m: factors * int64")
    .Output("share: int64")
    POLYNOMIAL_ATTRS()
    .Attr("coefficients: list(int)")
    .Attr("drop: int")
    .Attr("first: bool")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(2));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("TfeBench>PolynomialDeal").Device(tensorflow::DEVICE_CPU),
                        PolynomialDealOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>PolynomialShare").Device(tensorflow::DEVICE_CPU),
                        PolynomialShareOp);

}  // namespace
}  // namespace tfe_bench
