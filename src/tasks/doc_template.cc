#include "tasks/doc_template.h"

#include "text/jinja/interpreter.h"

namespace trireme {

std::string render_doc(const std::string& source, const nlohmann::ordered_json& doc,
                       const std::string& where) {
  jinja::Work work(where);
  work.strict = true;
  const jinja::Body body = jinja::parse(source, work, jinja::Whitespace::kept);
  jinja::Entries names;
  for (const auto& [key, value] : doc.items()) names.emplace_back(key, jinja::Value::from_json(value, work));
  return jinja::render(body, std::move(names), 0, work).text;
}

}  // namespace trireme
