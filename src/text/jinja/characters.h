// Texts as Python sees them: characters are code points, and blanks and cases are Unicode's.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::jinja {

// Bytes of the character at text[at]; 1 for a byte that is not UTF-8.
size_t character_at(std::string_view text, size_t at);
int64_t characters(std::string_view text);
// Byte where character `index` begins; text.size() beyond the end.
size_t byte_of(std::string_view text, int64_t index);
// str.isspace() of the character at text[at]: its bytes, or 0.
size_t blank_at(std::string_view text, size_t at);

// str.strip() and its halves. `of`: characters to strip; null = blanks.
std::string_view strip(std::string_view text, const std::string* of, bool left, bool right);
// First place >= `at`, or npos. Time is linear in the text.
size_t find_text(std::string_view text, std::string_view part, size_t at);

// str.upper(), lower(), title() and capitalize(), a character at a time.
enum class Case : uint8_t { upper, lower, title, capitalize };
std::string with_case(std::string_view text, Case);
bool is_letter(uint32_t code);

}  // namespace trireme::jinja
