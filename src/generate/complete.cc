#include "generate/complete.h"

#include "base/error.h"
#include "generate/text_stream.h"

namespace trireme {

Completions complete_texts(StageRunner& runner, const Tokenizer& tokenizer, const Prompts& prompts,
                           const GenerateOptions& options, const std::vector<std::vector<std::string>>& stops,
                           const std::function<void(int64_t)>& progress, const std::function<bool()>& leave) {
  require(stops.empty() || stops.size() == prompts.size(), "stop strings of other prompts");
  Completions all;
  all.texts.resize(prompts.size());
  std::vector<TextStream> streams;
  for (size_t i = 0; i < prompts.size(); i++)
    streams.emplace_back(stops.empty() ? std::vector<std::string>{} : stops[i]);
  int64_t done = 0;
  GenerateHooks hooks;
  hooks.token = [&](size_t i, int32_t id) {
    streams[i].push(tokenizer.token(id));
    return streams[i].stopped();
  };
  hooks.done = [&](size_t i, const Generated& g) {
    streams[i].finish();
    all.texts[i] = {streams[i].text(), int64_t(g.tokens.size()), g.finish};
    if (g.finish != Finish::interrupted && progress) progress(++done);
  };
  hooks.leave = leave;
  all.stats = generate(runner, prompts, options, hooks);
  return all;
}

}  // namespace trireme
