// Prompts as users give them, and texts as they get them back: what `generate` reads and writes.
#pragma once
#include <string>
#include <vector>

#include "generate/generate.h"
#include "text/tokenizer.h"

namespace trireme::cli {

// JSON Lines, by name or first lines: the prompt under "prompt". Any other file: a prompt a line; lines of
// blanks are none. bad_request where there is no prompt.
std::vector<std::string> read_prompts(const fs::path&);

// Ids of each; an empty prompt is the start of a document. bad_request where the tokenizer has no end-of-text
// to start from.
Prompts encode_prompts(const Tokenizer&, const std::vector<std::string>&);

// {"index": 0, "prompt": "...", "text": "...", "tokens": 12, "finish": "stop"}: bytes that are not UTF-8
// become U+FFFD, because JSON has no other way.
std::string json_line(size_t index, const std::string& prompt, const std::string& text, const Generated&);

}  // namespace trireme::cli
