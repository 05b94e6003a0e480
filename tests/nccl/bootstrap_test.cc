// How launchers say a process's place.
#include "comm/tcp/bootstrap.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <thread>
#include <vector>

#include "base/file.h"
#include "comm/tcp/secret.h"

namespace trireme {
namespace {

std::optional<TcpOptions> placed(const std::map<std::string, std::string>& env) {
  return placement_of([&](const std::string& name) -> std::optional<std::string> {
    auto it = env.find(name);
    if (it == env.end() || it->second.empty()) return {};
    return it->second;
  });
}
std::string refused(const std::map<std::string, std::string>& env) {
  try {
    placed(env);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault, Fault::request);
    return e.what();
  }
  return "";
}

TEST(Bootstrap, ByRankAndWorldSize) {
  const auto p =
      placed({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "a.b"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(p);
  EXPECT_EQ(p->rank, 3);
  EXPECT_EQ(p->size, 8);
  EXPECT_EQ(p->host, "a.b");
  EXPECT_EQ(p->port, 1234);
  EXPECT_EQ(placed({{"RANK", "0"}, {"WORLD_SIZE", "1"}})->port, 29500);
  // torchrun has MASTER_PORT itself.
  const auto t = placed({{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "x"},
                         {"MASTER_PORT", "65535"},
                         {"TORCHELASTIC_RUN_ID", "7"}});
  EXPECT_EQ(t->port, 1);
  EXPECT_NE(t->job, 0u);
  EXPECT_FALSE(placed({}));
  EXPECT_FALSE(placed({{"RANK", ""}, {"WORLD_SIZE", "3"}}));
}

TEST(Bootstrap, BySlurm) {
  std::map<std::string, std::string> env = {
      {"SLURM_PROCID", "5"},    {"SLURM_NTASKS", "99"}, {"SLURM_STEP_NUM_TASKS", "6"},
      {"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_ID", "2"}, {"SLURM_STEP_NODELIST", "gpu[07-09]"}};
  const auto p = placed(env);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->rank, 5);
  EXPECT_EQ(p->size, 6);
  EXPECT_EQ(p->host, "gpu07");
  EXPECT_GE(p->port, 12000);
  EXPECT_LT(p->port, 28000);
  env["SLURM_STEP_ID"] = "3";
  EXPECT_NE(placed(env)->job, p->job);
  env["MASTER_PORT"] = "777", env["MASTER_ADDR"] = "here";
  EXPECT_EQ(placed(env)->port, 777);
  EXPECT_EQ(placed(env)->host, "here");
  env["RANK"] = "1", env["WORLD_SIZE"] = "2";  // goes before
  EXPECT_EQ(placed(env)->rank, 1);
  // A batch script's own shell.
  EXPECT_FALSE(placed({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_NODELIST", "n[1-2]"}}));
}

TEST(Bootstrap, FirstHosts) {
  EXPECT_EQ(first_host("nd0"), "nd0");
  EXPECT_EQ(first_host("nd0,nd1"), "nd0");
  EXPECT_EQ(first_host("nd[3-5,7],x"), "nd3");
  EXPECT_EQ(first_host("nd[003,7]"), "nd003");
  EXPECT_EQ(first_host("r[1-2]n[4-9],x"), "r1n4");
  EXPECT_EQ(first_host("a[1-2]-ib,b"), "a1-ib");
  for (const char* wrong : {"", ",a", "[", "a[", "a[]", "a[1", "a[x-2]", "a b"}) {
    try {
      first_host(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("has no first host"), std::string::npos);
    }
  }
}

TEST(Bootstrap, WhatIsWrongNamesTheVariable) {
  EXPECT_EQ(refused({{"RANK", "x"}}), "the environment's RANK is \"x\"; right is a number from 0 to 999999");
  EXPECT_EQ(refused({{"RANK", "0"}}),
            "the environment has RANK and no WORLD_SIZE: ranks need both to find each other");
  EXPECT_EQ(refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
            "the environment has RANK and no MASTER_ADDR: ranks find each other at rank 0's address");
  EXPECT_EQ(refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
            "the environment says that this is rank 2 of 2; right are 0 to 1");
  EXPECT_EQ(refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}),
            "the environment's MASTER_PORT is \"70000\"; right is a number from 1 to 65535");
}

// ---- the secret of a job ----

struct Home {
  Home() {
    char name[] = "/tmp/secret-test-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Home() { fs::remove_all(path); }
  std::string secret(std::map<std::string, std::string> env = {}) const {
    env.emplace("HOME", path.string());
    return secret_of_job([&](const std::string& name) -> std::optional<std::string> {
      auto it = env.find(name);
      if (it == env.end() || it->second.empty()) return {};
      return it->second;
    });
  }
  std::string refused(const std::map<std::string, std::string>& env = {}) const {
    try {
      secret(env);
    } catch (const Error& e) {
      EXPECT_EQ(e.fault, Fault::request);
      return e.what();
    }
    return "";
  }
  fs::path path;
};

TEST(Secret, IsTheEnvironmentsOrTheUsersFile) {
  const Home home;
  const std::string given = "sixteen letters.";
  EXPECT_EQ(home.secret({{"TRIREME_SECRET", given}}), given);
  EXPECT_FALSE(fs::exists(home.path / ".config")) << "none is made where one is given";
  EXPECT_EQ(home.refused({{"TRIREME_SECRET", "too short"}}),
            "the environment's TRIREME_SECRET has 9 characters; expected 16 or more");
  const std::string made = home.secret();
  EXPECT_EQ(made.size(), 64u);
  EXPECT_EQ(home.secret(), made);
  EXPECT_EQ(home.secret({{"XDG_CONFIG_HOME", (home.path / ".config").string()}}), made);
  EXPECT_NE(Home().secret(), made);
}

// Ranks on one machine or one home folder start at once.
TEST(Secret, IsMadeOnce) {
  const Home home;
  std::vector<std::string> all(8);
  std::vector<std::thread> ranks;
  for (std::string& one : all) ranks.emplace_back([&] { one = home.secret(); });
  for (std::thread& t : ranks) t.join();
  for (const std::string& one : all) EXPECT_EQ(one, all[0]);
  EXPECT_EQ(std::distance(fs::directory_iterator(home.path / ".config/trireme"), {}), 1)
      << "nothing else is left";
}

TEST(Secret, AFileThatOthersMayReadIsNone) {
  const Home home;
  home.secret();
  const fs::path file = home.path / ".config/trireme/secret";
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::permissions(file, fs::perms::group_read, fs::perm_options::add);
  EXPECT_NE(home.refused().find("no other user may read: chmod 600 it, or set TRIREME_SECRET"),
            std::string::npos);
  fs::remove(file);
  write_text_atomic(file, "short\n");
  fs::permissions(file, fs::perms::owner_read);
  EXPECT_NE(home.refused().find("has 5 characters; expected 16 or more"), std::string::npos);
}

}  // namespace
}  // namespace trireme
