// quantise: keys n, c (x [n,c]), rows, cols = of a block (0: all), e5m2=1, margin, dtype; amax=a: given;
// seen=s: the largest so far. outlier=f: element 5 is f times as large. wild=1: some elements are not finite.
// fp8_matmul: keys of matmul without inplace; blocks=1: a and b have blocks of 128 along the sum, b 128 x
// 128, with vectors=1 as a; e5m2=1: of a. dtype = type of bias, out = of c and residual.
#include <cmath>

#include "base/rng.h"
#include "cases.h"

namespace trireme::harness {
namespace {

// By the format's definition, in double.
double number_of_code(Fp8Format format, int code) {
  const int bits = format == Fp8Format::e4m3 ? 3 : 2, bias = format == Fp8Format::e4m3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> bits, mantissa = code & ((1 << bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - bits)
                                         : std::ldexp((1 << bits) + mantissa, exponent - bias - bits);
  return code & 0x80 ? -magnitude : magnitude;
}
int largest_code(Fp8Format format) {
  return format == Fp8Format::e4m3 ? 0x7e : 0x7b;
}

// The nearest of all finite codes; of two as near the even one.
int nearest_code(Fp8Format format, double v) {
  int best = 0;
  for (int code = 0; code <= largest_code(format); code++) {
    const double now = std::fabs(number_of_code(format, code) - std::fabs(v)),
                 before = std::fabs(number_of_code(format, best) - std::fabs(v));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return std::signbit(v) ? best | 0x80 : best;
}

class QuantiseCase final : public CaseOf<QuantiseArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    const int64_t n = p.size("n"), c = p.size("c");
    args = {};
    args.format = p.flag("e5m2") ? Fp8Format::e5m2 : Fp8Format::e4m3;
    args.blocks = {p.size("rows", 0), p.size("cols", 0)};
    args.margin = int(p.size("margin", 0));
    const double outlier = p.number("outlier", 1);
    const bool wild = p.flag("wild");
    auto usual = b.gaussian("x", 0.02);
    args.x = b.matrix(Role::in, "x", {n, c}, p.dtype(), [=](int64_t i) {
      const double bad[] = {std::nan(""), HUGE_VAL, -HUGE_VAL};
      return wild && i % 11 == 7 ? bad[i / 11 % 3] : usual(i) * (i == 5 ? outlier : 1);
    });
    args.codes = b.dense(Role::out, "codes", {n, c}, DType::u8);
    args.scale = b.dense(Role::out, "scale", args.blocks.scales(n, c), DType::f32);
    const double amax = p.number("amax", -1), seen = p.number("seen", -1);
    if (amax >= 0) args.amax = b.dense(Role::in, "amax", {1}, DType::f32, [=](int64_t) { return amax; });
    if (seen >= 0) args.seen = b.dense(Role::inout, "seen", {1}, DType::f32, [=](int64_t) { return seen; });
  }

  void reference(Operands& o) const override {
    const int64_t n = args.x.shape[0], c = args.x.shape[1], across = args.scale.shape[1];
    const auto block = [&](int64_t i) {
      const int64_t down = args.blocks.rows > 0 ? i / c / args.blocks.rows : 0,
                    right = args.blocks.cols > 0 ? i % c / args.blocks.cols : 0;
      return size_t(down * across + right);
    };
    const std::vector<double>& x = o.in("x");
    std::vector<double>& scale = o.want("scale");
    scale.assign(size_t(args.scale.numel()), 0);
    double most = 0;
    for (int64_t i = 0; i < n * c; i++)
      if (const double a = std::fabs(x[size_t(i)]); std::isfinite(a))
        scale[block(i)] = std::max(scale[block(i)], a), most = std::max(most, a);
    if (args.amax && o.in("amax")[0] > 0) scale[0] = o.in("amax")[0];
    const double largest = number_of_code(args.format, largest_code(args.format));
    for (double& s : scale) s = s == 0 ? 1 : std::exp2(std::ceil(std::log2(s / largest)) + args.margin);
    std::vector<double>& codes = o.want("codes");
    codes.resize(x.size());
    for (int64_t i = 0; i < n * c; i++) {
      const double v = x[size_t(i)] / scale[block(i)], sign = std::signbit(v) ? 0x80 : 0;
      codes[size_t(i)] = std::isfinite(v)                                  ? nearest_code(args.format, v)
                         : std::isinf(v) && args.format == Fp8Format::e5m2 ? sign + 0x7c
                                                                           : sign + 0x7f;
    }
    if (args.seen) o.want("seen")[0] = std::max(o.in("seen")[0], most);
  }
};

class Fp8MatmulCase final : public CaseOf<Fp8MatmulArgs> {
 public:
  void build(Builder& b) override {
    const Problem& p = b.problem;
    m_ = p.size("m"), n_ = p.size("n"), k_ = p.size("k");
    const DType type = p.dtype(), out = p.has("out") ? p.dtype("out") : type;
    args = {};
    args.trans_a = p.flag("trans_a"), args.trans_b = p.flag("trans_b"),
    args.accumulate = p.flag("accumulate");
    if (p.flag("e5m2")) args.format_a = Fp8Format::e5m2;
    if (p.flag("blocks")) {
      args.blocks_a = args.trans_a ? Fp8Blocks{128, 1} : Fp8Blocks{1, 128};
      args.blocks_b = {128, 128};
      if (p.flag("vectors")) args.blocks_b = args.trans_b ? Fp8Blocks{1, 128} : Fp8Blocks{128, 1};
    }
    operand(b, "a", args.trans_a ? Shape{k_, m_} : Shape{m_, k_}, args.format_a, args.blocks_a, args.a,
            args.scale_a);
    operand(b, "b", args.trans_b ? Shape{n_, k_} : Shape{k_, n_}, args.format_b, args.blocks_b, args.b,
            args.scale_b);
    args.c = b.matrix(args.accumulate ? Role::inout : Role::out, "c", {m_, n_}, out);
    if (p.flag("bias")) args.bias = b.dense(Role::in, "bias", {n_}, type);
    if (p.flag("residual")) args.residual = b.matrix(Role::in, "residual", {m_, n_}, out);
  }

