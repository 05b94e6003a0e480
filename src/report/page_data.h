// The parts of the report's page, compiled into the program.
#pragma once
#include <string_view>

namespace trireme {

extern const std::string_view
    kPageHtml;  // with {{title}}, {{style}}, {{library}}, {{script}}, {{licence}}, {{data}}
extern const std::string_view kPageStyle;     // CSS
extern const std::string_view kPageScript;    // our JavaScript
extern const std::string_view kPageLicence;   // licence text of D3
extern const std::string_view kChartLibrary;  // D3's modules that the page uses, minified

}  // namespace trireme
