// Kernels around core/polynomial.h: polynomials of masked values in one exchange.
#include <algorithm>
#include <string>
#include <vector>

#include "protocols/kernels/core/polynomial.h"
#include "protocols/kernels/ops/dealing.h"
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

class PolynomialOp : public RecordsOp {
 public:
  PolynomialOp(OpKernelConstruction* c, bool with_coefficients) : RecordsOp(c) {
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

  MaskedPolynomial polynomial_;
};

class PolynomialDealOp : public PolynomialOp {
 public:
  explicit PolynomialDealOp(OpKernelConstruction* c) : PolynomialOp(c, false) {}

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsDealer(context, &call));
    const uint64_t* lam[kMaxFactors];
    TensorShape shape;
    OP_REQUIRES_OK(context, Factors(context, "lam", lam, &shape));
    const int64_t n = shape.num_elements(), words = polynomial_.record_words();
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {n, words}, &out));
    if (n == 0) return;
    uint64_t* message = Words(out);
    const auto deal = [&](uint64_t* mask, int64_t begin, int64_t end) {
      polynomial_.Deal(lam, begin, end, mask);
      std::copy(mask, mask + (end - begin) * words, message + begin * words);
    };
    OP_REQUIRES_OK(context, Deal(context, call, n, words, CyclesEach(), message, deal));
  }
};

class PolynomialShareOp : public PolynomialOp {
 public:
  explicit PolynomialShareOp(OpKernelConstruction* c) : PolynomialOp(c, true) {
    OP_REQUIRES_OK(c, c->GetAttr("first", &first_));
  }

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
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
    const auto work = [&](const uint64_t* records, int64_t begin, int64_t end) {
      polynomial_.Share(first_, m, begin, end, records, y);
    };
    OP_REQUIRES_OK(context, Share(context, call, n, words, CyclesEach(), dealt, !first_, work));
  }

 private:
  bool first_;
};

#define POLYNOMIAL_ATTRS             \
  MASK_ATTRS.Attr("factors: int >= 1") \
      .Attr("bits: list(int)")       \
      .Attr("degrees: list(int)")    \
      .Attr("widths: list(int)")     \
      .Attr("modulus_bits: int")

// D: the masked powers of the factors' masks, a record of words for each element.
REGISTER_OP("TfeBench>PolynomialDeal")
    .Input("call: int64")
    .Input("lam: factors * int64")
    .Output("message: int64")
    .POLYNOMIAL_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Matrix(c->UnknownDim(), c->UnknownDim()));
      return absl::OkStatus();
    });

// E1 (first; dealt is empty) and E2: unopened shares of the polynomial / 2^drop.
REGISTER_OP("TfeBench>PolynomialShare")
    .Input("call: int64")
    .Input("dealt: int64")
    .Input("m: factors * int64")
    .Output("share: int64")
    .POLYNOMIAL_ATTRS.Attr("coefficients: list(int)")
    .Attr("drop: int")
    .Attr("first: bool")
    .SetShapeFn(LikeInput<2>);

REGISTER_CPU("PolynomialDeal", PolynomialDealOp);
REGISTER_CPU("PolynomialShare", PolynomialShareOp);

}  // namespace
}  // namespace tfe_bench