  void reference(Operands& o) const override {
    const std::vector<double> a = numbers(o, "a", args.format_a, args.blocks_a, args.a),
                              b = numbers(o, "b", args.format_b, args.blocks_b, args.b);
    for (int64_t i = 0; i < m_; i++)
      for (int64_t j = 0; j < n_; j++) {
        double s = 0;
        for (int64_t k = 0; k < k_; k++)
          s += a[size_t(args.trans_a ? k * m_ + i : i * k_ + k)] *
               b[size_t(args.trans_b ? j * k_ + k : k * n_ + j)];
        if (args.bias) s += o.in("bias")[size_t(j)];
        if (args.residual) s += o.in("residual")[size_t(i * n_ + j)];
        if (args.accumulate) s += o.in("c")[size_t(i * n_ + j)];
        o.want("c")[size_t(i * n_ + j)] = s;
      }
  }
  bool same_bits_for_any_threads(std::string_view) const override { return false; }  // as matmul

 private:
  // Codes of numbers between 2^-4 and 2^4; scales from 2^-3 to 2^3.
  static void operand(Builder& b, const std::string& name, const Shape& shape, Fp8Format format,
                      const Fp8Blocks& blocks, Tensor& codes, Tensor& scale) {
    const uint64_t key = rng_key(uint64_t(b.problem.size("seed", 1)), 0, name);
    const int bits = format == Fp8Format::e4m3 ? 3 : 2, bias = format == Fp8Format::e4m3 ? 7 : 15;
    codes = b.dense(Role::in, name, shape, DType::u8, [=](int64_t i) {
      const uint64_t r = below(key, uint64_t(i), 2 << (bits + 3));
      const int64_t sign = r & 1 ? 0x80 : 0;
      return double(sign + ((bias - 4) << bits) + int64_t(r >> 1));
    });
    scale = b.dense(Role::in, name + "_scale", blocks.scales(shape[0], shape[1]), DType::f32,
                    [=](int64_t i) { return std::exp2(double(below(key, uint64_t(i), 7)) - 3); });
  }
  static std::vector<double> numbers(const Operands& o, const std::string& name, Fp8Format format,
                                     const Fp8Blocks& blocks, const Tensor& t) {
    const std::vector<double>&codes = o.in(name), &scale = o.in(name + "_scale");
    const int64_t cols = t.shape[1], across = blocks.scales(t.shape[0], cols)[1];
    std::vector<double> out(codes.size());
    for (int64_t i = 0; i < int64_t(out.size()); i++) {
      const int64_t down = blocks.rows > 0 ? i / cols / blocks.rows : 0,
                    right = blocks.cols > 0 ? i % cols / blocks.cols : 0;
      out[size_t(i)] = number_of_code(format, int(codes[size_t(i)])) * scale[size_t(down * across + right)];
    }
    return out;
  }
  int64_t m_ = 0, n_ = 0, k_ = 0;
};

}  // namespace

std::unique_ptr<Case> make_quantise() {
  return std::make_unique<QuantiseCase>();
}
std::unique_ptr<Case> make_fp8_matmul() {
  return std::make_unique<Fp8MatmulCase>();
}

}  // namespace trireme::harness
