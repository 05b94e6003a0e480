// The page of a report as text; tests/browser opens it.
#include "report/page.h"

#include <gtest/gtest.h>

#include "report/page_data.h"

namespace trireme {
namespace {

size_t count(std::string_view text, std::string_view what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) n++;
  return n;
}

std::string embedded(const std::string& page) {
  const std::string_view begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return page.substr(at, page.find("</script>", at) - at);
}

TEST(Page, HostileTextStaysText) {
  const std::string hostile =
      "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> & \"quoted\" \xff {{data}}";
  const nlohmann::json report = {{"version", 1}, {"kind", "run"}, {"name", hostile}, {"folder", hostile}};
  const std::string page = report_page(report), plain = report_page({{"kind", "run"}});
  // The page has the elements of one without that name, and the name is where it was put.
  for (const char* element : {"<script", "</script", "<img", "<!--", "<title>", "</title>"})
    EXPECT_EQ(count(page, element), count(plain, element)) << element;
  const nlohmann::json back = nlohmann::json::parse(embedded(page));
  EXPECT_EQ(back["name"].get<std::string>().substr(0, 30), hostile.substr(0, 30));
  EXPECT_NE(back["name"].get<std::string>().find("\xEF\xBF\xBD {{data}}"),
            std::string::npos);  // U+FFFD for the invalid byte
}

TEST(Page, CarriesTheReportUnchanged) {
  const nlohmann::json report = {
      {"version", 1}, {"kind", "comparison"}, {"text", {"5 < 6 & 7 > 2"}}, {"runs", nlohmann::json::array()}};
  EXPECT_EQ(nlohmann::json::parse(embedded(report_page(report))), report);
  EXPECT_EQ(nlohmann::json::parse(embedded(live_page("/abc", true))),
            nlohmann::json({{"live", "/abc"}, {"many", true}}));
}

TEST(Page, LoadsNothingFromElsewhere) {
  const std::string page = report_page({{"kind", "run"}});
  EXPECT_LT(page.size(), 500'000u);
  // Words that make a browser send a request, or that turn text into elements.
  for (const std::string_view part : {kPageHtml, kPageStyle, kPageScript})
    for (const std::string_view load :
         {"https:", " src=", "@import", "XMLHttpRequest", "WebSocket", "EventSource", "sendBeacon",
          "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "import(", ".html("})
      EXPECT_EQ(count(part, load), 0u) << load;
  EXPECT_EQ(count(kPageHtml, "href="), 2u);  // the empty icon, and the way to the report
  EXPECT_EQ(count(kPageScript, "http:"), 1u) << "the name of SVG alone";
  EXPECT_EQ(count(kPageScript, "url("), 1u) << "patterns of the page itself alone";
  EXPECT_EQ(count(kPageScript, "url(#"), 1u);
  EXPECT_EQ(count(kPageStyle, "url("), 0u);
  EXPECT_EQ(count(kPageScript, "fetch("), 1u);  // a live page asks its own server
  EXPECT_NE(page.find("default-src 'none'"),
            std::string::npos);  // a browser refuses what the words above missed
  EXPECT_EQ(count(kChartLibrary, "</script"), 0u);
  EXPECT_EQ(count(kPageScript, "</script"), 0u);
  EXPECT_NE(page.find("Copyright 2010-2022 Mike Bostock"), std::string::npos);
  EXPECT_EQ(count(page, "{{"), 0u);
}

// Every part of a report (docs/report.md) has a section that shows it.
TEST(Page, HasASectionForEachPart) {
  for (const char* part : {"headline", "advice", "tolls",           "step_time",   "comb",
                           "memory",   "curves", "roofline",        "checkpoints", "events",
                           "goodput",  "record", "record_markdown", "checked",     "tables",
                           "runs",     "steps",  "scaling",         "differences", "text"})
    EXPECT_TRUE(kPageScript.find(std::string("r.") + part) != kPageScript.npos ||
                kPageScript.find(std::string("report.") + part) != kPageScript.npos)
        << part;
}

}  // namespace
}  // namespace trireme
