// trireme chat RUN: a conversation with a model in the terminal.
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "base/interrupt.h"
#include "base/say.h"
#include "cli/live_text.h"
#include "cli/sampling.h"
#include "cli/source.h"
#include "cli/used_keys.h"
#include "generate/chat_history.h"
#include "generate/generate.h"
#include "generate/text_stream.h"

namespace trireme::cli {
namespace {

struct ChatRequest {
  RunRequest run;
  std::string system, chat_template;
  std::vector<std::string> stops;
  bool plain = false;
  GenerateOptions o{.tokens = 512, .context = 0};
};

// Lines of standard input, from a terminal or a pipe.
class Messages {
 public:
  // The next line without its end; nothing at the end of input. A Ctrl-C meanwhile asks again.
  std::optional<std::string> next() {
    prompt();
    for (;;) {
      if (const size_t end = read_.find('\n'); end != std::string::npos) {
        std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return line;
      }
      if (interrupt_requested()) {
        if (!terminal_) return {};
        clear_interrupt();
        say("\n(Ctrl-D ends the chat)\n");
        prompt();
      }
      if (!more()) {
        if (terminal_) say("\n");
        if (read_.empty()) return {};
        return std::exchange(read_, "");
      }
    }
  }

 private:
  void prompt() const {
    if (terminal_) say("> ");
  }
  // False at the end of input.
  bool more() {
    pollfd in{STDIN_FILENO, POLLIN, 0};
    if (::poll(&in, 1, 100) <= 0) return true;
    char buffer[4096];
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n > 0) read_.append(buffer, size_t(n));
    return n > 0 || (n < 0 && errno == EINTR);
  }

  const bool terminal_ = ::isatty(STDIN_FILENO) == 1;
  std::string read_;
};

std::optional<ChatTemplate> template_of(const ChatRequest& r, const RunSpec& run) {
  if (r.plain) return {};
  if (r.chat_template.empty()) return chat_template_of(run);
  return ChatTemplate::load_file(r.chat_template, tokenizer_path(run).parent_path());
}

class Chat {
 public:
  Chat(const ChatRequest& r, const Tokenizer& tokenizer, StageRunner& runner, ChatHistory& history)
      : request_(r), tokenizer_(tokenizer), runner_(runner), history_(history) {}

  // Streams the answer to one message.
  void answer(const std::string& message) {
    const int64_t before = history_.dropped();
    const std::vector<int32_t> prompt = history_.ask(message, request_.o.context - request_.o.tokens);
    if (history_.dropped() > before)
      say("(the first {} turns no longer fit into the context)\n", history_.dropped());
    std::vector<std::string> stops = history_.stops();
    stops.insert(stops.end(), request_.stops.begin(), request_.stops.end());
    TextStream stream(stops);
    GenerateOptions o = request_.o;
    o.sample.seed += uint64_t(turn_++);
    GenerateHooks hooks;
    hooks.token = [&](size_t, int32_t id) {
      out_.show(stream.push(tokenizer_.token(id)));
      return stream.stopped();
    };
    hooks.done = [&](size_t, const Generated&) { out_.show(std::string(stream.finish()) + "\n", true); };
    hooks.leave = [] { return interrupt_requested(); };
    generate(runner_, {prompt}, o, hooks);
    clear_interrupt();  // Ctrl-C ended the answer, not the chat
    history_.answer(stream.text());
  }

 private:
  const ChatRequest& request_;
  const Tokenizer& tokenizer_;
  StageRunner& runner_;
  ChatHistory& history_;
  LiveText out_;
  int64_t turn_ = 0;
};

void chat_verb(ChatRequest& r) {
  check_set_keys("chat", r.run);
  const UsedRun used = load_used(r.run);
  const RunSpec& run = used.run;
  note_fp8("chat", run);
  const Tokenizer tokenizer = tokenizer_of(run);
  refuse_foreign_tokenizer(run, tokenizer);
  r.o.context = context_of(run, r.o.context);
  r.o.tokens = std::min(r.o.tokens, r.o.context / 2);
  if (r.o.tokens < 1) bad_request("the model sees {} tokens at once, too few for a chat", r.o.context);
  r.o.vocab = tokenizer.vocab_size();
  r.o.end_of_text = tokenizer.find_end_of_text().value_or(-1);
  const Sampler good_options(r.o.sample);
  ChatHistory history(tokenizer, template_of(r, run), r.system);
  // The longest prompt and answer; shorter ones take less.
  const Prompts longest = {std::vector<int32_t>(size_t(r.o.context - r.o.tokens))};
  LoadedModel m =
      load_model(run, book_generation(run, threads_of(run), generation_shape(longest, r.o)), used.checkpoint);
  install_interrupt_handlers();
  say("{}: {}; /reset forgets the conversation, Ctrl-C ends an answer, Ctrl-D the chat\n", m.where,
      history.has_template() ? "with its chat template" : "plain turns, no chat template");
  Chat chat(r, tokenizer, *m.runner, history);
  Messages messages;
  while (const std::optional<std::string> message = messages.next()) {
    if (message->find_first_not_of(" \t") == std::string::npos) continue;
    if (*message == "/reset") {
      history.clear();
      continue;
    }
    try {
      chat.answer(*message);
    } catch (const Error& e) {
      if (e.fault != Fault::request) throw;
      say("{}\n", e.what());  // this message alone is at fault
    }
  }
}

}  // namespace

void add_chat(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("chat",
                                      "talks with a model in the terminal, by its chat template; reads "
                                      "messages, one a line, from a pipe too\n"
                                      "example: trireme chat runs/tuned --temperature 0.7 --top-p 0.9\n"
                                      "example: echo 'What is a trireme?' | trireme chat runs/tuned");
  auto r = std::make_shared<ChatRequest>();
  add_used_run(*verb, r->run, false);
  verb->add_option("--system", r->system, "system message");
  auto* file = verb->add_option("--chat-template", r->chat_template,
                                "template, Jinja (default: the one next to the tokenizer, else plain turns)");
  verb->add_flag("--plain", r->plain, "plain turns, \"User: ...\" and \"Assistant: ...\"")->excludes(file);
  verb->add_option("--tokens", r->o.tokens,
                   "tokens of an answer, at most; half of the context if that is less")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--stop", r->stops, "ends an answer before this string (may be repeated)")
      ->take_all()
      ->allow_extra_args(false);
  add_sampling(*verb, r->o.sample);
  verb->add_option(
          "--context", r->o.context,
          "tokens that the model sees; the oldest turns are dropped as it fills. Default: data.seq_len,\n"
          "or max_positions of model.from")
      ->check(CLI::Range(2, 1 << 30));
  verb->callback([r] { chat_verb(*r); });
}

}  // namespace trireme::cli
