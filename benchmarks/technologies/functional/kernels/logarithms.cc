#include "benchmarks/technologies/functional/kernels/logarithms.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "benchmarks/technologies/functional/kernels/comb.h"

namespace tfe_bench {
namespace curve {
namespace {

// Steps that are added to and subtracted from a center.
constexpr int64_t kMostSteps = 512;
// Pairs that share an inversion.
constexpr int64_t kBlock = 512;

// Operands of the addition of a point in affine coordinates: x, y and d x y; tight.
struct Coordinates {
  Field x, y, product;
};

uint64_t KeyOf(const Field& y) {
  uint8_t bytes[32];
  ToBytes(y, bytes);
  uint64_t key;
  std::memcpy(&key, bytes, sizeof(key));
  return key;
}

uint64_t TagOf(uint64_t key) { return key >> 32 << 32; }

int WindowsFor(int64_t m) {
  int windows = 1;
  while (windows < kWindows && (m < 0 ? -m : m) >> (4 * windows - 1) != 0) ++windows;
  return windows;
}

// m times the base point.
Point MultipleOfBase(int64_t m) { return Double(AddSmall(kIdentity, m, WindowsFor(m))); }

// 4 m times the base point.
Point FourTimes(int64_t m) { return Double(Double(MultipleOfBase(m))); }

// Of ristretto255 (RFC 9496, section 4.5).
bool SameElement(const Point& p, const Point& q) {
  return IsEqual(Mul(p.x, q.y), Mul(p.y, q.x)) || IsEqual(Mul(p.y, q.y), Mul(p.x, q.x));
}

// Coordinates of points as steps, with one inversion.
std::vector<Coordinates> StepsOf(const std::vector<Point>& points) {
  std::vector<Field> inverse;
  for (const Point& p : points) inverse.push_back(p.z);
  InvertAll(inverse.data(), inverse.size());
  std::vector<Coordinates> out;
  for (size_t i = 0; i < points.size(); ++i) {
    const Field x = Mul(points[i].x, inverse[i]), y = Mul(points[i].y, inverse[i]);
    out.push_back({x, y, Mul(Mul(x, y), kD)});
  }
  return out;
}

// `unit` times 1 to `count`.
std::vector<Coordinates> Multiples(const Point& unit, int64_t count) {
  std::vector<Point> points;
  Point at = unit;
  for (int64_t i = 0; i < count; ++i, at = Add(at, unit)) points.push_back(at);
  return StepsOf(points);
}

// The y of center + step and of center - step, for many pairs.  With t = d x1 y1 x2 y2:
// y = (y1 y2 + x1 x2) / (1 - t) and (y1 y2 - x1 x2) / (1 + t).
class Pairs {
 public:
  void Clear() { sum_.clear(), difference_.clear(), t_.clear(), inverse_.clear(); }
  void Push(const Coordinates& center, const Field& center_xy, const Coordinates& step) {
    const Field xx = Mul(center.x, step.x), yy = Mul(center.y, step.y);
    t_.push_back(Mul(center_xy, step.product));
    sum_.push_back(Add(yy, xx));
    difference_.push_back(Sub(yy, xx));
    inverse_.push_back(Sub(kOne, Square(t_.back())));
  }
  // Afterwards Sum(i) and Difference(i) are keys of y.
  void Finish() {
    InvertAll(inverse_.data(), inverse_.size());
    keys_.resize(2 * inverse_.size());
    for (size_t i = 0; i < inverse_.size(); ++i) {
      keys_[2 * i] = KeyOf(Mul(sum_[i], Mul(inverse_[i], Add(kOne, t_[i]))));
      keys_[2 * i + 1] = KeyOf(Mul(difference_[i], Mul(inverse_[i], Sub(kOne, t_[i]))));
    }
  }
  const std::vector<uint64_t>& keys() const { return keys_; }

