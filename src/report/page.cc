#include "report/page.h"

#include <fmt/core.h>

#include "base/error.h"
#include "report/page_data.h"

namespace trireme {
namespace {

std::string html_escaped(std::string_view s) {
  std::string out;
  for (const char c : s) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

// JSON inside <script>: an HTML parser ends the element at "</script", and starts a comment at "<!--",
// wherever they stand. Outside of strings JSON has none of these characters.
std::string script_safe(std::string_view json) {
  std::string out;
  out.reserve(json.size() + json.size() / 64);
  for (const char c : json) switch (c) {
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  return out;
}

// Replaces each {{name}} of the template, in order; values are not looked into.
std::string page_of(std::string_view title, std::string_view data) {
  std::string out;
  out.reserve(kPageHtml.size() + kPageStyle.size() + kPageScript.size() + kChartLibrary.size() + data.size());
  for (std::string_view rest = kPageHtml;;) {
    const size_t begin = rest.find("{{"), end = rest.find("}}", begin);
    out += rest.substr(0, begin);
    if (begin == rest.npos) return out;
    const std::string_view name = rest.substr(begin + 2, end - begin - 2);
    rest.remove_prefix(end + 2);
    if (name == "title")
      out += html_escaped(title);
    else if (name == "style")
      out += kPageStyle;
    else if (name == "library")
      out += kChartLibrary;
    else if (name == "script")
      out += kPageScript;
    else if (name == "licence")
      out += html_escaped(kPageLicence);
    else {
      require(name == "data", "report.html has a name that nothing fills");
      out += data;
    }
  }
}

}  // namespace

std::string report_page(const nlohmann::json& report) {
  std::string title = "trireme report";
  if (const auto name = report.find("name"); name != report.end() && name->is_string())
    title = name->get<std::string>() + " - " + title;
  return page_of(title, script_safe(report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}

std::string live_page(std::string_view base, bool many) {
  const nlohmann::json where = {{"live", base}, {"many", many}};
  return page_of("trireme report", script_safe(where.dump()));
}

}  // namespace trireme
