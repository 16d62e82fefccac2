#include "protocols/kernels/ops/kernel.h"

#include <sstream>

#include "protocols/kernels/core/memory.h"

namespace tfe_bench {
namespace {

struct Failure : std::exception {
  explicit Failure(const absl::Status& s) : status(s) {}
  const absl::Status status;
};

// Multiplies the sizes; the first that is negative or leads beyond what kernels take, or nullptr.
const int64_t* Excess(const std::vector<int64_t>& dims) {
  int64_t elements = 1;
  for (const int64_t& size : dims) {
    if (size < 0 || __builtin_mul_overflow(elements, std::max<int64_t>(1, size), &elements) ||
        elements > kMostElements) {
      return &size;
    }
  }
  return nullptr;
}

void CheckSizes(const std::vector<int64_t>& dims) {
  const int64_t* excess = Excess(dims);
  if (excess == nullptr) return;
  Require(absl::InvalidArgumentError(
      "TfeBench: a tensor has 2^33 elements or less, and no negative axis. Received: an axis of " +
      std::to_string(*excess)));
}

void CheckShape(const TensorShape& shape) {
  const auto dims = shape.dim_sizes();
  CheckSizes({dims.begin(), dims.end()});
}

void CheckInputs(OpKernelContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) CheckShape(context->input(i).shape());
}

}  // namespace

void Require(const absl::Status& status) {
  if (!status.ok()) throw Failure(status);
}

absl::Status FromException() {
  try {
    throw;
  } catch (const Failure& failure) {
    return failure.status;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("TfeBench: this host's memory does not hold it");
  } catch (const std::exception& error) {
    return absl::InternalError(std::string("TfeBench: ") + error.what());
  }
}

bool SizesFit(const std::vector<int64_t>& dims) { return Excess(dims) == nullptr; }

TensorShape ShapeOf(const std::vector<int64_t>& dims) {
  CheckSizes(dims);
  TensorShape shape;
  Require(TensorShape::BuildTensorShape(dims, &shape));
  return shape;
}

TensorShape ShapeFrom(const Tensor& t) {
  const auto flat = t.flat<int64_t>();
  return ShapeOf({flat.data(), flat.data() + flat.size()});
}

int64_t SizeFrom(const Tensor& t) {
  Require(t.NumElements() == 1, "TfeBench: a size is one number");
  const int64_t size = t.flat<int64_t>()(0);
  if (size >= 0 && size <= kMostElements) return size;
  Require(absl::InvalidArgumentError("TfeBench: a size is 0 to 2^33. Received: " +
                                     std::to_string(size)));
  return 0;
}

void CheckMemory(const std::string& what, uint64_t bytes) {
  if (FitsMemory(bytes)) return;
  Require(absl::ResourceExhaustedError("TfeBench: " + what + " of " + std::to_string(bytes) +
                                       " bytes does not fit into this host's memory"));
}

Tensor* Allocate(OpKernelContext* context, int index, const TensorShape& shape) {
  CheckShape(shape);
  const uint64_t bytes = static_cast<uint64_t>(shape.num_elements()) *
                         tensorflow::DataTypeSize(context->expected_output_dtype(index));
  CheckMemory("a result", bytes);
  Tensor* out;
  Require(context->allocate_output(index, shape, &out));
  return out;
}

Tensor* Allocate(OpKernelContext* context, int index, std::initializer_list<int64_t> dims) {
  return Allocate(context, index, ShapeOf(dims));
}

std::vector<const uint64_t*> InputWords(OpKernelContext* context, int first, int count,
                                        int64_t n) {
  std::vector<const uint64_t*> words;
  for (int i = first; i < first + count; ++i) {
    Require(context->input(i).NumElements() == n, "TfeBench: the sizes do not fit each other");
    words.push_back(Words(context->input(i)));
  }
  return words;
}

int WidthAttr(OpKernelConstruction* c, const char* name) {
  const int width = Attr<int>(c, name);
  Require(width >= 1 && width <= 64, "TfeBench: a width is 1 to 64 bits");
  return width;
}

void AsyncKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  try {
    CheckInputs(context);
    WorkAsync(context, done);
  } catch (const std::exception&) {
    context->SetStatus(FromException());
    done();
  }
}

void Kernel::Compute(OpKernelContext* context) {
  try {
    CheckInputs(context);
    Work(context);
  } catch (const std::exception&) {
    context->SetStatus(FromException());
  }
}

namespace {

// The parts between separators, without blanks around them; empty ones are left out.
std::vector<std::string> Parts(const std::string& text, char separator) {
  std::vector<std::string> found;
  std::istringstream from(text);
  for (std::string part; std::getline(from, part, separator);) {
    const size_t first = part.find_first_not_of(' ');
    if (first == std::string::npos) continue;
    found.push_back(part.substr(first, part.find_last_not_of(' ') - first + 1));
  }
  return found;
}

// Each value of "a b: int64, c: uint8" as "a: int64".
template <typename Fn>
void EachValue(const std::string& text, Fn fn) {
  for (const std::string& values : Parts(text, ',')) {
    const size_t colon = values.find(':');
    for (const std::string& name : Parts(values.substr(0, colon), ' ')) {
      fn(name + values.substr(colon));
    }
  }
}

}  // namespace

tensorflow::register_op::OpDefBuilderWrapper Described(const char* name,
                                                       const std::string& signature,
                                                       const std::string& attributes) {
  tensorflow::register_op::OpDefBuilderWrapper op(name);
  const size_t arrow = signature.find("->");
  EachValue(signature.substr(0, arrow), [&](const std::string& value) { op.Input(value); });
  EachValue(signature.substr(arrow + 2), [&](const std::string& value) { op.Output(value); });
  for (const std::string& attribute : Parts(attributes, ';')) op.Attr(attribute);
  return op;
}

}  // namespace tfe_bench
