// The dealer's messages, written and read in chunks under masks made on the way: what D knows goes to
// E2 less a mask of K1, and E1 makes the mask.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_DEALING_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_DEALING_H_

#include <algorithm>
#include <vector>

#include "protocols/kernels/ops/chunks.h"
#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {

// What one mask pads: `rows` times n elements of `width` bits, each row on whole bytes.
struct Field {
  int width;
  int64_t rows = 1;
  bool xored = false;  // bits: combined with their mask by XOR
};

// The fields of one message, one after the other.
class Fields {
 public:
  // The dealer: values - mask, packed; `values` is overwritten.
  void Put(int field, int64_t row, int64_t first, int64_t count, uint64_t* values) const;
  // An evaluator's share of a row: E1's from the mask, E2's from the message.
  void Get(int field, int64_t row, int64_t first, int64_t count, uint64_t* out) const;
  // The debug log: at D what was sent, at E1 the masks that became its shares.
  void Record() const;

 private:
  friend class FieldsOp;
  struct Part {
    int width;
    bool xored;
    int64_t offset, row_bytes;  // in the message
    int64_t stride, words;      // in the mask: a row starts on a whole block
    PrfStream stream;
  };
  const Call* call_ = nullptr;
  std::vector<Part> parts_;
  int64_t bytes_ = 0;
  uint8_t* to_ = nullptr;
  const uint8_t* from_ = nullptr;
};

// An op whose dealer's message is fields under the masks tensor, tensor + 1, ...
class FieldsOp : public SiteOp {
 public:
  using SiteOp::SiteOp;

 protected:
  static int64_t MessageBytes(const std::vector<Field>& fields, int64_t n);
  // The dealer's message, as an output of the given shape or as output 0, of bytes.
  absl::Status Write(const Call& call, const std::vector<Field>& fields, int64_t n,
                     tensorflow::Tensor* message, Fields* out) const;
  absl::Status Write(tensorflow::OpKernelContext* context, const Call& call,
                     const std::vector<Field>& fields, int64_t n, Fields* out) const;
  // The evaluators' shares of it; E2's message must have its size.
  absl::Status Read(const Call& call, const std::vector<Field>& fields, int64_t n,
                    const tensorflow::Tensor& message, Fields* out) const;

 private:
  absl::Status Start(const Call& call, const std::vector<Field>& fields, int64_t n,
                     Fields* out) const;
};

// An op whose dealer's message is a record of so many whole words for each element, under one mask.
class RecordsOp : public SiteOp {
 public:
  using SiteOp::SiteOp;

 protected:
  static constexpr int64_t kRun = 128;  // elements at a time: their pads stay in the first-level cache

  // The dealer: fn(pads, begin, end) for runs of elements; `pads` are those of element begin and up.
  template <typename Fn>
  absl::Status Deal(tensorflow::OpKernelContext* context, const Call& call, int64_t n, int64_t words,
                    int64_t cycles_each, uint64_t* message, Fn fn) const {
    PrfStream stream;
    TF_RETURN_IF_ERROR(Stream(call, n * words, &stream));
    WithPads(context, call, stream, n, words, cycles_each, fn);
    call.session->Record(stream, kMasked, message, n * words * 8);
    return absl::OkStatus();
  }
  // An evaluator: the same with its records, E1's from the mask, E2's (`second`) from the message.
  template <typename Fn>
  absl::Status Share(tensorflow::OpKernelContext* context, const Call& call, int64_t n,
                     int64_t words, int64_t cycles_each, const tensorflow::Tensor& dealt,
                     bool second, Fn fn) const {
    if (second) {
      const uint64_t* records = Words(dealt);
      Runs(context, n, cycles_each, [&](int64_t begin, int64_t end) {
        fn(records + begin * words, begin, end);
      });
      return absl::OkStatus();
    }
    PrfStream stream;
    TF_RETURN_IF_ERROR(Stream(call, n * words, &stream));
    WithPads(context, call, stream, n, words, cycles_each, fn);
    RecordShare(call, stream, n * words);
    return absl::OkStatus();
  }

 private:
  template <typename Fn>
  static void Runs(tensorflow::OpKernelContext* context, int64_t n, int64_t cycles_each, Fn fn) {
    ParallelRange(context, (n + kRun - 1) / kRun, cycles_each * kRun, [&](int64_t a, int64_t b) {
      for (int64_t r = a; r < b; ++r) fn(r * kRun, std::min(n, (r + 1) * kRun));
    });
  }
  template <typename Fn>
  static void WithPads(tensorflow::OpKernelContext* context, const Call& call,
                       const PrfStream& stream, int64_t n, int64_t words, int64_t cycles_each,
                       Fn fn) {
    ParallelRange(context, (n + kRun - 1) / kRun, cycles_each * kRun, [&](int64_t a, int64_t b) {
      std::vector<uint64_t> pads(kRun * words + 1);
      for (int64_t r = a; r < b; ++r) {
        const int64_t begin = r * kRun, end = std::min(n, begin + kRun);
        Fill(call, stream, begin * words, (end - begin) * words, pads.data());
        fn(pads.data(), begin, end);
      }
    });
  }
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_DEALING_H_
