// A roofline in words, as JSON and as a picture.
#include "estimate/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "cost/walls.h"
#include "estimate/walls.h"
#include "sim/markup.h"

namespace trireme {
namespace {

std::string share_of_peak(const RooflinePoint& p) {
  return fmt::format("{:.1f} %", 100 * p.attainable() / p.peak);
}

std::string rows_text(const std::vector<RooflinePoint>& points, const char* resource) {
  std::string s = fmt::format("  {:<9} {:<16} {:>10} {:>10} {:>11}  {:<8} {:>14} {:>8}\n", "phase", "part",
                              "FLOPs", "bytes", "FLOPs/byte", "bound by", "attainable", "of peak");
  for (const RooflinePoint& p : points)
    s += fmt::format("  {:<9} {:<16} {:>10.3g} {:>10} {:>11.4g}  {:<8} {:>14} {:>8}\n", name_of(p.phase),
                     p.part, p.flops, decimal(p.bytes, "B"), p.intensity(),
                     p.compute_bound() ? "compute" : resource, decimal(p.attainable(), "FLOP/s"),
                     share_of_peak(p));
  return s;
}

// Both axes logarithmic; what is drawn: the memory's roof and each phase as a whole.
struct Frame {
  double left, right, bottom, top;  // log10 of FLOPs a byte, of FLOP/s
};

Frame frame_of(const Roofline& r, double peak) {
  double least = r.ridge, most = r.ridge, low = peak;
  for (const auto* list : {&r.memory, &r.network})
    for (const RooflinePoint& p : *list)
      if ((p.part == "all" || list == &r.network) && p.intensity() > 0)
        least = std::min(least, p.intensity()), most = std::max(most, p.intensity()),
        low = std::min(low, p.attainable());
  most = std::max({most, r.near_ridge, r.far_ridge});
  return {std::floor(std::log10(least) - 0.2), std::ceil(std::log10(most) + 0.2),
          std::floor(std::log10(low) - 0.2), std::log10(peak) + 0.3};
}

std::string ascii_picture(const RooflineCase& c, const Roofline& r) {
  constexpr int kWide = 72, kHigh = 16;
  const Frame f = frame_of(r, c.figures.bf16);
  std::vector<std::string> grid(kHigh, std::string(kWide, ' '));
  const auto column = [&](double x) { return (std::log10(x) - f.left) / (f.right - f.left) * (kWide - 1); };
  const auto put = [&](double col, double flops, char mark) {
    const auto row = int(std::lround((f.top - std::log10(flops)) / (f.top - f.bottom) * (kHigh - 1)));
    const auto at = int(std::lround(col));
    if (row >= 0 && row < kHigh && at >= 0 && at < kWide) grid[size_t(row)][size_t(at)] = mark;
  };
  for (int i = 0; i < kWide; ++i) {
    const double x = std::pow(10, f.left + (f.right - f.left) * i / (kWide - 1));
    put(i, std::min(c.figures.bf16, x * c.figures.bandwidth), x < r.ridge ? '/' : '-');
  }
  for (const RooflinePoint& p : r.memory)
    if (p.part == "all" && p.intensity() > 0)
      put(column(p.intensity()), p.attainable(), char(name_of(p.phase)[0] - 'a' + 'A'));
  std::string s;
  for (int i = 0; i < kHigh; ++i) {
    const double y = std::pow(10, f.top - (f.top - f.bottom) * i / (kHigh - 1));
    std::string& line = grid[size_t(i)];
    line.erase(line.find_last_not_of(' ') + 1);
    s += fmt::format("{:>14} |{}\n", i % 5 == 0 ? decimal(y, "FLOP/s") : "", line);
  }
  return s +
         fmt::format("{:>14} +{:-<{}}\n{:>16}{:<{}}{}\n", "", "", kWide, "",
                     fmt::format("{:g}", std::pow(10, f.left)), kWide - 24,
                     fmt::format("{:g} FLOPs/byte", std::pow(10, f.right))) +
         "  T training, P prefill, D decode; / as fast as memory, - as fast as the peak\n";
}
}  // namespace

std::string roofline_text(const RooflineCase& c, const Roofline& r) {
  std::string s = fmt::format("{} on {}: {} dense, {} of memory{}\n", c.name, c.device,
                              decimal(c.figures.bf16, "FLOP/s"), decimal(c.figures.bandwidth, "B/s"),
                              c.device_source.empty() ? "" : " (" + c.device_source + ")");
  if (!c.too_large.empty()) s += "training DOES NOT FIT: " + c.too_large + "\n";
  s += fmt::format("ridge at {:.4g} FLOPs a byte of memory", r.ridge);
  if (r.near_ridge > 0)
    s += fmt::format(", {:.4g} a byte to near devices ({})", r.near_ridge, decimal(c.figures.bus, "B/s"));
  if (r.far_ridge > 0)
    s += fmt::format(", {:.4g} to far ones ({})", r.far_ridge, decimal(c.figures.nic, "B/s"));
  s += fmt::format(
      "\ntraining: {} sequence(s) of {} tokens, {} microbatch(es) a step; prefill: {} prompt(s) of {}; "
      "decode: {} "
      "text(s), {} tokens in the cache\n",
      c.micro, c.seq, c.microbatches, c.batch, c.context, c.batch, c.context);
  s += fmt::format("\nmemory, one of {} device(s)\n", c.tp) + rows_text(r.memory, "memory");
  if (r.rows_at_ridge > 0)
    s += fmt::format(
        "  products reach the ridge at {:.0f} rows a pass (texts decoded together, or tokens of a prompt)\n",
        r.rows_at_ridge);
  else
    s += "  products reach the ridge at no number of rows\n";
  s += fmt::format("  keys and values of {} text(s), {} tokens each: {}\n", c.batch, c.context,
                   decimal(kv_cache_bytes(c.model, double(c.context), double(c.batch)), "B"));
  if (!r.network.empty())
    s += fmt::format("\nlinks, tensor parallel over {}, {} replica(s)\n", c.tp, c.gpus / c.tp) +
         rows_text(r.network, "network");
  return s + "\n" + ascii_picture(c, r);
}

std::string roofline_json(const RooflineCase& c, const Roofline& r) {
  nlohmann::ordered_json j;
  j["model"] = c.name, j["device"] = c.device;
  if (!c.too_large.empty()) j["too_large"] = c.too_large;
  j["flops_per_s"] = c.figures.bf16, j["bytes_per_s"] = c.figures.bandwidth;
  j["ridge"] = r.ridge, j["near_ridge"] = r.near_ridge, j["far_ridge"] = r.far_ridge;
  j["rows_at_ridge"] = r.rows_at_ridge;
  j["kv_cache_bytes"] = kv_cache_bytes(c.model, double(c.context), double(c.batch));
  for (const auto& [key, list] : {std::pair("memory", &r.memory), {"network", &r.network}}) {
    j[key] = nlohmann::ordered_json::array();
    for (const RooflinePoint& p : *list)
      j[key].push_back({{"phase", name_of(p.phase)},
                        {"part", p.part},
                        {"flops", p.flops},
                        {"bytes", p.bytes},
                        {"intensity", p.intensity()},
                        {"bound_by", p.compute_bound() ? "compute" : key},
                        {"attainable_flops_per_s", p.attainable()},
                        {"seconds", p.seconds}});
  }
  return j.dump(2);
}

std::string roofline_svg(const RooflineCase& c, const Roofline& r) {
  constexpr double kWidth = 960, kHeight = 540, kLeft = 90, kRight = 150, kTop = 66, kBottom = 50;
  constexpr double kLetter = 7, kBelow = 20, kRow = 16;  // of a letter, at most; of a label under its point
  const Frame f = frame_of(r, c.figures.bf16);
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  const auto at_x = [&](double x) {
    return kLeft + (std::log10(x) - f.left) / (f.right - f.left) * (right - kLeft);
  };
  const auto at_y = [&](double y) {
    return kTop + (f.top - std::log10(y)) / (f.top - f.bottom) * (bottom - kTop);
  };
  std::string s = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"22\" font-size=\"15\">{3} on {4}</text>\n",
      kWidth, kHeight, kLeft, escaped(c.name), escaped(c.device));
  const auto line = [&](double x1, double y1, double x2, double y2, const std::string& style) {
    s += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2,
                     style);
  };
  const auto text = [&](double x, double y, const std::string& what, const std::string& style = "") {
    s += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, style, escaped(what));
  };
  for (double e = std::ceil(f.left); e <= f.right + 1e-9; ++e) {
    line(at_x(std::pow(10, e)), kTop, at_x(std::pow(10, e)), bottom, "stroke=\"#e4e4e4\"");
    text(at_x(std::pow(10, e)), bottom + 18, fmt::format("{:g}", std::pow(10, e)), "text-anchor=\"middle\"");
  }
  for (double e = std::ceil(f.bottom); e <= f.top; ++e) {
    line(kLeft, at_y(std::pow(10, e)), right, at_y(std::pow(10, e)), "stroke=\"#e4e4e4\"");
    text(kLeft - 6, at_y(std::pow(10, e)) + 4, decimal(std::pow(10, e), "FLOP/s"), "text-anchor=\"end\"");
  }
  text((kLeft + right) / 2, kHeight - 10, "FLOPs for each byte that is moved", "text-anchor=\"middle\"");
  const double peak = c.figures.bf16, end = std::pow(10, f.right);
  double legend = kLeft;  // above the roofs, where nothing else is drawn
  const auto roof = [&](double slope, const char* color, const std::string& name) {
    if (slope <= 0) return;
    const double start = std::max(std::pow(10, f.left), std::pow(10, f.bottom) / slope), ridge = peak / slope;
    const std::string style = fmt::format("stroke=\"{}\" stroke-width=\"2\"", color);
    if (ridge > start) line(at_x(start), at_y(start * slope), at_x(ridge), at_y(peak), style);
    line(at_x(std::max(start, ridge)), at_y(peak), at_x(end), at_y(peak),
         "stroke=\"#333\" stroke-width=\"2\"");
    line(legend, 40, legend + 20, 40, style);
    text(legend + 26, 44, name, fmt::format("fill=\"{}\"", color));
    legend += 26 + kLetter * double(name.size()) + 20;
  };
  roof(c.figures.bandwidth, "#1f6fb4", "memory " + decimal(c.figures.bandwidth, "B/s"));
  if (!r.network.empty()) {
    roof(c.figures.bus, "#2c8c3c", "near devices " + decimal(c.figures.bus, "B/s"));
    roof(c.figures.nic, "#b4511f", "far devices " + decimal(c.figures.nic, "B/s"));
  }
  text(right + 6, at_y(peak) + 4, "peak " + decimal(peak, "FLOP/s"));
  struct Mark {
    double x, y;
    const char* color;
    std::string name;
  };
  std::vector<Mark> marks;
  for (const RooflinePoint& p : r.memory)
    if (p.part == "all" && p.intensity() > 0)
      marks.push_back({at_x(p.intensity()), at_y(p.attainable()), "#1f6fb4", std::string(name_of(p.phase))});
  for (const RooflinePoint& p : r.network)
    if (p.intensity() > 0)
      marks.push_back({at_x(p.intensity()), at_y(p.attainable()),
                       p.slope == c.figures.bus ? "#2c8c3c" : "#b4511f",
                       fmt::format("{}, {}", name_of(p.phase), p.part)});
  // From the right, each label in the first row under its point where no other one is: no leader then runs
  // through a label, which lies to the right of its own.
  std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) { return a.x > b.x; });
  struct Box {
    double left, right, y;
  };
  std::vector<Box> taken;
  for (const Mark& m : marks) {
    Box box{m.x + 6, m.x + 6 + kLetter * double(m.name.size()), m.y + kBelow};
    const auto clash = [&](const Box& o) {
      return box.left < o.right && o.left < box.right && std::abs(box.y - o.y) < kRow;
    };
    while (std::any_of(taken.begin(), taken.end(), clash)) box.y += 1;
    taken.push_back(box);
    line(m.x, m.y, m.x, box.y, fmt::format("stroke=\"{}\" stroke-width=\"0.7\"", m.color));
    s += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/>\n", m.x, m.y, m.color);
    text(box.left, box.y, m.name, "stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\"");
  }
  return s + "</svg>\n";
}

}  // namespace trireme
