// optimizer.lr = "auto" and model.init_std = "auto": numbers by the width, given numbers, refusals.
#include "spec/lr_rule.h"

#include <cmath>

#include "run_text.h"
#include "spec/identity.h"

namespace trireme {
namespace {
using testing::error_of;
using testing::parse;
using testing::wrong;

RunSpec resolved(const std::string& optimizer, int64_t hidden, const std::string& model = "") {
  return resolve(
      parse(fmt::format("[model]\nhidden = {}\nheads = 4\n{}\n[optimizer]\n{}", hidden, model, optimizer)),
      {});
}
OptimizerSpec rates(const std::string& optimizer, int64_t hidden) {
  return resolved(optimizer, hidden).optimizer;
}

TEST(LrRule, HiddenMatricesAndHeadFollowTheWidthAndEmbeddingsDoNot) {
  EXPECT_EQ(parse("").optimizer.lr, kAutomatic);
  const double adamw = rates("", 128).lr, muon = rates("name = \"muon\"", 128).lr;
  for (const int64_t hidden : {256, 512, 2048}) {
    const double narrow = 128 / double(hidden);
    const OptimizerSpec a = rates("lr = \"auto\"", hidden), m = rates("name = \"muon\"", hidden);
    EXPECT_NEAR(a.lr / (adamw * narrow), 1, 5e-3) << hidden;  // three digits
    EXPECT_NEAR(m.lr / (muon * std::sqrt(narrow)), 1, 5e-3) << hidden;
    EXPECT_NEAR(m.adamw_lr / (rates("name = \"muon\"", 128).adamw_lr * narrow), 1, 5e-3) << hidden;
    EXPECT_EQ(a.adamw_lr, 0);
    EXPECT_EQ(a.embed_lr, rates("", 128).embed_lr);
    EXPECT_EQ(m.embed_lr, rates("name = \"muon\"", 128).embed_lr);
    EXPECT_GT(a.embed_lr, 0);
  }
  // The factor that "original" leaves to the rate is 0.2 sqrt(128) at width 128.
  const std::string original = "name = \"muon\"\nadjust_lr = \"original\"";
  EXPECT_NEAR(rates(original, 128).lr / (muon * 0.2 * std::sqrt(128.0)), 1, 5e-3);
  EXPECT_EQ(rates(original, 2048).lr, rates(original, 128).lr);
  EXPECT_EQ(rates("", 16).lr, rates("", 64).lr);  // no narrower model learns faster
  EXPECT_EQ(rates("", 64).lr, 2 * adamw);
}

TEST(LrRule, NumbersThatAreGivenStay) {
  for (const char* name : {"adamw", "muon"}) {
    const OptimizerSpec o = rates(fmt::format("name = \"{}\"\nlr = 3e-4", name), 512);
    EXPECT_EQ(o.lr, 3e-4);
    EXPECT_EQ(o.adamw_lr, 0);
    EXPECT_EQ(o.embed_lr, 0);
  }
  const OptimizerSpec o = rates("name = \"muon\"\nadamw_lr = 0.25\nembed_lr = 0.5", 512);
  EXPECT_EQ(o.adamw_lr, 0.25);
  EXPECT_EQ(o.embed_lr, 0.5);
  EXPECT_EQ(o.lr, rates("name = \"muon\"", 512).lr);
}

TEST(LrRule, TheSavedRunHasTheNumbers) {
  for (const std::string name : {"adamw", "muon"}) {
    const RunSpec run = resolved(fmt::format("name = \"{}\"", name), 256, "init_std = \"auto\"");
    EXPECT_EQ(run.model.init_std, 0.02);
    EXPECT_TRUE(parse(save_run(run)) == run);
    EXPECT_TRUE(resolve(parse(save_changed(run)), {}) == run);
    EXPECT_TRUE(resolve(run, {}) == run);
    EXPECT_TRUE(diff_of_identity(run, resolve(parse(save_run(run)), {})).empty());
    // A number that is not the rule's is written, the former default among them.
    RunSpec plain = run;
    plain.optimizer.lr = 1e-3;
    EXPECT_EQ(parse(save_changed(plain)).optimizer.lr, 1e-3);
  }
  EXPECT_EQ(save_run(parse("")).find("lr = 0.001"), std::string::npos);
}

TEST(LrRule, InitByFanIn) {
  EXPECT_EQ(resolve(parse("[model]\ninit_std = 0.02\nhidden = 1024\nheads = 4", {"model.init_std=auto"}), {})
                .model.init_std,
            0.01);
  EXPECT_EQ(resolved("", 1024).model.init_std, 0.01);
  EXPECT_EQ(resolved("", 512, "init_std = 0.02").model.init_std, 0.02);
  EXPECT_EQ(resolved("", 1024, "init_std = \"auto\"").model.init_std, 0.01);
  EXPECT_EQ(resolved("", 64, "init_std = \"auto\"").model.init_std, 0.04);
  EXPECT_EQ(resolved("", 64, "init_std = \"auto\"").model.embed_std, 0.02);
  EXPECT_EQ(resolved("", 64, "init_std = \"auto\"\nembed_std = 0.5").model.embed_std, 0.5);
  EXPECT_EQ(resolved("", 64, "init_std = \"auto\"\ntied = true").model.embed_std, 0);
  EXPECT_EQ(resolved("", 64, "init_std = 0.02").model.embed_std, 0);
  EXPECT_EQ(resolved("", 64, "init_std = 0.02").model.head_std, 0);
  // The head like 1 / n.
  EXPECT_EQ(resolved("", 128).model.head_std, resolved("", 128).model.init_std);
  EXPECT_EQ(resolved("", 1024).model.head_std, 0.00354);
  EXPECT_EQ(resolved("", 1024, "head_std = 0.5").model.head_std, 0.5);
  EXPECT_EQ(resolved("", 64, "tied = true").model.head_std, 0);
  EXPECT_HAS(wrong("[model]\ntied = true\nhead_std = 0.5"), "model.head_std: 0.5 has no effect with tied");
  EXPECT_HAS(wrong("[model]\ntied = true\nembed_std = 0.5"), "model.embed_std: 0.5 has no effect with tied");
}

TEST(LrRule, RefusesWhatContradictsIt) {
  EXPECT_HAS(error_of([] { rates("min_lr = 0.5", 256); }), "optimizer.min_lr = 0.5: is above ");
  EXPECT_HAS(error_of([] { rates("min_lr = 0.5", 256); }), "\"auto\" is for model.hidden = 256");
  EXPECT_HAS(wrong("[optimizer]\nlr = \"automatic\""), "run.toml:2: optimizer.lr: \"automatic\" is a string");
  EXPECT_HAS(wrong("[optimizer]\nlr = -1"), "optimizer.lr: -1 is out of range");
  EXPECT_HAS(wrong("[optimizer]\nmin_lr = \"auto\""), "optimizer.min_lr: \"auto\" is a string");
  EXPECT_HAS(wrong("[optimizer]\nlr = 0\nembed_lr = 0.1"),
             "optimizer.embed_lr: 0.1 has no effect with lr = 0");
}

TEST(LrRule, PlansSayTheRatesAndWhoseTheyAre) {
  const RunSpec own = resolved("lr = 0.25", 256);
  const RunSpec rule = resolved("", 256);
  EXPECT_HAS(lr_text(rule), fmt::format("hidden matrices and head {}", rule.optimizer.lr));
  EXPECT_HAS(lr_text(rule), "(the rule for adamw with hidden = 256)");
  EXPECT_HAS(lr_text(own),
             "hidden matrices and head 0.25, embeddings and norms 0.25 (hidden matrices and head ");
  EXPECT_HAS(lr_text(resolved("name = \"muon\"", 256)), "(the rule for muon with hidden = 256)");
}

}  // namespace
}  // namespace trireme
