// A convolution and its gradients match the definition, whatever the shapes and the division of work.
#include "protocols/kernels/core/conv.h"

#include <cstdint>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/kernels/check.h"
#include "tests/kernels/ways.h"

namespace {

using tfe_bench::ConvShape;
using tfe_bench::ParallelFor;
using tfe_bench::Serial;

constexpr uint64_t kSeed = 20240611;

// Out sizes for a padding of `bottom` and `right` beyond the shape's own.
void SetOut(ConvShape* s, int64_t bottom, int64_t right) {
  const auto size = [](int64_t in, int64_t kernel, int64_t stride, int64_t dilation) {
    const int64_t room = in - (kernel - 1) * dilation - 1;
    return room < 0 ? int64_t{0} : room / stride + 1;
  };
  s->out_h = size(s->h + s->pad_top + bottom, s->kernel_h, s->stride_h, s->dilation_h);
  s->out_w = size(s->w + s->pad_left + right, s->kernel_w, s->stride_w, s->dilation_w);
}

// f(word of x, word of w, word of the result) for each product of the convolution.
template <typename F>
void ForEach(const ConvShape& s, bool depthwise, const F& f) {
  const int64_t outputs = depthwise ? s.channels * s.filters : s.filters;
  for (int64_t n = 0; n < s.images; ++n)
    for (int64_t r = 0; r < s.out_h; ++r)
      for (int64_t q = 0; q < s.out_w; ++q)
        for (int64_t i = 0; i < s.kernel_h; ++i)
          for (int64_t j = 0; j < s.kernel_w; ++j) {
            const int64_t a = r * s.stride_h + i * s.dilation_h - s.pad_top;
            const int64_t b = q * s.stride_w + j * s.dilation_w - s.pad_left;
            if (a < 0 || a >= s.h || b < 0 || b >= s.w) continue;
            for (int64_t c = 0; c < s.channels; ++c)
              for (int64_t k = 0; k < s.filters; ++k)
                f(((n * s.h + a) * s.w + b) * s.channels + c,
                  ((i * s.kernel_w + j) * s.channels + c) * s.filters + k,
                  ((n * s.out_h + r) * s.out_w + q) * outputs + (depthwise ? c * s.filters : 0) +
                      k);
          }
}

// Empty if the result and both gradients are right, otherwise what went wrong.
std::string Try(const ConvShape& s, bool depthwise, int pairs, const ParallelFor& parallel) {
  std::mt19937_64 random(kSeed + static_cast<uint64_t>(s.h * 1009 + s.w * 31 + s.channels));
  const int64_t size_x = s.images * s.h * s.w * s.channels;
  const int64_t size_w = s.kernel_h * s.kernel_w * s.channels * s.filters;
  const int64_t size_y =
      s.images * s.out_h * s.out_w * s.filters * (depthwise ? s.channels : 1);
  std::vector<Words> x, w, d;
  std::vector<const uint64_t*> xs, ws, ds;
  Words y = RandomWords(&random, size_y), dx = RandomWords(&random, size_x),
        dw = RandomWords(&random, size_w);
  Words want_y(y.size()), want_dx(dx.size()), want_dw(dw.size());
  for (int p = 0; p < pairs; ++p) {
    x.push_back(RandomWords(&random, size_x));
    w.push_back(RandomWords(&random, size_w));
    d.push_back(RandomWords(&random, size_y));
    ForEach(s, depthwise, [&](int64_t in, int64_t kernel, int64_t out) {
      want_y[out] += x[p][in] * w[p][kernel];
      want_dx[in] += d[p][out] * w[p][kernel];
      want_dw[kernel] += d[p][out] * x[p][in];
    });
  }
  for (int p = 0; p < pairs; ++p) {
    xs.push_back(x[p].data()), ws.push_back(w[p].data()), ds.push_back(d[p].data());
  }
  (depthwise ? tfe_bench::DepthwiseConv2D : tfe_bench::Conv2D)(s, pairs, xs.data(), ws.data(),
                                                               y.data(), parallel);
  (depthwise ? tfe_bench::DepthwiseConv2DInputGradient : tfe_bench::Conv2DInputGradient)(
      s, pairs, ds.data(), ws.data(), dx.data(), parallel);
  (depthwise ? tfe_bench::DepthwiseConv2DKernelGradient : tfe_bench::Conv2DKernelGradient)(
      s, pairs, xs.data(), ds.data(), dw.data(), parallel);
  // The low bits alone, also with a kernel that a source computes.
  bool bits_are_right = true;
  for (const int bits : {48, 52, 54, 64}) {
    if (depthwise) break;
    ConvShape t = s;
    t.bits = bits;
    const auto check = [&](const Words& want, const auto& convolve) {
      Words z(y.size(), kSeed);
      convolve(z.data());
      for (size_t i = 0; i < z.size(); ++i) {
        bits_are_right = bits_are_right && (z[i] ^ want[i]) << (64 - bits) == 0;
      }
    };
    check(want_y, [&](uint64_t* z) {
      tfe_bench::Conv2D(t, pairs, xs.data(), ws.data(), z, parallel);
    });
    Words alone(y.size());
    ForEach(s, false, [&](int64_t in, int64_t kernel, int64_t out) {
      alone[out] += x[0][in] * w[0][kernel];
    });
    const tfe_bench::WordSource source = [&](int64_t first, int64_t count, uint64_t* out) {
      for (int64_t i = 0; i < count; ++i) out[i] = w[0].at(first + i);
    };
    check(alone, [&](uint64_t* z) {
      tfe_bench::Conv2DFromSource(t, xs[0], source, z, parallel);
    });
  }
  if (y == want_y && dx == want_dx && dw == want_dw && bits_are_right) return "";
  std::ostringstream text;
  text << (depthwise ? "depthwise " : "") << s.images << "x" << s.h << "x" << s.w << "x"
       << s.channels << " kernel " << s.kernel_h << "x" << s.kernel_w << "x" << s.filters
       << " stride " << s.stride_h << "," << s.stride_w << " dilation " << s.dilation_h << ","
       << s.dilation_w << " pad " << s.pad_top << "," << s.pad_left << " pairs " << pairs << ":"
       << (y == want_y ? "" : " result") << (dx == want_dx ? "" : " images")
       << (dw == want_dw ? "" : " kernel") << (bits_are_right ? "" : " low bits");
  return text.str();
}

ConvShape Square(int64_t images, int64_t size, int64_t channels, int64_t kernel, int64_t filters,
                 int64_t stride, int64_t pad) {
  ConvShape s = {images, size, size, channels, kernel, kernel, filters, 0, 0,
                 stride, stride, 1, 1, pad, pad};
  SetOut(&s, pad, pad);
  return s;
}

}  // namespace

