// Finite differences. The case's objective is differentiated in double along directions d, by central
// differences of step h with one Richardson extrapolation (error of order h^4), and compared with <gradient,
// d>: of the reference's gradient (tight), and of the one that the op wrote (its type's rounding).
#include <cmath>
#include <map>

#include "base/rng.h"
#include "instance.h"
#include "modes.h"

namespace trireme::harness {
namespace {

// |fd - <g, d>| may be this share of |g| |d| ...
constexpr double kReferenceBound = 1e-6;
double op_bound(DType t) {
  return t == DType::f64 ? 1e-6 : t == DType::f32 ? 2e-5 : t == DType::f16 ? 1.3e-3 : 1e-2;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double s = 0;
  for (size_t i = 0; i < a.size(); i++) s += a[i] * b[i];
  return s;
}

double derivative(const Case& c, Operands& operands, std::vector<double>& x, const std::vector<double>& d) {
  const std::vector<double> x0 = x;
  auto at = [&](double h) {
    for (size_t i = 0; i < x.size(); i++) x[i] = x0[i] + h * d[i];
    return c.objective(operands);
  };
  double h = 1e-3 * std::sqrt(double(x.size())) / std::sqrt(dot(d, d));  // an element moves by about 1e-3
  double coarse = (at(h) - at(-h)) / (2 * h), fine = (at(h / 2) - at(-h / 2)) / h;
  x = x0;
  return (4 * fine - coarse) / 3;
}

// Every element alone for a few elements, else random directions, the gradient itself first.
std::vector<std::vector<double>> directions(const std::vector<double>& gradient) {
  constexpr size_t kFew = 32, kRandom = 6;
  std::vector<std::vector<double>> out = {gradient};
  for (size_t k = 0; k < (gradient.size() <= kFew ? gradient.size() : kRandom); k++) {
    std::vector<double> d(gradient.size(), 0.0);
    if (gradient.size() <= kFew)
      d[k] = 1;
    else
      for (size_t i = 0; i < d.size(); i++) d[i] = normal(rng_key(7, k, "direction"), i);
    out.push_back(std::move(d));
  }
  return out;
}

// The largest share of |g||d| by which <g, d> misses the finite difference.
double worst_miss(const std::vector<double>& g, const std::vector<std::vector<double>>& along,
                  const std::vector<double>& fd) {
  double worst = 0, length = std::sqrt(dot(g, g));
  for (size_t k = 0; k < along.size(); k++) {
    double scale = length * std::sqrt(dot(along[k], along[k]));
    double miss = std::fabs(fd[k] - dot(g, along[k]));
    if (!(miss <= 1e-12)) worst = std::max(worst, std::isfinite(miss) && scale > 0 ? miss / scale : HUGE_VAL);
  }
  return worst;
}

}  // namespace

int run_grad(const Options& options) {
  if (options.device == "meta") bad_request("device meta has no data to test; cpu and cuda have");
  int failures = 0;
  std::map<std::string_view, std::pair<int, double>> seen;  // op -> gradients checked, worst miss of the op
  for (int threads : options.threads) {
    auto device = make_harness_device(options.device, {.threads = threads});
    for_each_problem(options, "grad", [&](const CaseEntry& entry, const ProblemFile&, const Problem& p) {
      auto fail = [&](const std::string& what) {
        fmt::print("FAIL {} ({}, {} threads): {}\n", p.line, p.place, threads, what);
        failures++;
      };
      try {
        Instance run(entry, p, *device, planned_scratch(entry, p, options.device, threads));
        const Case& c = run.the_case();
        if (c.gradients().empty()) fail("the line is for grad, but the case names no gradients");
        run.reset();
        run.launch();
        run.fetch();
        Operands& operands = run.operands();
        for (Operand& o : operands.list)
          if (o.role != Role::in) o.want.assign(size_t(o.tensor.numel()), std::nan(""));
        c.reference(operands);
        for (GradPair pair : c.gradients()) {
          const Operand& g = operands[pair.gradient];
          auto along = directions(g.want);
          std::vector<double> fd;
          for (auto& d : along) fd.push_back(derivative(c, operands, operands[pair.input].before, d));
          double reference = worst_miss(g.want, along, fd), op = worst_miss(g.got, along, fd);
          double bound = p.number("grad_bound", op_bound(g.tensor.dtype));
          if (!(reference <= kReferenceBound))
            fail(fmt::format("the reference's '{}' misses the finite difference by {:.2e} (bound {:.1e})",
                             g.name, reference, kReferenceBound));
          if (!(op <= bound))
            fail(fmt::format("the op's '{}' misses the finite difference by {:.2e} (bound {:.1e})", g.name,
                             op, bound));
          auto& [count, worst] = seen[entry.op];
          count++, worst = std::max(worst, op);
        }
      } catch (const Error& e) {
        fail(e.what());
      }
    });
  }
  for (auto& [op, s] : seen) fmt::print("{:20} {:3} gradients, largest miss {:.1e}\n", op, s.first, s.second);
  return failures;
}

}  // namespace trireme::harness
