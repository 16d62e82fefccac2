// Cells of pooling windows: taken out of images, and placed back.
#include <algorithm>
#include <vector>

#include "protocols/kernels/ops/kernel.h"

namespace tfe_bench {
namespace {

using Sizes = std::vector<int64_t>;

// [cells, width] and [n, h, w, channels].
template <typename Context>
TensorShape CellsShape(Context* c) {
  const auto cells = Attr<Sizes>(c, "cells");
  return ShapeOf({static_cast<int64_t>(cells.size()), Attr<int64_t>(c, "width")});
}
template <typename Context>
TensorShape ImageShape(Context* c) {
  const auto image = Attr<Sizes>(c, "image");
  Require(image.size() == 4, "an image has 4 sizes");
  return ShapeOf(image);
}

template <bool kTake>
class CellsOp : public Kernel {
 public:
  explicit CellsOp(OpKernelConstruction* c)
      : Kernel(c), shape_(CellsShape(c)), image_(ImageShape(c)) {
    const auto windows = Attr<Sizes>(c, "windows");
    ReadAttrs(c, "rows", &rows_, "columns", &columns_, "cells", &cells_, "width", &width_);
    n_ = image_.dim_size(0), h_ = image_.dim_size(1), w_ = image_.dim_size(2);
    c_ = image_.dim_size(3);
    bool fits = windows.size() == 2 && windows[0] > 0 && windows[1] > 0 &&
                SizesFit({n_, windows[0], windows[1], c_});
    if (fits) {
      down_ = windows[0], across_ = windows[1];
      const int64_t kernel_h = static_cast<int64_t>(rows_.size()) / down_;
      kernel_w_ = static_cast<int64_t>(columns_.size()) / across_;
      const auto within = [](const Sizes& v, int64_t end) {
        return std::all_of(v.begin(), v.end(), [end](int64_t i) { return i >= 0 && i < end; });
      };
      fits = kernel_h * down_ == static_cast<int64_t>(rows_.size()) &&
             kernel_w_ * across_ == static_cast<int64_t>(columns_.size()) && within(rows_, h_) &&
             within(columns_, w_) && within(cells_, kernel_h * kernel_w_) &&
             width_ >= n_ * down_ * across_ * c_;
    }
    Require(fits, "the cells do not fit the image");
  }
  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Require(x.shape() == (kTake ? image_ : shape_), "the cells do not fit the image");
    const uint64_t* from = Words(x);
    uint64_t* to = Words(Allocate(context, 0, kTake ? shape_ : image_));
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

  const TensorShape shape_, image_;
  int64_t n_, h_, w_, c_, down_, across_, kernel_w_, width_;
  Sizes rows_, columns_, cells_;
};

// rows and columns: for each cell of a window along that axis its place in each window, cell by
// cell; cells: which of them, counted row by row, in the order of the result.
#define CELL_ATTRS                                                              \
  "image: list(int); rows: list(int); columns: list(int); windows: list(int); " \
  "cells: list(int); width: int"

// Images [n, h, w, channels] -> [cells, width]: windows in row-major order, zeros after the last.
TFE_BENCH_OP("TakeCells", CellsOp<true>,
    "x: int64 -> y: int64", CELL_ATTRS, OutputShape<CellsShape>);

// The transpose of that map: [cells, width] -> images, each place the sum of what lies on it.
TFE_BENCH_OP("PlaceCells", CellsOp<false>,
    "x: int64 -> y: int64", CELL_ATTRS, OutputShape<ImageShape>);

}  // namespace
}  // namespace tfe_bench
