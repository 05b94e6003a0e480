#include <cmath>
#include <map>

#include "instance.h"
#include "modes.h"

namespace trireme::harness {

Distance distance(const std::vector<double>& want, const std::vector<double>& got) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Distance d;
  double square = 0, wrong = 0;
  int64_t finite = 0;
  for (size_t i = 0; i < want.size(); i++) {
    if (std::isfinite(want[i]) && std::isfinite(got[i])) {
      square += want[i] * want[i], finite++;
      wrong += (got[i] - want[i]) * (got[i] - want[i]);
    } else if (!(std::isnan(want[i]) && std::isnan(got[i])) && want[i] != got[i]) {
      return {kInf, kInf, int64_t(i)};
    }
  }
  double rms = finite ? std::sqrt(square / double(finite)) : 0;
  for (size_t i = 0; i < want.size(); i++) {
    if (!std::isfinite(want[i]) || got[i] == want[i]) continue;
    double e = std::fabs(got[i] - want[i]), scale = std::fabs(want[i]) + rms;
    double w = scale > 0 ? e / scale : kInf;
    if (w > d.worst) d.worst = w, d.at = int64_t(i);
  }
  d.nmse = wrong == 0 ? 0 : square > 0 ? wrong / square : kInf;
  return d;
}

namespace {

// One op's summary: the largest share of its bound that an output of each type used up.
struct Tally {
  int problems = 0, failures = 0;
  std::map<std::string_view, Distance> worst;  // by output type
  std::map<std::string_view, int> kernels;     // problems that each took, of ops with several kernels
};

class Tester {
 public:
  explicit Tester(const Options& options) : options_(options) {
    for (int t : options.threads) {
      devices_.push_back(make_harness_device(options.device, {.threads = t}));
      metas_.push_back(make_meta_of(options.device, t));
    }
  }

  void problem(const CaseEntry& entry, const ProblemFile& file, const Problem& p) {
    problem_ = &p, tally_ = &tallies_[entry.op];
    tally_->problems++;
    want_.clear(), first_bits_.clear();
    for (size_t k = 0; k < devices_.size(); k++) {
      threads_ = options_.threads[k];
      try {
        with_threads(entry, file, k);
      } catch (const Error& e) {
        fail("{}", e.what());
      }
    }
  }

  int report() const {
    int failures = 0;
    for (auto& [op, t] : tallies_) {
      std::string seen;
      for (auto& [type, d] : t.worst)
        seen += fmt::format("  {} nmse {:.1e} worst {:.1e}", type, d.nmse, d.worst);
      for (auto& [kernel, n] : t.kernels) seen += fmt::format("  by {}: {}", kernel, n);
      fmt::print("{:20} {:3} problems  {}{}\n", op, t.problems,
                 t.failures ? fmt::format("{} FAILURES", t.failures) : "ok", seen);
      failures += t.failures;
    }
    return failures;
  }

 private:
  template <class... A>
  void fail(fmt::format_string<A...> f, A&&... a) {
    fmt::print("FAIL {} ({}, {} threads): {}\n", problem_->line, problem_->place, threads_,
               fmt::format(f, std::forward<A>(a)...));
    tally_->failures++;
  }

  void with_threads(const CaseEntry& entry, const ProblemFile& file, size_t k) {
    Instance plan(entry, *problem_, *metas_[k], int64_t(1) << 40);
    plan.launch();
    Instance run(entry, *problem_, *devices_[k], plan.scratch_peak());
    run.reset();
    run.launch();
    const std::string_view took = devices_[k]->kernels().last_kernel();
    if (!took.empty()) tally_->kernels[took]++;
    if (std::string s = wrong_kernel(options_, entry.op, *problem_, took); !s.empty()) fail("{}", s);
    run.fetch();
    if (run.scratch_peak() != plan.scratch_peak())
      fail("took {} bytes of scratch, meta booked {}", run.scratch_peak(), plan.scratch_peak());
    if (!(run.the_case().expense() == plan.the_case().expense())) fail("costs another amount on meta");
    if (std::string s = run.trespass(); !s.empty()) fail("{}", s);
    against_reference(run, file);
    same_bits(run);
  }

  void against_reference(Instance& run, const ProblemFile& file) {
    if (want_.empty()) {
      for (Operand& o : run.operands().list)
        if (o.role != Role::in) o.want.assign(size_t(o.tensor.numel()), std::nan(""));
      run.the_case().reference(run.operands());
      for (Operand& o : run.operands().list) want_[o.name] = o.want;
    }
    for (Operand& o : run.operands().list) {
      if (o.role == Role::in) continue;
      const std::vector<double>& want = want_[o.name];
      Bound bound = file.bound(*problem_, o.name, o.tensor.dtype);
      Distance d = distance(want, o.got);
      Distance& most = tally_->worst[name_of(o.tensor.dtype)];
      most = {std::max(most.nmse, d.nmse), std::max(most.worst, d.worst), 0};
      if (options_.verbose)
        fmt::print("  {} threads={} {}: nmse {:.2e} worst {:.2e}\n", problem_->line, threads_, o.name, d.nmse,
                   d.worst);
      if (!(d.nmse <= bound.nmse && d.worst <= bound.worst))
        fail(
            "'{}' is off: nmse {:.2e} (bound {:.1e}), worst {:.2e} (bound {:.1e}) at element {}: {:.9g}, not "
            "{:.9g}",
            o.name, d.nmse, bound.nmse, d.worst, bound.worst, d.at, o.got[size_t(d.at)], want[size_t(d.at)]);
    }
  }

  // Again, and against the first thread count where the op promises it.
  void same_bits(Instance& run) {
    std::map<std::string, std::vector<std::byte>> bits;
    for (Operand& o : run.operands().list)
      if (o.role != Role::in) bits[o.name] = run.bits(o);
    run.reset();
    run.launch();
    run.fetch();
    for (Operand& o : run.operands().list)
      if (o.role != Role::in && run.bits(o) != bits[o.name])
        fail("'{}' has other bits the second time", o.name);
    if (first_bits_.empty()) {
      first_bits_ = std::move(bits);
      return;
    }
    for (auto& [name, b] : bits)
      if (run.the_case().same_bits_for_any_threads(name) && b != first_bits_[name])
        fail("'{}' has other bits than with {} threads", name, options_.threads[0]);
  }

  const Options& options_;
  std::vector<std::unique_ptr<Device>> devices_, metas_;
  std::map<std::string_view, Tally> tallies_;
  std::map<std::string, std::vector<double>> want_;
  std::map<std::string, std::vector<std::byte>> first_bits_;
  const Problem* problem_ = nullptr;
  Tally* tally_ = nullptr;
  int threads_ = 1;
};

}  // namespace

int run_test(const Options& options) {
  if (options.device == "meta") bad_request("device meta has no data to test; cpu and cuda have");
  Tester tester(options);
  for_each_problem(options, "test",
                   [&](auto& entry, auto& file, auto& p) { tester.problem(entry, file, p); });
  return tester.report();
}

}  // namespace trireme::harness
