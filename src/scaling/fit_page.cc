#include "scaling/fit_page.h"

#include <fmt/format.h>

#include "sim/markup.h"

namespace trireme {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{0} - trireme scale</title>
<style>
:root {{ --bg: #f6f7f9; --card: #fff; --ink: #1b1f24; --line: #d9dee4; }}
@media (prefers-color-scheme: dark) {{ :root {{ --bg: #101418; --card: #181d23; --ink: #e6e9ed; --line: #2c343d; }} }}
body {{ margin: 0 auto; padding: 1rem; max-width: 1320px; background: var(--bg); color: var(--ink);
  font: 14px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", Arial, sans-serif; }}
h1 {{ font-size: 1.15rem; overflow-wrap: anywhere; }}
.pictures {{ display: flex; flex-wrap: wrap; gap: 1rem; }}
figure {{ margin: 0; padding: .5rem; background: #fff; border: 1px solid var(--line); border-radius: 6px; max-width: 100%; }}
figure svg {{ max-width: 100%; height: auto; }}
pre {{ padding: .8rem; background: var(--card); border: 1px solid var(--line); border-radius: 6px; overflow-x: auto; }}
</style>
</head>
<body>
<h1>{0}</h1>
<div class="pictures">
)";

}  // namespace

std::string fit_page(const std::string& title, const std::string& text,
                     const std::vector<Picture>& pictures) {
  std::string page = fmt::format(fmt::runtime(kHead), escaped(title));
  for (const Picture& p : pictures) page += fmt::format("<figure>\n{}</figure>\n", p.svg);
  page += fmt::format("</div>\n<pre>{}</pre>\n", escaped(text));
  page += "<p>Written by trireme. The page makes no request to another host.</p>\n</body>\n</html>\n";
  return page;
}

}  // namespace trireme
