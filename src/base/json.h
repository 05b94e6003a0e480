// nlohmann's JSON, compiled once (json.cc) rather than by every file that reads or writes a value: a third of
// those files' compile time under the sanitizers.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace trireme::json_library {  // names for the declarations below alone

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;
using Pointers = nlohmann::detail::iterator_input_adapter<const char*>;  // text as string_view, and as string
using Characters = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
template <class Text>
using Parser = nlohmann::detail::parser<Json, Text>;
using Values = nlohmann::detail::json_sax_dom_parser<Json>;
using ValuesAndCallback = nlohmann::detail::json_sax_dom_callback_parser<Json>;

}  // namespace trireme::json_library

// Each line names what a parse or a dump instantiates; a line that a later version of the library lacks may
// go.
#define TRIREME_JSON_TEMPLATES(EXTERN)                                                                       \
  EXTERN template class nlohmann::basic_json<>;                                                              \
  EXTERN template class nlohmann::basic_json<nlohmann::ordered_map>;                                         \
  EXTERN template class nlohmann::detail::serializer<trireme::json_library::Json>;                           \
  EXTERN template class nlohmann::detail::serializer<trireme::json_library::Ordered>;                        \
  EXTERN template class nlohmann::detail::lexer<trireme::json_library::Json,                                 \
                                                trireme::json_library::Pointers>;                            \
  EXTERN template class nlohmann::detail::lexer<trireme::json_library::Json,                                 \
                                                trireme::json_library::Characters>;                          \
  EXTERN template class nlohmann::detail::parser<trireme::json_library::Json,                                \
                                                 trireme::json_library::Pointers>;                           \
  EXTERN template class nlohmann::detail::parser<trireme::json_library::Json,                                \
                                                 trireme::json_library::Characters>;                         \
  EXTERN template class nlohmann::detail::json_sax_dom_parser<trireme::json_library::Json>;                  \
  EXTERN template class nlohmann::detail::json_sax_dom_callback_parser<trireme::json_library::Json>;         \
  EXTERN template bool trireme::json_library::Parser<trireme::json_library::Pointers>::sax_parse_internal(   \
      trireme::json_library::Values*);                                                                       \
  EXTERN template bool trireme::json_library::Parser<trireme::json_library::Characters>::sax_parse_internal( \
      trireme::json_library::Values*);                                                                       \
  EXTERN template bool trireme::json_library::Parser<trireme::json_library::Pointers>::sax_parse_internal(   \
      trireme::json_library::ValuesAndCallback*);                                                            \
  EXTERN template bool trireme::json_library::Parser<trireme::json_library::Characters>::sax_parse_internal( \
      trireme::json_library::ValuesAndCallback*);

#ifndef TRIREME_JSON_HERE
TRIREME_JSON_TEMPLATES(extern)
#endif
