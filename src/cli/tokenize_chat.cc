#include "cli/tokenize_chat.h"

#include <algorithm>

#include "base/counted.h"
#include "base/interrupt.h"
#include "base/printable.h"
#include "base/progress.h"
#include "base/say.h"
#include "base/visible.h"
#include "cli/prepare.h"
#include "data/shard_writer.h"
#include "text/chat_tokens.h"
#include "text/jinja/characters.h"

namespace trireme::cli {
namespace {

struct ChatTotals {
  int64_t documents = 0, tokens = 0, targets = 0, without = 0;  // without: conversations without a target
};

class ChatEncoder {
 public:
  explicit ChatEncoder(const ChatRequest& r)
      : request_(r), tokenizer_(Tokenizer::load(r.tokenizer)), folder_(fs::path(r.tokenizer).parent_path()) {
    if (folder_.empty()) folder_ = ".";
    template_ = r.chat_template.empty() ? ChatTemplate::find(folder_)
                                        : ChatTemplate::load_file(r.chat_template, folder_);
    if (!r.end_of_text) {
      end_ = tokenizer_.find_end_of_text().value_or(-1);
    } else if (!r.end_of_text->empty()) {
      const auto id = tokenizer_.find_added(*r.end_of_text);
      if (!id) bad_request("--end-of-text {:?} is not an added token of the tokenizer", *r.end_of_text);
      end_ = *id;
    }
  }

  void run() {
    const fs::path out = request_.out;
    make_folders(out);
    const uint64_t vocabulary = tokenizer_.fingerprint();
    ShardWriter train(out / "train", tokenizer_.vocab_size(), vocabulary);
    ShardWriter valid(out / "valid", tokenizer_.vocab_size(), vocabulary);
    for (const std::string& file : request_.files) encode_file(file, train, valid);
    if (train_.documents == 0)
      bad_request("{}: no conversation to train on{}", request_.files[0],
                  skipped_ > 0 ? "; the first bad line: " + first_skipped_ : "");
    if (train_.targets == 0)
      bad_request("{}: no token is a target of the loss: the assistant says nothing in it",
                  request_.files[0]);
    if (valid_.documents == 0) refuse_old_valid({}, out / "valid");
    copy_tokenizer(out);
    train.commit();
    if (valid_.documents > 0) valid.commit();
    report(out);
  }

 private:
  void encode_file(const std::string& file, ShardWriter& train, ShardWriter& valid) {
    const MappedFile mapped{fs::path(file)};
    const std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
    Progress bar("encode", int64_t(text.size()));
    const std::string name = fs::path(file).filename().string();
    int64_t number = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = text.substr(at, end - at);
      at = end + 1;
      number++;
      if (jinja::strip(line, nullptr, true, false).empty()) continue;
      const bool held =
          request_.hold_out > 0 && held_out(fmt::format("{}:{}", name, number), request_.hold_out);
      encode_line(line, fmt::format("{}, line {}", file, number), held ? valid : train,
                  held ? valid_ : train_);
      bar.update(int64_t(std::min(at, text.size())));
      leave_if_interrupted();
    }
    bar.finish();
  }

  void encode_line(std::string_view line, const std::string& where, ShardWriter& writer, ChatTotals& sum) {
    ChatTokens tokens;
    try {
      const Conversation c = Conversation::parse(line, where);
      if (!c.plain && !template_)
        bad_request(
            "{}: no chat template: neither chat_template.jinja nor \"chat_template\" in "
            "tokenizer_config.json; --chat-template FILE names one",
            folder_.string());
      tokens = encoded(c, where);
    } catch (const Error& e) {
      if (!request_.skip_bad_lines || e.fault != Fault::request) throw;
      if (skipped_++ == 0) first_skipped_ = e.what();
      return;
    }
    writer.add_document(tokens.ids, tokens.targets);
    // A document's first token is not a target (data/shard_writer.h).
    const auto n =
        tokens.targets.empty() ? 0 : std::count(tokens.targets.begin() + 1, tokens.targets.end(), 1);
    sum.documents++;
    sum.tokens += int64_t(tokens.ids.size());
    sum.targets += n;
    sum.without += n == 0;
    changed_ += tokens.changed;
  }
  ChatTokens encoded(const Conversation& c, const std::string& where) const {
    try {
      return chat_tokens(tokenizer_, template_ ? &*template_ : nullptr, c, end_);
    } catch (const Error& e) {
      throw Error(fmt::format("{}: {}", where, e.what()), e.fault);
    }
  }

  // The tokenizer's files, so that the folder says how its shards were made.
  void copy_tokenizer(const fs::path& out) const {
    std::error_code none;
    if (fs::equivalent(folder_, out, none)) return;
    tokenizer_.save(out / "tokenizer.json");
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"})
      if (fs::is_regular_file(folder_ / name, none)) write_text_atomic(out / name, read_text(folder_ / name));
    if (!request_.chat_template.empty())
      write_text_atomic(out / "chat_template.jinja", read_text(request_.chat_template));
  }

  template <class... A>
  void tell(fmt::format_string<A...> text, A&&... a) const {
    if (request_.report_on_stderr)
      say(text, std::forward<A>(a)...);
    else
      print_text(text, std::forward<A>(a)...);
  }
  void report(const fs::path& out) const {
    auto one = [&](const char* name, const ChatTotals& t) {
      tell("{}: {}, {} tokens, {} of them targets ({:.1f} %)\n", (out / name).string(),
           counted(t.documents, "conversation"), t.tokens, t.targets,
           100 * double(t.targets) / double(std::max<int64_t>(1, t.tokens)));
      if (t.without > 0)
        tell("{}: {} without a target\n", (out / name).string(), counted(t.without, "conversation"));
    };
    one("train", train_);
    if (valid_.documents > 0) one("valid", valid_);
    if (changed_ > 0)
      tell("{} not trained on: the template renders them otherwise when messages follow\n",
           counted(changed_, "message"));
    if (skipped_ > 0) tell("skipped: {}; the first: {}\n", counted(skipped_, "bad line"), first_skipped_);
  }

  const ChatRequest& request_;
  Tokenizer tokenizer_;
  fs::path folder_;
  std::optional<ChatTemplate> template_;
  int32_t end_ = -1;
  ChatTotals train_, valid_;
  int64_t changed_ = 0, skipped_ = 0;
  std::string first_skipped_;
};

}  // namespace

void tokenize_chat(const ChatRequest& r) {
  install_interrupt_handlers();
  ChatEncoder(r).run();
}

}  // namespace trireme::cli