TEST(UsualLayersMatchTheDefinition) {
  const ConvShape shapes[] = {
      Square(1, 56, 16, 3, 8, 1, 1),    // many pixels: shared out by tiles
      Square(1, 14, 64, 3, 16, 1, 1),   // few pixels: shared out within a tile
      Square(1, 60, 3, 7, 8, 2, 3),     // a first layer
      Square(8, 28, 1, 5, 16, 1, 2),    // a small network's
      Square(1, 48, 8, 1, 24, 1, 0),    // 1 x 1: a matrix product
      Square(1, 48, 8, 1, 24, 2, 0),    // 1 x 1 of every second pixel
      Square(1, 9, 2, 1, 3, 1, 1),      // 1 x 1 with padding is not one
      Square(1, 7, 300, 3, 8, 1, 1),    // deep: several slices of the kernel
      Square(3, 46, 128, 3, 2, 1, 1),   // many pixels and deep
      Square(9, 28, 1, 5, 20, 1, 0),    // a small network's first layer
      Square(9, 12, 20, 5, 50, 1, 0),   // and its second
      Square(3, 28, 1, 5, 5, 2, 2),     // with strides
      Square(1, 30, 8, 3, 16, 1, 1),    // one image: shared out within
      Square(2, 24, 8, 1, 24, 1, 0),    // 1 x 1 of several images
      Square(2, 24, 8, 1, 24, 2, 0),    // ... of every second pixel
      Square(2, 7, 300, 3, 8, 1, 1),    // ... deep
      Square(1, 40, 128, 3, 2, 1, 1),   // a row of outputs larger than the buffer
      Square(1, 14, 256, 1, 40, 1, 0),  // 1 x 1, several slices of the depth
      Square(1, 7, 520, 1, 33, 2, 0),   // ... of every second pixel
      Square(1, 28, 130, 3, 8, 1, 1),   // two tiles
  };
  for (const ConvShape& s : shapes) {
    for (const ParallelFor& way : {ParallelFor(Serial), ParallelFor(TwoThreads)}) {
      CHECK_EQ(Try(s, false, 2, way), "");
    }
  }
}

TEST(OneKernelElementDeeperThanTheBufferMatchesTheDefinition) {
  CHECK_EQ(Try(Square(1, 2, (1 << 17) + 3, 2, 1, 1, 1), false, 1, TwoThreads), "");
  CHECK_EQ(Try(Square(1, 8, 5000, 3, 2, 1, 1), false, 1, TwoThreads), "");
}

TEST(EmptySizesGiveZerosOrNothing) {
  for (const bool depthwise : {false, true}) {
    CHECK_EQ(Try(Square(0, 5, 2, 3, 4, 1, 1), depthwise, 2, Serial), "");
    CHECK_EQ(Try(Square(1, 5, 0, 3, 4, 1, 1), depthwise, 2, Serial), "");
    CHECK_EQ(Try(Square(1, 5, 2, 3, 0, 1, 1), depthwise, 2, Serial), "");
    CHECK_EQ(Try(Square(1, 2, 2, 3, 4, 1, 0), depthwise, 2, Serial), "");
  }
}

TEST(ChannelsAroundTheVectorSizesMatchTheDefinition) {
  for (const int64_t channels : {1, 7, 8, 9, 31, 32, 33, 40, 64, 77}) {
    for (const int64_t filters : {1, 2, 5}) {
      CHECK_EQ(Try(Square(2, 6, channels, 3, filters, 1, 1), true, 2, TwoThreads), "");
    }
  }
}

TEST(RandomShapesMatchTheDefinition) {
  std::cerr << "seed " << kSeed << "\n";
  std::mt19937_64 random(kSeed);
  const ParallelFor ways[] = {Serial, TwoThreads, Backwards};
  const auto draw = [&random](int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random() % static_cast<uint64_t>(to - from + 1));
  };
  for (int round = 0; round < 400; ++round) {
    ConvShape s = {};
    s.images = draw(1, 3), s.h = draw(1, 20), s.w = draw(1, 70), s.channels = draw(1, 12);
    s.kernel_h = draw(1, 5), s.kernel_w = draw(1, 7), s.filters = draw(1, 9);
    s.stride_h = draw(1, 3), s.stride_w = draw(1, 4);
    s.dilation_h = draw(1, 3), s.dilation_w = draw(1, 3);
    s.pad_top = draw(0, 6), s.pad_left = draw(0, 9);
    SetOut(&s, draw(0, 6), draw(0, 9));
    CHECK_EQ(Try(s, round % 2 == 1, static_cast<int>(draw(1, 3)), ways[round % 3]), "");
  }
}