 private:
  std::vector<Field> sum_, difference_, t_, inverse_;
  std::vector<uint64_t> keys_;
};

class Filler {
 public:
  Filler(uint64_t* places, int log2)
      : places_(places), mask_(static_cast<uint64_t>(PlacesFor(log2)) - 1),
        most_(int64_t{1} << log2) {}
  void Prefetch(uint64_t key) const { __builtin_prefetch(places_ + (key & mask_), 1); }
  void Insert(uint64_t key, int64_t index) {
    if (index > most_) return;
    uint64_t at = key & mask_;
    while (places_[at] != 0) at = (at + 1) & mask_;
    places_[at] = TagOf(key) | static_cast<uint64_t>(index);
  }

 private:
  uint64_t* places_;
  uint64_t mask_;
  int64_t most_;
};

// A target that has not been found yet.
struct Open {
  int64_t at;
  Coordinates step;
  Field xy;
};

class Search {
 public:
  Search(const uint64_t* places, int log2, const Point* points, int64_t bound, int64_t* logarithm,
         uint8_t* found)
      : places_(places), mask_(static_cast<uint64_t>(PlacesFor(log2)) - 1), points_(points),
        bound_(bound), logarithm_(logarithm), found_(found) {}

  void Prefetch(uint64_t key) const { __builtin_prefetch(places_ + (key & mask_)); }

  // Tries what the table holds for a key of target - shift: shift + j and shift - j; and shift
  // itself where it is the key of y = 1.
  void Try(uint64_t key, int64_t target, int64_t shift) {
    if (key == 1 && Settle(target, shift)) return;
    for (uint64_t at = key & mask_; places_[at] != 0; at = (at + 1) & mask_) {
      if ((places_[at] ^ key) >> 32 != 0) continue;
      const int64_t j = static_cast<int64_t>(places_[at] & 0xffffffff);
      if (Settle(target, shift + j) || Settle(target, shift - j)) return;
    }
  }

  // Whether the logarithm is m; the only place where one is given out.
  bool Settle(int64_t target, int64_t m) {
    if (found_[target] || m > bound_ || m < -bound_) return found_[target];
    if (!SameElement(MultipleOfBase(m), points_[target])) return false;
    logarithm_[target] = m;
    found_[target] = 1;
    return true;
  }

  bool found(int64_t target) const { return found_[target] != 0; }

