#include "protocols/kernels/ops/dealing.h"

#include "protocols/kernels/core/pack.h"

namespace tfe_bench {

void Fields::Put(int field, int64_t row, int64_t first, int64_t count, uint64_t* values) const {
  const Part& part = parts_[field];
  alignas(64) uint64_t mask[kChunk];
  Fill(*call_, part.stream, row * part.stride + first, count, mask);
  if (part.xored) {
    for (int64_t i = 0; i < count; ++i) values[i] ^= mask[i];
  } else {
    for (int64_t i = 0; i < count; ++i) values[i] -= mask[i];
  }
  uint8_t* to = to_ + part.offset + row * part.row_bytes + first * part.width / 8;
  PackRange(values, count, part.width, to, 0, count);
}

void Fields::Get(int field, int64_t row, int64_t first, int64_t count, uint64_t* out) const {
  const Part& part = parts_[field];
  if (call_->role == kE1) return Fill(*call_, part.stream, row * part.stride + first, count, out);
  const uint8_t* from = from_ + part.offset + row * part.row_bytes + first * part.width / 8;
  UnpackRange(from, count, part.width, out, 0, count);
}

void Fields::Record() const {
  for (size_t f = 0; f < parts_.size(); ++f) {
    const Part& part = parts_[f];
    const int64_t end = f + 1 < parts_.size() ? parts_[f + 1].offset : bytes_;
    if (call_->role == kDealer) {
      call_->session->Record(part.stream, kMasked, to_ + part.offset, end - part.offset);
    } else if (call_->role == kE1) {
      RecordShare(*call_, part.stream, part.words);
    }
  }
}

namespace {
int64_t MessageBytes(const std::vector<Field>& fields, int64_t n) {
  int64_t bytes = 0;
  for (const Field& f : fields) bytes += f.rows * PackedBytes(n, f.width);
  return bytes;
}
}  // namespace

Fields FieldsOp::Start(const Call& call, const std::vector<Field>& fields, int64_t n) const {
  Fields out;
  out.call_ = &call;
  int tensor = attrs_.tensor;
  for (const Field& f : fields) {
    const int64_t stride = n + n % 2, row_bytes = PackedBytes(n, f.width);
    out.parts_.push_back({f.width, f.xored, out.bytes_, row_bytes, stride,
                          n ? (f.rows - 1) * stride + n : 0, {}});
    out.bytes_ += f.rows * row_bytes;
    if (call.role != kE2) {
      out.parts_.back().stream = Stream(call, kK1, tensor++, f.rows * stride);
    }
  }
  return out;
}

Fields FieldsOp::Write(const Call& call, const std::vector<Field>& fields, int64_t n,
                       Tensor* message) const {
  Fields out = Start(call, fields, n);
  out.to_ = static_cast<uint8_t*>(message->data());
  return out;
}

Fields FieldsOp::Write(OpKernelContext* context, const Call& call,
                       const std::vector<Field>& fields, int64_t n) const {
  return Write(call, fields, n, Allocate(context, 0, {MessageBytes(fields, n)}));
}

Fields FieldsOp::Read(const Call& call, const std::vector<Field>& fields, int64_t n,
                      const Tensor& message) const {
  Fields out = Start(call, fields, n);
  if (call.role == kE2) {
    Require(message.TotalBytes() == static_cast<size_t>(out.bytes_),
            "TfeBench: a dealt message has the wrong size");
    out.from_ = static_cast<const uint8_t*>(message.data());
  }
  return out;
}

}  // namespace tfe_bench
