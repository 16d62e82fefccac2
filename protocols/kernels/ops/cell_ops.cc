// Cells of pooling windows: taken out of images, and placed back.
#include <algorithm>
#include <vector>

#include "protocols/kernels/ops/register.h"
#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// rows and columns: for each cell of a window along that axis its place in each window, cell by
// cell; cells: which of them, counted row by row, in the order of the result.
#define CELL_ATTRS                \
  Attr("image: list(int)")        \
      .Attr("rows: list(int)")    \
      .Attr("columns: list(int)") \
      .Attr("windows: list(int)") \
      .Attr("cells: list(int)")   \
      .Attr("width: int")

// Images [n, h, w, channels] -> [cells, width]: windows in row-major order, zeros after the last.
REGISTER_OP("TfeBench>TakeCells")
    .Input("x: int64")
    .Output("y: int64")
    .CELL_ATTRS.SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> cells;
      int64_t width;
      TF_RETURN_IF_ERROR(c->GetAttr("cells", &cells));
      TF_RETURN_IF_ERROR(c->GetAttr("width", &width));
      TF_RETURN_IF_ERROR(CheckSizes({static_cast<int64_t>(cells.size()), width}));
      c->set_output(0, c->Matrix(cells.size(), width));
      return absl::OkStatus();
    });

// The transpose of that map: [cells, width] -> images, each place the sum of what lies on it.
REGISTER_OP("TfeBench>PlaceCells")
    .Input("x: int64")
    .Output("y: int64")
    .CELL_ATTRS.SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> image;
      TF_RETURN_IF_ERROR(c->GetAttr("image", &image));
      if (image.size() != 4) return absl::InvalidArgumentError("an image has 4 sizes");
      TF_RETURN_IF_ERROR(CheckSizes(image));
      c->set_output(0, c->MakeShape({c->MakeDim(image[0]), c->MakeDim(image[1]),
                                     c->MakeDim(image[2]), c->MakeDim(image[3])}));
      return absl::OkStatus();
    });

template <bool kTake>
class CellsOp : public Kernel {
 public:
  explicit CellsOp(OpKernelConstruction* c) : Kernel(c) {
    std::vector<int64_t> image, windows;
    OP_REQUIRES_OK(c, c->GetAttr("image", &image));
    OP_REQUIRES_OK(c, c->GetAttr("windows", &windows));
    OP_REQUIRES_OK(c, c->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(c, c->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(c, c->GetAttr("cells", &cells_));
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    bool fits = image.size() == 4 && windows.size() == 2 && windows[0] > 0 && windows[1] > 0 &&
                CheckSizes(image).ok() &&
                CheckSizes({image[0], windows[0], windows[1], image[3]}).ok() &&
                CheckSizes({static_cast<int64_t>(cells_.size()), width_}).ok();
    if (fits) {
      n_ = image[0], h_ = image[1], w_ = image[2], c_ = image[3];
      down_ = windows[0], across_ = windows[1];
      const int64_t kernel_h = static_cast<int64_t>(rows_.size()) / down_;
      kernel_w_ = static_cast<int64_t>(columns_.size()) / across_;
      const auto within = [](const std::vector<int64_t>& v, int64_t end) {
        return std::all_of(v.begin(), v.end(), [end](int64_t i) { return i >= 0 && i < end; });
      };
      fits = kernel_h * down_ == static_cast<int64_t>(rows_.size()) &&
             kernel_w_ * across_ == static_cast<int64_t>(columns_.size()) && within(rows_, h_) &&
             within(columns_, w_) && within(cells_, kernel_h * kernel_w_) &&
             width_ >= n_ * down_ * across_ * c_;
    }
    OP_REQUIRES(c, fits, absl::InvalidArgumentError("the cells do not fit the image"));
  }
  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    TensorShape image, cells;
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape({n_, h_, w_, c_}, &image));
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape(
                                {static_cast<int64_t>(cells_.size()), width_}, &cells));
    OP_REQUIRES(context, x.shape() == (kTake ? image : cells),
                absl::InvalidArgumentError("TfeBench: the cells do not fit the image"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, kTake ? cells : image, &out));
    const uint64_t* from = Words(x);
    uint64_t* to = Words(out);
    if (kTake) {
      const int64_t used = n_ * down_ * across_ * c_;
      for (size_t i = 0; i < cells_.size(); ++i) {
        std::fill_n(to + i * width_ + used, width_ - used, 0);
      }
    }
    const int64_t each = down_ * across_ * c_ * static_cast<int64_t>(cells_.size());
    ParallelRange(context, n_, each + 1, [&](int64_t begin, int64_t end) {
      if (!kTake) std::fill(to + begin * h_ * w_ * c_, to + end * h_ * w_ * c_, 0);
      for (int64_t n = begin; n < end; ++n) {
        for (size_t i = 0; i < cells_.size(); ++i) OneImage(n, i, from, to);
      }
    });
  }

 private:
  void OneImage(int64_t n, size_t i, const uint64_t* from, uint64_t* to) const {
    const int64_t* rows = &rows_[cells_[i] / kernel_w_ * down_];
    const int64_t* columns = &columns_[cells_[i] % kernel_w_ * across_];
    const int64_t base = i * width_ + n * down_ * across_ * c_;
    for (int64_t r = 0; r < down_; ++r) {
      const int64_t line = (n * h_ + rows[r]) * w_;
      for (int64_t q = 0; q < across_; ++q) {
        const int64_t pixel = (line + columns[q]) * c_, cell = base + (r * across_ + q) * c_;
        if (kTake) {
          std::copy_n(from + pixel, c_, to + cell);
        } else {
          for (int64_t c = 0; c < c_; ++c) to[pixel + c] += from[cell + c];
        }
      }
    }
  }

  int64_t n_, h_, w_, c_, down_, across_, kernel_w_, width_;
  std::vector<int64_t> rows_, columns_, cells_;
};

REGISTER_CPU("TakeCells", CellsOp<true>);
REGISTER_CPU("PlaceCells", CellsOp<false>);

}  // namespace
}  // namespace tfe_bench