 private:
  const uint64_t* places_;
  uint64_t mask_;
  const Point* points_;
  int64_t bound_;
  int64_t* logarithm_;
  uint8_t* found_;
};

// Those that are still open, less `shift`, as affine points; the shifted points themselves are
// tried.
std::vector<Open> Shifted(const std::vector<int64_t>& targets, const Point* points, int64_t shift,
                          Search& search) {
  const Point back = FourTimes(-shift);
  std::vector<Point> moved;
  for (const int64_t at : targets) moved.push_back(Add(Double(Double(points[at])), back));
  const std::vector<Coordinates> steps = StepsOf(moved);
  for (const Coordinates& step : steps) search.Prefetch(KeyOf(step.y));
  std::vector<Open> open;
  for (size_t i = 0; i < targets.size(); ++i) {
    search.Try(KeyOf(steps[i].y), targets[i], shift);
    if (!search.found(targets[i])) {
      open.push_back({targets[i], steps[i], Mul(steps[i].x, steps[i].y)});
    }
  }
  return open;
}

}  // namespace

void FillTable(uint64_t* places, int log2) {
  const int64_t most = int64_t{1} << log2, width = 2 * kMostSteps + 1;
  const Point unit = FourTimes(1);
  const std::vector<Coordinates> steps = Multiples(unit, kMostSteps);
  Filler filler(places, log2);
  for (int64_t j = 1; j <= kMostSteps; ++j) filler.Insert(KeyOf(steps[j - 1].y), j);
  const int64_t centers = most < kMostSteps ? 0 : (most - kMostSteps + width - 1) / width;
  const Point stride = FourTimes(width);
  Point next = stride;
  Pairs pairs;
  for (int64_t first = 0; first < centers; first += kBlock) {
    std::vector<Point> points;
    for (int64_t i = first; i < std::min(first + kBlock, centers); ++i, next = Add(next, stride)) {
      points.push_back(next);
    }
    int64_t middle = (first + 1) * width;
    for (const Coordinates& center : StepsOf(points)) {
      pairs.Clear();
      const Field xy = Mul(center.x, center.y);
      for (const Coordinates& step : steps) pairs.Push(center, xy, step);
      pairs.Finish();
      for (const uint64_t key : pairs.keys()) filler.Prefetch(key);
      filler.Insert(KeyOf(center.y), middle);
      for (int64_t j = 1; j <= kMostSteps; ++j) {
        filler.Insert(pairs.keys()[2 * j - 2], middle + j);
        filler.Insert(pairs.keys()[2 * j - 1], middle - j);
      }
      middle += width;
    }
  }
}

void FindLogarithms(const uint64_t* places, int log2, const Point* points, int64_t count,
                    int64_t bound, int64_t* logarithm, uint8_t* found) {
  std::memset(found, 0, static_cast<size_t>(count));
  Search search(places, log2, points, bound, logarithm, found);
  const int64_t baby = int64_t{1} << log2, width = 2 * baby + 1;
  // Number of giant steps for the bound, and number of them per batch.
  const int64_t wanted = bound <= baby ? 0 : (bound - baby + width - 1) / width;
  const int64_t giants = std::min(wanted, kMostSteps), jump = (2 * giants + 1) * width;
  std::vector<Coordinates> steps;
  if (giants > 0) steps = Multiples(FourTimes(width), giants);
  std::vector<int64_t> left;
  for (int64_t i = 0; i < count; ++i) left.push_back(i);
  Pairs pairs;
  struct Tried {
    int64_t target, shift;
  };
  std::vector<Tried> tried;
  // From 0 outwards: shifts 0, jump, -jump, 2 jump ...
  for (int64_t turn = 0; !left.empty(); ++turn) {
    const int64_t shift = (turn + 1) / 2 * (turn % 2 ? jump : -jump);
    if ((shift < 0 ? -shift : shift) - giants * width - baby > bound) break;
    std::vector<Open> open = Shifted(left, points, shift, search);
    for (int64_t k = 0; k < giants && !open.empty();) {
      const int64_t targets = static_cast<int64_t>(open.size());
      const int64_t end = std::min(giants, k + std::max<int64_t>(1, kBlock / targets));
      pairs.Clear();
      tried.clear();
      for (; k < end; ++k) {
        for (const Open& each : open) {
          pairs.Push(each.step, each.xy, steps[k]);
          tried.push_back({each.at, (k + 1) * width});
        }
      }
      pairs.Finish();
      for (const uint64_t key : pairs.keys()) search.Prefetch(key);
      for (size_t i = 0; i < tried.size(); ++i) {
        // target - shift + step is a baby step: the logarithm is about shift - step.
        search.Try(pairs.keys()[2 * i], tried[i].target, shift - tried[i].shift);
        search.Try(pairs.keys()[2 * i + 1], tried[i].target, shift + tried[i].shift);
      }
      const auto done = [&](const Open& each) { return search.found(each.at); };
      open.erase(std::remove_if(open.begin(), open.end(), done), open.end());
    }
    left.clear();
    for (const Open& each : open) left.push_back(each.at);
  }
}

bool WalkToLogarithm(const Point& point, int64_t bound, int64_t* logarithm) {
  const Affine step = Normalize(&kBase, 1)[0];
  Point up = kIdentity, down = kIdentity;
  for (int64_t m = 0; m <= bound; ++m) {
    if (SameElement(point, up)) return *logarithm = m, true;
    if (SameElement(point, down)) return *logarithm = -m, true;
    up = Add(up, step);
    down = Subtract(down, step);
  }
  return false;
}

}  // namespace curve
}  // namespace tfe_bench
