// Kernels around core/polynomial.h: polynomials of masked values in one exchange.
#include <algorithm>
#include <string>
#include <vector>

#include "protocols/kernels/core/polynomial.h"
#include "protocols/kernels/ops/dealing.h"

namespace tfe_bench {
namespace {

class PolynomialOp : public RecordsOp {
 public:
  explicit PolynomialOp(OpKernelConstruction* c) : RecordsOp(c) {
    ReadAttrs(c, "bits", &polynomial_.bits, "degrees", &polynomial_.degrees, "widths",
              &polynomial_.widths, "modulus_bits", &polynomial_.modulus_bits);
  }
  void ReadDealer(OpKernelConstruction*) { Prepare(false); }
  void ReadEvaluator(OpKernelConstruction* c) {
    const auto words = Attr<std::vector<int64_t>>(c, "coefficients");
    polynomial_.coefficients.assign(words.begin(), words.end());
    ReadAttrs(c, "drop", &polynomial_.drop);
    Prepare(true);
  }

  void Deal(OpKernelContext* context, const Call& call) const {
    const auto lam = Factors(context, 1);
    const int64_t n = context->input(1).NumElements(), words = polynomial_.record_words();
    Tensor* out = Allocate(context, 0, {n, words});
    uint64_t* message = Words(out);
    DealRecords(context, call, n, words, CyclesEach(), *out,
                [&](uint64_t* mask, int64_t begin, int64_t end) {
                  polynomial_.Deal(lam.data(), begin, end, mask);
                  std::copy(mask, mask + (end - begin) * words, message + begin * words);
                });
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const auto m = Factors(context, 2);
    const TensorShape& shape = context->input(2).shape();
    uint64_t* y = Words(Allocate(context, 0, shape));
    ShareRecords(context, call, shape.num_elements(), polynomial_.record_words(), CyclesEach(),
                 context->input(1), [&](const uint64_t* records, int64_t begin, int64_t end) {
                   polynomial_.Share(call.role == kE1, m.data(), begin, end, records, y);
                 });
  }

 protected:
  void Prepare(bool with_coefficients) {
    const std::string wrong = polynomial_.Prepare(with_coefficients);
    Require(wrong.empty(), wrong.c_str());
  }

  // The words of the factors, which are all inputs from `first` on.
  std::vector<const uint64_t*> Factors(OpKernelContext* context, int first) const {
    const int count = context->num_inputs() - first;
    Require(count == polynomial_.factors(), "a polynomial expects one tensor for each factor");
    for (int i = 1; i < count; ++i) {
      Require(context->input(first + i).shape() == context->input(first).shape(),
              "the factors want one shape");
    }
    return InputWords(context, first, count, context->input(first).NumElements());
  }

  int64_t CyclesEach() const {
    return 20 * static_cast<int64_t>(polynomial_.terms()) * polynomial_.terms() +
           40 * polynomial_.record_words();
  }

  MaskedPolynomial polynomial_;
};

#define POLYNOMIAL_ATTRS                                                          \
  MASK_ATTRS                                                                      \
  "; factors: int >= 1; bits: list(int); degrees: list(int); widths: list(int); " \
  "modulus_bits: int"

void RecordsShape(InferenceContext* c) {
  c->set_output(0, c->Matrix(c->UnknownDim(), c->UnknownDim()));
}

// D: the masked powers of the factors' masks, a record of words for each element.
TFE_BENCH_CALL_OP("PolynomialDeal", Dealer<PolynomialOp>,
    "lam: factors * int64 -> message: int64", POLYNOMIAL_ATTRS, Infer<RecordsShape>);

// E1 (dealt is empty) and E2: additive shares of the polynomial / 2^drop.
TFE_BENCH_CALL_OP("PolynomialShare", Evaluator<PolynomialOp>,
    "dealt: int64, m: factors * int64 -> share: int64",
    POLYNOMIAL_ATTRS "; coefficients: list(int); drop: int", Outputs<2>);

}  // namespace
}  // namespace tfe_bench
